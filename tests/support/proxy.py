"""A TCP proxy in front of Redis that fails on command, the way networks do.

It knows nothing of the Redis protocol: it relies on a connection carrying one request (or pipeline)
at a time, which holds for the clients we test.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

CHUNK_BYTES = 256 * 1024


@dataclass
class _Cut:
    """An order to swallow replies: how many are left, and for which requests."""

    left: int
    matching: bytes | None


@dataclass(eq=False)
class _Link:
    """One client connection and its counterpart at the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    cut_reply: bool = False
    seen_tail: bytes = b""

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class RedisProxy:
    """Forwards to one Redis; use as `async with RedisProxy(port) as proxy`.

    `delay_seconds`  added to every reply
    `refuse`         new connections are closed at once
    `blackhole`      connections stay open and bytes vanish, as behind a dead link
    `cut_replies`    how many replies were swallowed so far
    """

    def __init__(
        self, server_port: int, server_host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.delay_seconds = 0.0
        self.refuse = False
        self.blackhole = False
        self.cut_replies = 0
        self.connections_made = 0
        self._upstream = (server_host, server_port)
        self._tls = tls
        self._cuts: list[_Cut] = []
        self._links: set[_Link] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None, "start the proxy first"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def dsn(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def cut_next_reply(self, n: int = 1, matching: bytes | None = None) -> None:
        """Let the next `n` requests (that contain `matching`) reach Redis, and lose their replies.

        The client's connection is closed when the reply arrives: by then Redis has done the work.
        """
        self._cuts.append(_Cut(n, matching))

    def cut_all(self) -> None:
        """Close every open connection now."""
        for link in list(self._links):
            link.abort()

    async def start(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def stop(self) -> None:
        assert self._listener is not None, "start the proxy first"
        self._listener.close()
        self.cut_all()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._listener.wait_closed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections_made += 1
        try:
            if not self.refuse:
                await self._serve(reader, writer)
        except OSError:
            pass  # the server behind us is away; the client sees a closed connection
        except asyncio.CancelledError:
            pass  # stop(): swallowed, or asyncio would report the handler as failed
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._upstream)
        link = _Link(client=writer, server=to_server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump_requests(link, reader))
                both.create_task(self._pump_replies(link, from_server))
        except* OSError:
            pass  # one side went away; the finally clause closes the other
        finally:
            self._links.discard(link)
            link.abort()

    async def _pump_requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self.blackhole:
                continue
            self._note_request(link, chunk)
            link.server.write(chunk)
            await link.server.drain()
        link.abort()

    def _note_request(self, link: _Link, chunk: bytes) -> None:
        if link.cut_reply:
            return
        # The end of the last chunk is kept: what we look for may lie across two reads.
        seen = link.seen_tail + chunk
        for cut in self._cuts:
            if cut.left and (cut.matching is None or cut.matching in seen):
                cut.left -= 1
                link.cut_reply = True
                seen = b""
                break
        self._cuts = [cut for cut in self._cuts if cut.left]
        longest = max((len(cut.matching) for cut in self._cuts if cut.matching), default=1)
        link.seen_tail = seen[-(longest - 1) :] if longest > 1 else b""

    async def _pump_replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        # A reply waits in the queue for its own time: were each one slept for in turn, a burst of
        # small replies would be delayed by the sum instead of by one delay.
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due_at, chunk = await waiting.get()
                if due_at > loop.time():
                    await asyncio.sleep(due_at - loop.time())
                link.client.write(chunk)
                await link.client.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if self.blackhole:
                    continue
                if link.cut_reply:
                    self.cut_replies += 1
                    break
                waiting.put_nowait((loop.time() + self.delay_seconds, chunk))
        finally:
            delivering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivering
        link.abort()
