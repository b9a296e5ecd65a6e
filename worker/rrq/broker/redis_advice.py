"""What to do about an error of Redis, in words for the person who sees it. Pure."""

import re

from rrq.broker.connection import LOST_REPLY_ERRORS, is_refused_login, mask_dsn

__all__ = ["advise_on_redis", "describe_redis_trouble"]

_CHECK = "Check redis_dsn (RRQ_REDIS_DSN)"
_CLUSTER = "is part of a Redis Cluster"
# redis-py tells these apart by words only, and they differ between its versions.
_ADVICE = (
    (
        r"certificate verify failed",
        "Check redis_tls_ca_file (RRQ_REDIS_TLS_CA_FILE): it names the authority that signed the certificate of Redis",
    ),
    (r"Error -\d+ connecting|Name or service not known|nodename nor servname",
     f"The name of the host is not known here. {_CHECK}"),
    (r"Error (111|61) connecting|Connect call failed|Connection refused",
     f"Nothing listens at that address. {_CHECK}, and that Redis is running there"),
    (r"Error 2 connecting", f"There is no such socket. {_CHECK}, and that Redis is running"),
    (r"DB index is out of range",
     f"{_CHECK}: it ends in the number of a database, and a Redis has 0 to 15 unless configured otherwise"),
    (r"cluster support disabled",
     f"This is no Redis Cluster. {_CHECK}: for a single Redis it begins with redis:// or rediss://"),
    (_CLUSTER, "Change redis_dsn (RRQ_REDIS_DSN) and key_prefix (RRQ_KEY_PREFIX)"),
    (r"unknown command .SENTINEL",
     f"This is no Sentinel. {_CHECK}: for a Redis that is asked directly it begins with redis:// or rediss://"),
    (r"Authentication required|AUTH <password> called without|invalid username-password|WRONGPASS|NOAUTH",
     f"{_CHECK}: user and password stand before the host, special characters percent-encoded"),
)  # fmt: skip
_HUNG_UP = re.compile(r"closed by server|Connection lost|Connection reset|Error (104|54) ")
_NO_TLS_ANSWER = re.compile(r"Timeout connecting|SSL|record layer|WRONG_VERSION_NUMBER")


def advise_on_redis(dsn: str, error: BaseException) -> str:
    """Return what to do, without a full stop."""
    reason = str(error)
    for pattern, advice in _ADVICE:
        if re.search(pattern, reason):
            return advice
    if dsn.startswith("rediss") and _NO_TLS_ANSWER.search(reason):
        return f"{_CHECK}: rediss:// speaks TLS; for a Redis that does not, write redis://"
    if dsn.startswith("redis:") and _HUNG_UP.search(reason):
        return f"{_CHECK}: redis:// speaks no TLS; for a Redis that asks for it, write rediss://"
    if isinstance(error, LOST_REPLY_ERRORS):
        return f"{_CHECK}, its user and password, and that Redis accepts connections from here"
    return "See to Redis or its access rules, then repeat"


def describe_redis_trouble(dsn: str, error: BaseException) -> str:
    """Return what happened, to which Redis, and what to do about it. Secrets are left out."""
    address, reason = mask_dsn(dsn), str(error).rstrip(".") or type(error).__name__
    if _CLUSTER in reason:  # which names the address itself
        return f"{reason}. {advise_on_redis(dsn, error)}."
    happened = "refused a command"
    if is_refused_login(error) or reason == "Authentication required":
        happened = "rejected the login"
    elif isinstance(error, LOST_REPLY_ERRORS):
        happened = "could not be reached"
    return f"Redis at {address} {happened}: {reason.rstrip('?')}. {advise_on_redis(dsn, error)}."
