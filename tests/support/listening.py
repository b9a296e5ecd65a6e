"""A TCP server inside a test that leaves no socket open, whoever comes while it ends.

That of asyncio forgets two kinds: a connection that was accepted and has not come to its handler when the loop ends, and
that of a handler that was cancelled before it hung up. Python tells of such a socket when it collects it, which is in the
midst of another test.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]

#: How often the event loop turns between a connection and its handler: a task starts, and makes a transport, which tells
#: its protocol. One more, in case another Python takes longer.
_TURNS = 3


class Listener:
    """Serves every connection to a free port of this machine; `handle` need not hang up."""

    def __init__(self, handle: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._handle = handle
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Cancel all handlers and cut all connections. May be called twice."""
        if self._server is None:
            return
        # Accept no more, but do not close yet: a connection that was accepted and has no transport yet would get none.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        # A transport drops its socket a turn after it was told to.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Not a coroutine: asyncio would make a task of it, which may be cancelled before its first line.
    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        handler = asyncio.get_running_loop().create_task(self._handle(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(lambda task: self._part(task, writer))

    def _part(self, handler: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._handlers.discard(handler)
        writer.close()
        if not handler.cancelled() and (error := handler.exception()) is not None:
            message = "a handler of a listener failed"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
