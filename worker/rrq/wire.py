"""One connection to Redis with many calls in flight, which is what the engine itself uses.

A thousand concurrent enqueues share a socket, and a worker needs no pool. Nothing whose answer was lost is ever
sent twice from here: whether it may be repeated is for the caller to know. What a node of a Redis Cluster refused
to run is sent again, if need be to another node; to which, ``cluster.py`` decides.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import monotonic
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rrq.backoff import jittered_delay_seconds
from rrq.checkup import SlotPlace
from rrq.cluster import (
    MOST_REDIRECTS,
    MOST_UNREACHABLE,
    REFUSALS,
    Address,
    ClusterClient,
    SlotRoute,
    describe_cluster,
    gate,
)
from rrq.connection import (
    LOST_REPLY_ERRORS,
    NONSENSE,
    REDIS_ERRORS,
    is_read_only,
    is_refused_login,
    mask_dsn,
    single_node_pool,
)
from rrq.masking import clean_foreign_text
from rrq.scripts import Script
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

_NO_RETRY = Retry(NoBackoff(), 0)
#: Some turns of the event loop: what lies in the socket needs two of them to become an answer.
_LAST_READ_SECONDS = 0.05
#: Before a call that a node of a cluster refused is sent again: the first pause, which doubles up to the longest.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


async def _connect(connection: Any) -> None:
    """Open the socket and log in; a cancellation is never lost on the way.

    ``asyncio.wait_for``, which redis-py connects with, swallows one that comes in the same moment
    as the connection, and the caller would go on to block in Redis although it was told to stop.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        await connection.connect()
    except NONSENSE as error:
        # redis-py reads what a Sentinel says as it comes. Also a host name that cannot be one ends here.
        raise RedisConnectionError(
            f"The connection to Redis could not be opened ({clean_foreign_text(str(error))}). If a Sentinel was asked for "
            "it, that gave an answer that makes no sense."
        ) from error
    if task is not None and task.cancelling() > before:
        await connection.disconnect(nowait=True)
        raise asyncio.CancelledError


