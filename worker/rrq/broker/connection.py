"""How a process reaches Redis: from a DSN to the ordinary client, and what the errors of Redis mean.

``open_redis`` builds the client that applications may use. The engine itself sends over the connections of
``pipelined_connection.py``.
"""

import logging
import re
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rrq.broker.redis_cluster import (
    ClusterClient,
    SlotRoute,
)
from rrq.broker.reply_limits import BoundedParser
from rrq.exc import RedisUnavailable, SettingsError
from rrq.runtime.masking import mask_url
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

#: What a call to Redis may raise: its own errors, and those of the socket below.
REDIS_ERRORS = (RedisError, OSError)

#: After these it is unknown whether the call took effect.
LOST_REPLY_ERRORS = (RedisConnectionError, RedisTimeoutError, OSError)

#: What reading an answer may raise that no Redis gives: of other types or lengths, or numbers that cannot be.
NONSENSE = (AttributeError, LookupError, TypeError, ValueError, OverflowError)


# How an error begins when Redis takes no writes for now: demoted, out of memory, unable to persist, without replicas.
# Redis 6.2 writes it behind a hyphen in the middle of the message, and behind the line of a script that raised it.
_REFUSED_FOR_NOW = re.compile(
    r"(?:^|-|user_script:\d+: )(READONLY|OOM|MISCONF|NOREPLICAS|MASTERDOWN|LOADING|BUSY|CLUSTERDOWN) "
)


def is_script_failure(error: BaseException) -> bool:
    """Tell whether a script stopped half-way, so that the same call would fail again.

    False when the server takes no writes for now: then the first write of the script already failed.
    """
    if not isinstance(error, ResponseError) or "@user_script" not in str(error):
        return False
    return not is_refused_for_now(error)


def is_refused_for_now(error: BaseException) -> bool:
    """Tell whether the server takes no writes at the moment, because it is demoted, full or loading."""
    return isinstance(error, ReadOnlyError | OutOfMemoryError) or (
        isinstance(error, ResponseError) and _REFUSED_FOR_NOW.search(str(error)) is not None
    )


def is_read_only(error: ResponseError) -> bool:
    found = _REFUSED_FOR_NOW.search(str(error))
    return isinstance(error, ReadOnlyError) or (found is not None and found[1] == "READONLY")


def is_refused_login(error: BaseException) -> bool:
    """Tell whether Redis rejected user or password, or the user lacks a right; other credentials may work."""
    return isinstance(error, AuthenticationError | NoPermissionError) or str(error).startswith("NOAUTH")


_SMALLEST_POOL = 20


class RedisCutOff(RedisUnavailable, RedisConnectionError):
    """What producers get; also an error of redis-py, because applications of 0.7 catch those."""


def mask_dsn(dsn: str) -> str:
    """Return the DSN fit for logs: user and password replaced, also those of options."""
    return mask_url(dsn)


def open_redis(settings: RRQSettings) -> Redis:
    """Return a client for ``settings.redis_dsn``. No connection is opened yet.

    Schemes: ``redis``, ``rediss`` (TLS), ``unix``, ``redis+sentinel://host,host/service/db``,
    ``redis+cluster``; the last two also with ``rediss``. Raises SettingsError for any other.
    """
    try:
        return _open(settings)
    except ValueError:
        # Without the cause, which quotes what it took for the port, such as half of a password.
        raise SettingsError(
            f"redis_dsn {mask_dsn(settings.redis_dsn)!r} cannot be read as a URL. Write special characters "
            "of a password percent-encoded, '/' as %2F for example, and ports and databases as numbers, as in "
            "redis://127.0.0.1:6379/0."
        ) from None


def _open(settings: RRQSettings) -> Redis:
    scheme = urlsplit(settings.redis_dsn).scheme
    if scheme.endswith("+sentinel"):
        return _open_sentinel(settings)
    if settings.redis_sentinel_service:
        return _open_sentinel(settings)
    if scheme.endswith("+cluster"):
        return _open_cluster(settings)
    if scheme not in ("redis", "rediss", "unix"):
        found = f"has the scheme {scheme!r}" if scheme else "has no scheme"
        raise SettingsError(
            f"redis_dsn {mask_dsn(settings.redis_dsn)!r} {found}. Use redis://, "
            "rediss://, unix://, redis+sentinel:// or redis+cluster://, as in redis://127.0.0.1:6379/0."
        )
    if scheme != "unix":
        _check_database(settings.redis_dsn)
    options = _connection_options(settings)
    if scheme == "unix":
        options.pop("socket_keepalive")
    if scheme == "rediss":
        options |= _tls_options(settings)
    pool = BlockingConnectionPool.from_url(
        settings.redis_dsn,
        # A pool that raises when it is exhausted fails 80 of 100 parallel enqueues; this one waits.
        max_connections=max(_SMALLEST_POOL, settings.worker_concurrency),
        **options,
    )
    return Redis.from_pool(pool)


def _check_database(dsn: str) -> None:
    """Raise ValueError where redis-py would silently take database 0 for what is no number."""
    parts = urlsplit(dsn)
    int(parts.path.strip("/") or 0)
    # A missing slash makes the host a path, and redis-py would go to localhost.
    if parts.path and not parts.netloc and not dsn.partition(":")[2].startswith("//"):
        raise ValueError


