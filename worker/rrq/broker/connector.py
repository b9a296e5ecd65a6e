"""Opens the sockets of a ``PipelinedConnection``: to the server of the URL, or to the node of a Redis Cluster that owns
the slot of our keys.

Which node to ask is decided in ``redis_cluster.py``; what is sent over a socket is the business of
``pipelined_connection.py``.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from rrq.broker.connection import LOST_REPLY_ERRORS, NONSENSE, is_refused_login, mask_dsn, single_node_pool
from rrq.broker.redis_cluster import MOST_REDIRECTS, MOST_UNREACHABLE, Address, SlotRoute, describe_cluster
from rrq.runtime.masking import clean_foreign_text
from rrq.settings import RRQSettings

__all__ = ["Connector", "lost_by_nonsense"]

T = TypeVar("T")

_NO_RETRY = Retry(NoBackoff(), 0)


def lost_by_nonsense(error: Exception) -> RedisConnectionError:
    """Return the error for a reply that could not be read: its connection cannot be trusted any more."""
    return RedisConnectionError(
        f"Redis gave an answer that makes no sense, perhaps to another question ({clean_foreign_text(str(error))}). "
        "The connection is closed."
    )


class Connector:
    """Opens sockets with the options of one client; ``route`` is that of a Redis Cluster."""

    def __init__(self, settings: RRQSettings, redis: Redis, route: SlotRoute | None) -> None:
        self._settings = settings
        self._redis = redis
        self._route = route
        self._pool: Any = None

    async def connect(self) -> Any:
        """Return an open connection of redis-py, logged in."""
        if self._route is not None:
            return await self._connect_to_owner(self._route)
        return await self._connect_to_server()

    def open_client(self, address: Address) -> Redis:
        """Return an ordinary client of one node of a cluster."""
        pool = single_node_pool(self._settings, self._redis)
        pool.connection_kwargs["host"], pool.connection_kwargs["port"] = address
        return Redis.from_pool(pool)

    async def _open_socket(self, address: Address | None = None) -> Any:
        if self._pool is None:
            self._pool = single_node_pool(self._settings, self._redis)
        connection: Any = self._pool.make_connection()
        # Timeouts and retries are ours: those of redis-py would cut blocking calls and repeat scripts.
        connection.retry = _NO_RETRY
        if address is not None:
            connection.host, connection.port = address
        await _log_in(connection)
        return connection

    async def _connect_to_server(self) -> Any:
        """Connect to the one server of the URL; raise ResponseError when it is a node of a cluster.

        This is checked before any script runs there: after a script with keys of two slots, Valkey 9.1 fails every
        script of every client of that node.
        """
        connection = await self._open_socket()
        is_server = False
        try:
            await connection.send_command("HELLO")
            about: Any = ()
            try:
                with contextlib.suppress(ResponseError):  # a proxy may not know the command
                    about = await connection.read_response()
            except AuthenticationError as refusal:
                # Redis 7 explains how to say HELLO, which no user has asked for.
                raise AuthenticationError("Authentication required.") from refusal
            if _read(about, lambda about: b"cluster" in about):
                raise ResponseError(describe_cluster(mask_dsn(self._settings.redis_dsn)))
            is_server = True
        finally:
            if not is_server:
                await connection.disconnect(nowait=True)
        return connection

    async def _connect_to_owner(self, route: SlotRoute) -> Any:
        """Connect to the node of a cluster that owns the slot; other nodes are asked who that is."""
        unreachable: dict[Address, BaseException] = {}
        for _ in range(1 + MOST_REDIRECTS):
            address = route.choose(unreachable)
            if address is None or len(unreachable) == MOST_UNREACHABLE:
                break
            try:
                connection = await self._open_socket(address)
                if address == route.owner or await self._is_owner(route, connection, address):
                    return connection
            except LOST_REPLY_ERRORS as error:
                if is_refused_login(error):
                    raise
                route.doubt(address)
                unreachable[address] = error
            if route.owner in unreachable:
                break  # no other node has taken over from it yet
        disagreement = f"The nodes of the Redis Cluster do not agree which of them owns slot {route.slot}"
        raise next(reversed(unreachable.values()), RedisConnectionError(disagreement))

    async def _is_owner(self, route: SlotRoute, connection: Any, address: Address) -> bool:
        """Ask a node for the map of the cluster; close the connection when another node owns the slot."""
        is_owner = False
        try:
            await connection.send_command("CLUSTER", "SLOTS")
            reply = await connection.read_response()
            _read(reply, lambda slots: route.learn(slots, address))
            if route.owner is None:
                raise RedisConnectionError(f"No node of the Redis Cluster serves slot {route.slot}")
            is_owner = address == route.owner
        finally:
            if not is_owner:
                await connection.disconnect(nowait=True)
        return is_owner


def _read(reply: Any, read: Callable[[Any], T]) -> T:
    try:
        return read(reply)
    except NONSENSE as error:
        raise lost_by_nonsense(error) from error


async def _log_in(connection: Any) -> None:
    """Open the socket and log in. A cancellation always takes effect.

    ``asyncio.wait_for``, which redis-py connects with, swallows a cancellation that arrives in the same moment as the
    connection. The caller would then block in Redis although it was cancelled.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        await connection.connect()
    except NONSENSE as error:
        # redis-py does not check the reply of a Sentinel, nor whether a host name can be one.
        raise RedisConnectionError(
            f"The connection to Redis could not be opened ({clean_foreign_text(str(error))}). If a Sentinel named its "
            "address, that Sentinel gave an answer that makes no sense."
        ) from error
    if task is not None and task.cancelling() > before:
        await connection.disconnect(nowait=True)
        raise asyncio.CancelledError
