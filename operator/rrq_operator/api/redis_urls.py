"""Which URLs of a Redis the operator uses: pure.

A tenant writes the URL, and the operator connects with it: from its own network, with its own files. So the URL may
name a server and how to log in there, and no file or socket of the operator. Options that only say how long a client waits
and what it keeps are for the programs of the tenant; the operator leaves them out.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_plus

from rrq.runtime.masking import mask_url
from rrq_operator.api.rules import CONTROL_CHARACTERS, lacking, matching

__all__ = [
    "LONGEST_URL",
    "URL_RULES",
    "RedisIdentity",
    "drop_client_options",
    "find_passwords",
    "find_url_fault",
]

#: What the operator passes on.
_OPTIONS: Final = (
    *("client_name", "db", "username", "password", "sentinel_username", "sentinel_password"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_min_version"),
)
#: What a tenant may set for its own programs, but not for a loop that serves all tenants.
_CLIENT_OPTIONS: Final = (
    r"timeout|max_connections|health_check_interval|decode_responses|encoding|encoding_errors|protocol|"
    r"(socket|retry)_[a-z_]+"
)
_OPTION: Final = rf"(({'|'.join(_OPTIONS)}|{_CLIENT_OPTIONS})=[^&]*)?"
_CODE: Final = "([01][0-9A-Fa-f]|7[Ff])"
# Some versions of redis-py decode options twice: there %250d is a carriage return, too.
_CONTROL: Final = rf"[{CONTROL_CHARACTERS}]|%{_CODE}|\?[^?]*%(25)+{_CODE}"

LONGEST_URL: Final = 2048
#: A newline in a user name or a key would be a command of its own to a server that is no Redis.
_NO_CONTROL: Final = lacking(
    _CONTROL,
    "a URL has no control characters, neither as they are nor as %00 to %1F or %7F: choose a user name and a password "
    "without them",
)
# Without a host redis-py takes localhost, which is the operator's own pod. A host that is written is not judged: any name
# may lead to any address, in that pod only probes and metrics listen, and local mode mostly uses localhost.
_HOST: Final = r"[^/?#@:,\s][^/?#@,\s]*"
_SCHEME: Final = matching(
    rf"(redis|rediss)(\+sentinel|\+cluster)?://([^/?#\s]*@)?{_HOST}(,{_HOST})*([/?#]\S*)?",
    "the URL of a Redis begins with redis://, rediss://, redis+sentinel:// or redis+cluster:// (with TLS: rediss+...), "
    "names a host and has no blanks; a socket, unix://, is out of reach for the operator: write host and port, and '/', "
    "'?' and '#' of a password as %2F, %3F and %23",
)
_KNOWN_OPTIONS: Final = matching(
    rf"[^?]*(\?{_OPTION}(&{_OPTION})*)?",
    f"a URL may have the options {', '.join(_OPTIONS)}, and those of timeouts and retries; no other, because the operator "
    "opens no files for a URL: name a private authority by SSL_CERT_FILE of the operator and by RRQ_REDIS_TLS_CA_FILE in "
    "worker.env",
)
URL_RULES: Final = (_NO_CONTROL, _SCHEME, _KNOWN_OPTIONS)


@dataclass(frozen=True)
class RedisIdentity:
    """One Redis as one tenant sees it. Its text shows no password."""

    url: str
    key_prefix: str

    def __repr__(self) -> str:
        return f"RedisIdentity({mask_url(self.url)!r}, {self.key_prefix!r})"


def find_url_fault(url: str) -> str | None:
    """Return what is wrong with a URL and what to write instead, without quoting it; None for one to use."""
    if len(url) > LONGEST_URL:
        return f"it has more than {LONGEST_URL} characters"
    return next((rule.message for rule in URL_RULES if not rule.holds(url)), None)


def drop_client_options(url: str) -> str:
    """Return the URL without the options that are for the operator to decide, such as how long it waits."""
    start, _, query = url.partition("?")
    kept = [option for option in query.split("&") if option and not _is_for_clients(option)]
    return f"{start}?{'&'.join(kept)}" if kept else start


def find_passwords(url: str) -> set[str]:
    """Return the passwords in a URL, as it writes them and as a server gets them."""
    start, _, query = url.partition("?")
    user_info = start.partition("://")[2].rpartition("@")[0]
    options = (option.partition("=") for option in query.split("&"))
    written = {
        user_info.partition(":")[2],
        *(value for name, _, value in options if name.endswith("password")),
    }
    return {
        text for password in written for text in (password, unquote(password), unquote_plus(password)) if text
    }


def _is_for_clients(option: str) -> bool:
    return re.fullmatch(_CLIENT_OPTIONS, unquote_plus(option.partition("=")[0])) is not None