async def close_redis(redis: Redis) -> None:
    """Close a client from ``open_redis`` with everything that belongs to it."""
    await redis.aclose()
    manager = getattr(getattr(redis, "connection_pool", None), "sentinel_manager", None)
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def _connection_options(settings: RRQSettings) -> dict[str, Any]:
    return {
        "decode_responses": False,
        "retry_on_timeout": True,
        "socket_keepalive": True,
        "socket_timeout": settings.redis_socket_timeout_seconds,
        "socket_connect_timeout": settings.redis_connect_timeout_seconds,
        # One reply format for all servers from Redis 6.2 on.
        "protocol": 2,
        "parser_class": partial(
            BoundedParser,
            most_bytes=settings.redis_max_reply_bytes,
            most_values=settings.redis_max_reply_values,
        ),
    }


def _tls_options(settings: RRQSettings) -> dict[str, Any]:
    if settings.redis_tls_ca_file is None:
        return {}
    try:
        with open(settings.redis_tls_ca_file, "rb"):
            pass
    except OSError as error:
        # redis-py would report a missing file, but not which.
        raise SettingsError(
            f"redis_tls_ca_file {str(settings.redis_tls_ca_file)!r} cannot be read: {error.strerror}. Name the file "
            "with the authority that signed the certificate of Redis, or leave it out for those of this system."
        ) from error
    return {"ssl_ca_certs": str(settings.redis_tls_ca_file)}


def _open_sentinel(settings: RRQSettings) -> Redis:
    parts = urlsplit(settings.redis_dsn)
    credentials, _, hosts = parts.netloc.rpartition("@")
    path = parts.path.strip("/").split("/")
    service = settings.redis_sentinel_service
    if parts.scheme.endswith("+sentinel"):
        service = service or path[0]
        database = path[1] if len(path) > 1 else "0"
    else:
        database = path[0]
    addresses = settings.redis_sentinel_hosts or hosts.split(",")
    if not service or not all(addresses):
        raise SettingsError(
            f"redis_dsn {mask_dsn(settings.redis_dsn)!r} names no Sentinel host or no service. "
            "Write redis+sentinel://host1:26379,host2:26379/service/0."
        )
    user, _, password = credentials.partition(":")
    options = _connection_options(settings) | {
        "db": int(database or 0),
        "username": unquote(user) or None,
        "password": unquote(password) or None,
    }
    if parts.scheme.startswith("rediss"):
        options |= {"ssl": True} | _tls_options(settings)
    sentinel_options: dict[str, Any] = {
        # One retry, because an idle connection may have been cut. redis-py would try a dead Sentinel ten times, for
        # seconds, before it asks the next one.
        "retry": Retry(NoBackoff(), 1),
        "socket_timeout": settings.redis_socket_timeout_seconds,
        "socket_connect_timeout": settings.redis_connect_timeout_seconds,
    }
    for name, values in parse_qs(parts.query).items():
        if name in ("sentinel_username", "sentinel_password"):
            sentinel_options[name.removeprefix("sentinel_")] = values[0]
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves it without types
        [_address(host) for host in addresses], sentinel_kwargs=sentinel_options
    )
    for client in sentinel.sentinels:
        # Redis() itself takes no parser.
        client.connection_pool.connection_kwargs["parser_class"] = options["parser_class"]
    master: Redis = sentinel.master_for(service, **options)
    return master


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return (name, int(port)) if name else (host, 26379)


def _open_cluster(settings: RRQSettings) -> Redis:
    if "{" not in settings.key_prefix or "}" not in settings.key_prefix:
        raise SettingsError(
            f"key_prefix {settings.key_prefix!r} has no hash tag, so a Redis Cluster would spread "
            "the keys of one job over several nodes. Set a prefix such as '{shop}:'."
        )
    dsn = settings.redis_dsn.replace("+cluster", "", 1)
    options = _connection_options(settings)
    options.pop("retry_on_timeout")
    parser = options.pop("parser_class")
    if dsn.startswith("rediss"):
        options |= _tls_options(settings)
    client: Any = ClusterClient.from_url(dsn, **options)
    # RedisCluster takes no parser; the nodes that it finds later get the options of the cluster.
    for node_options in (
        client.connection_kwargs,
        *(node.connection_kwargs for node in client.nodes_manager.startup_nodes.values()),
    ):
        node_options["parser_class"] = parser
    named = urlsplit(dsn)
    client.route = SlotRoute(settings.key_prefix, (named.hostname or "localhost", named.port or 6379))
    # RedisCluster shares the commands of Redis, but not its base class.
    opened: Redis = client
    return opened


def single_node_pool(settings: RRQSettings, redis: Redis) -> Any:
    """Return a pool that makes plain connections, also where the client is a cluster client."""
    pool = getattr(redis, "connection_pool", None)
    if pool is not None:
        return pool
    dsn = settings.redis_dsn.replace("+cluster", "", 1)
    options = _connection_options(settings) | (_tls_options(settings) if dsn.startswith("rediss") else {})
    return BlockingConnectionPool.from_url(dsn, **options)
