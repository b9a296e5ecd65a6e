"""One connection to Redis with many calls in flight, which is what the engine itself uses.

A thousand concurrent enqueues share a socket, and a worker needs no pool. A call whose answer was lost is never sent
again from here: only the caller knows whether it may be repeated. A call that a node of a Redis Cluster refused to run
is sent again, to the node that ``redis_cluster.py`` chooses. ``connector.py`` opens the sockets.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ClusterDownError, MovedError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rrq.broker.connection import LOST_REPLY_ERRORS, NONSENSE, REDIS_ERRORS, is_read_only
from rrq.broker.connector import Connector, lost_by_nonsense
from rrq.broker.redis_cluster import MOST_REDIRECTS, REFUSALS, Address, ClusterClient, SlotRoute, gate
from rrq.broker.scripts import Script, load_script
from rrq.broker.server_risks import SlotPlace
from rrq.runtime.backoff import jittered_delay_seconds
from rrq.settings import RRQSettings

__all__ = ["PipelinedConnection"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Some turns of the event loop: bytes that lie in the socket need two of them to become an answer.
_LAST_READ_SECONDS = 0.05
#: Before a call that a node of a cluster refused is sent again: the first pause, which doubles up to the longest.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


class _Link:
    """One open socket, the calls waiting for its answers, and the task that reads them.

    It ends when redis-py hangs up, which redis-py does by itself when a write or a read is cut short, also by a
    cancellation. redis-py would open the same connection again for the next call, and answers on the new socket
    would go to calls that wait on the old one.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = connection
        self.pending: deque[asyncio.Future[Any]] = deque()
        self._is_open = True
        self._is_retired = False
        self.reader = self.loop.create_task(self._read(), name="rrq-connection-reader")
        # A reader that is cancelled before its first line, because the loop ends, has closed nothing.
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
                    # An error that Redis itself answered belongs to the oldest call alone. After any other error
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
        # Whatever it was, the calls that wait on this socket have lost their answers.
        except Exception as failure:
            logger.exception("answers of Redis cannot be read, closing the connection")
            error = RedisConnectionError(f"The answers of Redis could not be read: {failure!r}")
        finally:
            self.close(error)
            await self.connection.disconnect(nowait=True)

    def _hang_up(self) -> None:
        if self.connection.is_connected:
            self.connection._close()  # type: ignore[no-untyped-call]  # the one way that awaits nothing

    def _answer(self, reply: Any) -> None:
        if not self.pending:
            raise RedisConnectionError("Redis sent an answer to no call of ours.")
        future = self.pending.popleft()
        if future.done():
            return  # its caller was cancelled meanwhile
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def retire(self) -> None:
        """Close the socket once the calls in flight are answered. The caller sends nothing on it any more."""
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