class _Link:
    """One open socket, the calls waiting for its answers, and the task that reads them.

    Over once redis-py hangs up, which it does by itself when a write or a read is cut short, also by a
    cancellation. It would open the same connection again for the next call, and answers on the new socket
    would go to those who wait for some on the old one.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = connection
        self.pending: deque[asyncio.Future[Any]] = deque()
        self._is_open = True
        self._is_retired = False
        self.reader = self.loop.create_task(self._read(), name="rrq-wire-reader")
        # One that is cancelled before its first line, because the loop ends now, has hung up nothing.
        self.reader.add_done_callback(lambda _: self._hang_up())

    @property
    def is_open(self) -> bool:
        return self._is_open and self.connection.is_connected

    @property
    def address(self) -> Address:
        """Host and port of the node of a cluster."""
        connection: Any = self.connection
        return connection.host, connection.port

    async def _read(self) -> None:
        error: BaseException = RedisConnectionError("The connection to Redis was closed.")
        try:
            while self.pending or not self._is_retired:
                try:
                    reply = await self.connection.read_response()
                except RedisConnectionError:
                    raise
                except RedisError as refusal:
                    # An error that Redis itself answered belongs to the oldest call alone. After any other
                    # redis-py has hung up.
                    if not self.connection.is_connected:
                        raise RedisConnectionError(
                            f"The connection to Redis was lost: {refusal}"
                        ) from refusal
                    self._answer(refusal)
                else:
                    self._answer(reply)
        except LOST_REPLY_ERRORS as lost:
            error = lost
        # Whatever it was, those who wait for an answer on this socket have lost it.
        except Exception as failure:
            logger.exception("answers of Redis cannot be read, the connection is closed")
            error = RedisConnectionError(f"The answers of Redis could not be read: {failure!r}")
        finally:
            self.close(error)
            await self.connection.disconnect(nowait=True)

    def _hang_up(self) -> None:
        if self.connection.is_connected:
            self.connection._close()  # type: ignore[no-untyped-call]  # the one way that awaits nothing

    def _answer(self, reply: Any) -> None:
        if not self.pending:
            raise RedisConnectionError("Redis sent an answer that nobody asked for.")
        future = self.pending.popleft()
        if future.done():
            return  # its caller was cancelled meanwhile
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def retire(self) -> None:
        """Hang up once the calls in flight are answered. Nothing may be sent any more."""
        self._is_retired = True
        if not self.pending:
            self.close(RedisConnectionError("The connection to Redis was closed."))

    def close(self, error: BaseException) -> None:
        """Fail every call in flight and drop the socket. May be called twice."""
        if not self._is_open:
            return
        self._is_open = False
        if self.loop.is_closed():
            return
        while self.pending:
            future = self.pending.popleft()
            if not future.done():
                future.set_exception(error)
        # The reader closes the socket on its way out.
        if asyncio.current_task() is not self.reader:
            self.reader.cancel()


def _make_sense(reply: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(reply)
    except NONSENSE as error:
        raise RedisConnectionError(
            f"Redis gave an answer that makes no sense, perhaps to another question ({clean_foreign_text(str(error))}). "
            "The connection is closed."
        ) from error


class Wire:
    """A connection to Redis that reopens itself and carries many calls at once.

    It binds itself to the event loop that uses it and starts anew on another loop, so that it can
    be built in synchronous code and survive several ``asyncio.run``.
    """

    def __init__(self, settings: RRQSettings, redis: Redis) -> None:
        self._settings = settings
        self._redis = redis
        self._route = redis.route if isinstance(redis, ClusterClient) else None
        self._pool: Any = None
        self._link: _Link | None = None
        # To nodes that were left for another one while answers are still to come.
        self._retired: set[_Link] = set()
        self._opening: asyncio.Lock | None = None
        self._opening_loop: asyncio.AbstractEventLoop | None = None
        #: Called for each new socket, before anything is sent on it.
        self.on_connect: Callable[[], None] | None = None
        #: Whether a call that a node of a cluster refused is sent again from here. Not for a caller who has to agree
        #: with another server on something before that.
        self.resends_refused = True
        #: Called after each script with its name, how long it took and what it raised.
        self.on_call: Callable[[str, float, BaseException | None], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call made now, without awaiting anything before, goes out on the socket there is."""
        link = self._link
        return link is not None and link.is_open and link.loop is asyncio.get_running_loop()

    @property
    def place(self) -> SlotPlace | None:
        """Which node of a Redis Cluster this wire speaks to; None where there is no cluster."""
        return None if self._route is None else self._route.place

    async def ensure_open(self) -> None:
        """Open a socket if there is none."""
        if not self.is_open:
            await self._open()

    async def call(
        self,
        *command: Any,
        timeout_seconds: float | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Send one command and return the answer; a Redis error is raised as itself.

        ``timeout_seconds`` is the time beyond which the connection counts as dead; by default that
        of the settings. Blocking commands pass their own, longer than the block. ``read`` makes a value
        of the answer. One that it cannot read may belong to another call: it counts as lost, with the
        connection.
        """
        # Packed before anything else: what cannot be packed must not leave a place in the queue.
        packed = hiredis.pack_command(command)
        if timeout_seconds is None:
            timeout_seconds = self._settings.redis_socket_timeout_seconds
        try:
            return await self._send(packed, timeout_seconds, read)
        except ResponseError as refusal:
            if self._route is None or not isinstance(refusal, REFUSALS):
                raise
            failure = refusal
        return await self._send_again(self._route, failure, lambda: self._send(packed, timeout_seconds, read))

    async def _send(self, packed: Any, timeout_seconds: float, read: Callable[[Any], Any] | None) -> Any:
        link = self._link
        if link is None or not self.is_open:
            link = await self._open()
        answer = link.loop.create_future()
        link.pending.append(answer)
        timer = link.loop.call_later(timeout_seconds, self._doubt, link, answer, timeout_seconds)
        try:
            await self._write(link, packed)
            reply = await answer
            return reply if read is None else _make_sense(reply, read)
        except REFUSALS as refusal:
            if self._route is not None and self._link is link:
                self._look_elsewhere(self._route, link, refusal)
            raise
        except ResponseError as refusal:
            if is_read_only(refusal):
                # The server was demoted by a fail-over: the next call asks for the new master.
                link.close(RedisConnectionError("The server became a replica."))
            raise
        except LOST_REPLY_ERRORS as lost:
            link.close(lost)
            raise
        finally:
            timer.cancel()
            # A write that failed leaves an answer nobody waits for; asyncio would complain of it.
            answer.cancel()
            if not answer.cancelled():
                answer.exception()

    async def _send_again(
        self, route: SlotRoute, refusal: ResponseError, send: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Send a call until a node takes it, for at most the time in which Redis has to answer."""
        redirects, pause_seconds = 0, _FIRST_PAUSE_SECONDS
        gives_up_at = monotonic() + self._settings.redis_socket_timeout_seconds
        while True:
            is_moved = isinstance(refusal, MovedError)
            redirects += is_moved
            if not self.resends_refused or redirects > MOST_REDIRECTS or monotonic() > gives_up_at:
                # As if the connection were lost, because that is what callers wait out.
                raise RedisConnectionError(f"The call was refused: {route.describe(refusal)}") from refusal
            if not is_moved or redirects > 1:
                await asyncio.sleep(jittered_delay_seconds(pause_seconds, 0.5, random.uniform))
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            try:
                return await send()
            except REFUSALS as again:
                refusal = again

    def _look_elsewhere(self, route: SlotRoute, link: _Link, refusal: ResponseError) -> None:
        """Have the next call look for the owner of the slot; the others in flight keep their answers."""
        if isinstance(refusal, MovedError):
            route.redirect(refusal, link.address)
        elif isinstance(refusal, ClusterDownError):
            route.doubt(link.address)
        else:
            return  # the slot is still moving: its owner stays the one to ask
        self._link = None
        self._retired.add(link)
        link.reader.add_done_callback(lambda _: self._retired.discard(link))
        link.retire()

    async def _write(self, link: _Link, packed: Any) -> None:
        try:
            # Up to the write itself nothing yields, so answers come in the order of `pending`.
            await link.connection.send_packed_command(packed, check_health=False)
        except asyncio.CancelledError:
            link.close(RedisConnectionError("A call was cut short while it was written."))
            raise

    async def run(
        self,
        script: Script,
        keys: Sequence[Any],
        args: Sequence[Any],
        *,
        timeout_seconds: float | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Run a script by its digest; a server that does not know it yet gets the source.

        ``read`` is that of ``call``.
        """
        started_at, failure = monotonic(), None
        if self._route is not None:
            script, keys = gate(script), [*keys, self._route.gate_key]
        rest = (len(keys), *keys, *args)
        options: Any = {"timeout_seconds": timeout_seconds, "read": read}
        try:
            try:
                return await self.call("EVALSHA", script.sha, *rest, **options)
            except NoScriptError:
                # A caller that has to know of a new socket first must not get one in between.
                if not self.is_open:
                    raise RedisConnectionError("The connection was lost between two tries.") from None
                return await self.call("EVAL", script.source, *rest, **options)
        except REDIS_ERRORS as error:
            failure = error
            raise
        finally:
            if self.on_call is not None:
                self.on_call(script.name, monotonic() - started_at, failure)

    async def aclose(self) -> None:
        """Close the socket, whatever state it is in. The wire may be used again and then opens a new one."""
        links, self._link = [*self._retired, *([self._link] if self._link else [])], None
        for link in links:
            if link.loop is not asyncio.get_running_loop():
                continue
            # In this order: a TLS connection needs a moment to say goodbye, and a reader that was
            # cancelled first would drop the socket without it.
            with contextlib.suppress(*REDIS_ERRORS):
                await link.connection.disconnect()
            link.close(RedisConnectionError("The connection was closed by this process."))
            # Waited for and not awaited: our own cancellation is not taken for that of the reader.
            await asyncio.wait({link.reader})

    def _doubt(self, link: _Link, answer: asyncio.Future[Any], timeout_seconds: float) -> None:
        """Give up, unless the answer is here: one that came while this process stood still has yet to be read."""
        link.loop.call_later(_LAST_READ_SECONDS, self._give_up, link, answer, timeout_seconds)

    def _give_up(self, link: _Link, answer: asyncio.Future[Any], timeout_seconds: float) -> None:
        if not answer.done():
            link.close(RedisTimeoutError(f"Redis did not answer within {timeout_seconds:g} s."))

    async def _open(self) -> _Link:
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening_loop is not loop:
            self._opening, self._opening_loop = asyncio.Lock(), loop
        async with self._opening:
            if self._link and self._link.is_open and self._link.loop is loop:
                return self._link
            if self._link is not None and self._link.loop is loop:
                # Hung up without our doing: whoever waits for an answer must not wait for ever.
                self._link.close(RedisConnectionError("The connection to Redis was lost."))
                if self._route is not None:
                    # Its node may hang, and others may have taken over from it.
                    self._route.doubt(self._link.address)
            if self._pool is None:
                self._pool = single_node_pool(self._settings, self._redis)
            route = self._route
            connection = await (self._connect_to_server() if route is None else self._connect_to_owner(route))
            connection.socket_timeout = None
            if self.on_connect:
                self.on_connect()
            self._link = _Link(connection)
            return self._link

    async def _connect(self, address: Address | None = None) -> Any:
        connection: Any = self._pool.make_connection()
        # Timeouts and retries are ours: redis-py's would cut blocking calls and repeat scripts.
        connection.retry = _NO_RETRY
        if address is not None:
            connection.host, connection.port = address
        await _connect(connection)
        return connection

    async def _connect_to_server(self) -> Any:
        """Connect to the one server of the URL; raise ResponseError when it is a node of a cluster.

        That is known before any script runs there: after one with keys of two slots, Valkey 9.1 fails every script
        of every client of that node.
        """
        connection = await self._connect()
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
            if _make_sense(about, lambda about: b"cluster" in about):
                raise ResponseError(describe_cluster(mask_dsn(self._settings.redis_dsn)))
            is_server = True
        finally:
            if not is_server:
                await connection.disconnect(nowait=True)
        return connection

    async def _connect_to_owner(self, route: SlotRoute) -> Any:
        """Connect to the node of a cluster that owns the slot, asking others for it if need be."""
        unreachable: dict[Address, BaseException] = {}
        for _ in range(1 + MOST_REDIRECTS):
            address = route.choose(unreachable)
            if address is None or len(unreachable) == MOST_UNREACHABLE:
                break
            try:
                connection = await self._connect(address)
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
        """Ask a node for the map of the cluster; the connection is closed when the slot is another's."""
        is_owner = False
        try:
            await connection.send_command("CLUSTER", "SLOTS")
            reply = await connection.read_response()
            _make_sense(reply, lambda slots: route.learn(slots, address))
            if route.owner is None:
                raise RedisConnectionError(f"No node of the Redis Cluster serves slot {route.slot}")
            is_owner = address == route.owner
        finally:
            if not is_owner:
                await connection.disconnect(nowait=True)
        return is_owner

    @contextlib.asynccontextmanager
    async def open_subscriber(self) -> AsyncIterator[Redis]:
        """Yield a client to subscribe with; on a cluster one of the node that owns the slot."""
        if self._route is None:
            yield self._redis
            return
        link = await self._open()
        pool = single_node_pool(self._settings, self._redis)
        pool.connection_kwargs["host"], pool.connection_kwargs["port"] = link.address
        async with Redis.from_pool(pool) as subscriber:
            yield subscriber
