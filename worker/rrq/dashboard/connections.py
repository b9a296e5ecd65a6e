"""Connections of clients: limits the time and size of a request head, and closes connections when there are too many.

It works between the socket and aiohttp, which has no deadline for the head of a request and no limit per peer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Final, cast

from aiohttp import web

from rrq.dashboard.limits import MOST_CONNECTIONS, MOST_CONNECTIONS_PER_PEER, Quota
from rrq.dashboard.policy import AccessPolicy, find_client, is_proxy

logger = logging.getLogger(__name__)

# A browser opens connections before it needs them, and opens another when one was closed.
_HEAD_SECONDS: Final = 10.0
#: After an answer: time to read it and to send the next request.
_NEXT_HEAD_SECONDS: Final = 60.0
#: Includes cookies of other programs on the same host name.
_LARGEST_HEAD: Final = 32 * 1024
_READ_BYTES: Final = 16 * 1024
# Time to read a refusal while the server discards the rest of the request.
_LINGERING_SECONDS: Final = 2.0
_SHUTDOWN_SECONDS: Final = 2.0
_WARNING_SECONDS: Final = 60.0
_HEAD_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


class Stage(Enum):
    """What a connection is doing; the value is its rank in the quotas."""

    READING = 0
    STREAMING = 1
    ANSWERING = None


class Connection(asyncio.BufferedProtocol):
    """Passes the bytes of a connection to aiohttp, within the limits."""

    def __init__(self, http: asyncio.Protocol, limiter: "ConnectionLimiter") -> None:
        self.stage = Stage.READING
        self.peer = ""
        self._http = http
        self._limiter = limiter
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        # A fixed size, because asyncio reads up to 256 KiB at once by default.
        self._buffer = bytearray(_READ_BYTES)
        self._head_bytes = 0
        self._head_tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._http.connection_made(transport)
        self._expect_head(_HEAD_SECONDS)
        self._limiter.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._limiter.leave(self)
        self._cancel_deadline()
        self._http.connection_lost(error)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        data = bytes(memoryview(self._buffer)[:size])
        if self._is_head_too_large(data):
            assert self._transport is not None
            self._transport.write(_TOO_LARGE)
            self.abort()
            return
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Suspend the limits of the head while a request is answered."""
        self._cancel_deadline()
        self._head_bytes = -1
        self.stage = Stage.ANSWERING
        try:
            yield
        finally:
            self.stage = Stage.READING
            self._expect_head(_NEXT_HEAD_SECONDS)

    @contextmanager
    def at(self, stage: Stage) -> Iterator[None]:
        """Set another stage for a part of the answer."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    def abort(self) -> None:
        """Close at once, without waiting for a client that may not read."""
        if self._transport is not None:
            self._transport.abort()

    def _expect_head(self, seconds: float) -> None:
        if self._transport is None:
            return
        self._head_bytes, self._head_tail = 0, b""
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _is_head_too_large(self, data: bytes) -> bool:
        if self._head_bytes < 0:
            return False  # these bytes are a body, which its reader limits
        seen = self._head_tail + data
        end = seen.find(_HEAD_END)
        self._head_bytes += len(data) if end < 0 else end
        self._head_tail = seen[1 - len(_HEAD_END) :]
        if self._head_bytes > _LARGEST_HEAD:
            return True
        if end >= 0:
            self._head_bytes = -1
        return False


def find_connection(request: web.Request) -> Connection:
    """Return the connection of a request. Raises ConnectionResetError when the client has disconnected."""
    if request.transport is None:
        raise ConnectionResetError("The client has disconnected.")
    connection = request.transport.get_protocol()
    assert isinstance(connection, Connection)
    return connection


class ConnectionLimiter:
    """Counts the connections of all peers, and closes one when there are too many."""

    def __init__(self, policy: AccessPolicy) -> None:
        self._policy = policy
        self._quota = Quota[Connection](
            MOST_CONNECTIONS, MOST_CONNECTIONS_PER_PEER, lambda connection: connection.stage.value
        )
        self._next_warning_at = 0.0

    def enter(self, connection: Connection) -> None:
        # All clients of a proxy have its address, so their requests are counted one by one instead.
        may_have_all = is_proxy(self._policy, connection.peer)
        leaving = self._quota.take(self._owner_of(connection), connection, may_have_all=may_have_all)
        if leaving is not None:
            leaving.abort()
            self._warn(leaving.peer)

    def leave(self, connection: Connection) -> None:
        self._quota.free(self._owner_of(connection), connection)

    def _owner_of(self, connection: Connection) -> str:
        return find_client(self._policy, connection.peer, ())

    def _warn(self, peer: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_warning_at:
            self._next_warning_at = now + _WARNING_SECONDS
            logger.warning("connection closed to make room for a new one", extra={"peer": peer})


@asynccontextmanager
async def serve(app: web.Application, policy: AccessPolicy, host: str, port: int) -> AsyncIterator[str]:
    """Serve the dashboard while the context lasts; yields ``HOST:PORT`` as bound."""
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        lingering_time=_LINGERING_SECONDS,
        read_bufsize=_READ_BYTES,
        # The page never compresses what it sends, and a small compressed body could become a large one.
        auto_decompress=False,
    )
    await runner.setup()
    try:
        http, limiter = runner.server, ConnectionLimiter(policy)
        assert http is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(http(), limiter), host or None, port, backlog=128
        )
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        try:
            yield f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
        finally:
            server.close()
    finally:
        await runner.cleanup()