class PipelinedConnection:
    """A connection to Redis that reopens itself and carries many calls at once.

    It binds itself to the event loop that uses it and starts anew on another loop, so synchronous code can build it and
    it survives several ``asyncio.run``.
    """

    def __init__(self, settings: RRQSettings, redis: Redis) -> None:
        self._settings = settings
        self._redis = redis
        self._route = redis.route if isinstance(redis, ClusterClient) else None
        self._connector = Connector(settings, redis, self._route)
        self._link: _Link | None = None
        # To nodes that the calls no longer go to, while answers of them are still to come.
        self._retired: set[_Link] = set()
        self._opening: asyncio.Lock | None = None
        self._opening_loop: asyncio.AbstractEventLoop | None = None
        #: Called for each new socket, before anything is sent on it.
        self.on_connect: Callable[[], None] | None = None
        #: Whether a call that a node of a cluster refused is sent again from here. False for a caller that has to
        #: reconcile with the new server first.
        self.resends_refused = True
        #: Called after each script with its name, how long it took and what it raised.
        self.on_call: Callable[[str, float, BaseException | None], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call made now, without awaiting anything before, goes out on the present socket."""
        link = self._link
        return link is not None and link.is_open and link.loop is asyncio.get_running_loop()

    @property
    def place(self) -> SlotPlace | None:
        """Which node of a Redis Cluster this connection speaks to; None where there is no cluster."""
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

        ``timeout_seconds`` is the time beyond which the connection counts as dead; by default that of the settings.
        Blocking commands pass their own, longer than the block. ``read`` makes a value of the answer. An answer that
        it cannot read may belong to another call, so it counts as lost and the connection is closed.
        """
        # Packed before anything else: a command that cannot be packed must not leave a place in the queue.
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
            if read is None:
                return reply
            try:
                return read(reply)
            except NONSENSE as error:
                raise lost_by_nonsense(error) from error
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
            # After a write that failed no call waits for this answer; asyncio would complain of that.
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
                # As if the connection were lost: callers know how to wait for its return.
                raise RedisConnectionError(f"The call was refused: {route.describe(refusal)}") from refusal
            if not is_moved or redirects > 1:
                await asyncio.sleep(jittered_delay_seconds(pause_seconds, 0.5, random.uniform))
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            try:
                return await send()
            except REFUSALS as again:
                refusal = again

    def _look_elsewhere(self, route: SlotRoute, link: _Link, refusal: ResponseError) -> None:
        """Make the next call look for the owner of the slot; calls in flight keep their answers."""
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
            # Nothing yields before the write, so answers come in the order of `pending`.
            await link.connection.send_packed_command(packed, check_health=False)
        except asyncio.CancelledError:
            link.close(RedisConnectionError("A call was cut short while it was written."))
            raise

    def run(
        self,
        name: str,
        keys: Sequence[Any],
        args: Sequence[Any],
        *,
        read: Callable[[Any], T],
        timeout_seconds: float | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Run the script ``lua/<name>.lua`` and return what ``read`` makes of its answer; see ``call``."""
        return self.run_script(load_script(name), keys, args, read=read, timeout_seconds=timeout_seconds)

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Any],
        args: Sequence[Any],
        *,
        read: Callable[[Any], T],
        timeout_seconds: float | None = None,
    ) -> T:
        """Run a script by its digest; a server that does not know it yet gets the source."""
        started_at, failure = monotonic(), None
        if self._route is not None:
            script, keys = gate(script), [*keys, self._route.gate_key]
        rest = (len(keys), *keys, *args)
        options: Any = {"timeout_seconds": timeout_seconds, "read": read}
        try:
            try:
                answer: T = await self.call("EVALSHA", script.sha, *rest, **options)
            except NoScriptError:
                # Some callers have to act on a new socket before anything is sent on it.
                if not self.is_open:
                    raise RedisConnectionError("The connection was lost between two tries.") from None
                answer = await self.call("EVAL", script.source, *rest, **options)
            return answer
        except REDIS_ERRORS as error:
            failure = error
            raise
        finally:
            if self.on_call is not None:
                self.on_call(script.name, monotonic() - started_at, failure)

    async def wait_on_lists(self, keys: Sequence[str], timeout_seconds: float) -> bool:
        """Block until one of these lists has an entry, and take it; False when the time is up."""
        # Redis takes 0 for "for ever"; the smallest wait it knows is a millisecond.
        seconds = max(0.001, timeout_seconds)
        longest_seconds = seconds + self._settings.redis_socket_timeout_seconds
        reply = await self.call("BLPOP", *keys, f"{seconds:.3f}", timeout_seconds=longest_seconds)
        return reply is not None

    async def aclose(self) -> None:
        """Close the socket, whatever state it is in. A later call opens a new one."""
        links, self._link = [*self._retired, *([self._link] if self._link else [])], None
        for link in links:
            if link.loop is not asyncio.get_running_loop():
                continue
            # In this order: closing TLS takes a moment, and a reader that was cancelled first would drop the socket
            # before.
            with contextlib.suppress(*REDIS_ERRORS):
                await link.connection.disconnect()
            link.close(RedisConnectionError("The connection was closed by this process."))
            # Waited for and not awaited: a cancellation of this task must not be taken for one of the reader.
            await asyncio.wait({link.reader})

    def _doubt(self, link: _Link, answer: asyncio.Future[Any], timeout_seconds: float) -> None:
        """Give up a little later: an answer that came while this process stood still has yet to be read."""
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
                # The other side hung up: calls that wait for an answer must not wait for ever.
                self._link.close(RedisConnectionError("The connection to Redis was lost."))
                if self._route is not None:
                    # Its node may hang, and others may have taken over from it.
                    self._route.doubt(self._link.address)
            connection = await self._connector.connect()
            connection.socket_timeout = None
            if self.on_connect:
                self.on_connect()
            self._link = _Link(connection)
            return self._link

    @contextlib.asynccontextmanager
    async def open_subscriber(self) -> AsyncIterator[Redis]:
        """Yield a client to subscribe with; on a cluster that of the node that owns the slot."""
        if self._route is None:
            yield self._redis
            return
        link = await self._open()
        async with self._connector.open_client(link.address) as subscriber:
            yield subscriber
