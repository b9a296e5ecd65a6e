"""A TCP proxy in front of Redis that fails on command, the way networks do.

It knows nothing of the Redis protocol: it relies on a connection carrying one request (or pipeline)
at a time, which holds for the clients we test.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from listening import Listener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

CHUNK_BYTES = 256 * 1024


@dataclass
class _Cut:
    """An order to swallow replies, or to put another in front: how many are left, and for which requests."""

    left: int
    matching: bytes | None
    stray: bytes = b""


@dataclass(eq=False)
class _Link:
    """One client connection and its counterpart at the server.

    `is_dead` once bytes of it were lost: TCP delivers all that was sent in its order or nothing any more.
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    cut_reply: bool = False
    stray: bytes = b""
    is_dead: bool = False
    seen_tail: bytes = b""

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class RedisProxy:
    """Forwards to one Redis; use as `async with RedisProxy(port) as proxy`.

    `delay_seconds`  added to every reply
    `refuse`         new connections are closed at once
    `blackhole`      connections stay open and bytes vanish, as behind a dead link; one that lost some says
                     nothing again, also when the others do, until its client gives it up
    `cut_replies`    how many replies were swallowed so far
    `rewrite`        what replies are turned into, each chunk as it comes
    """

    def __init__(
        self, server_port: int, server_host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.delay_seconds = 0.0
        self.refuse = False
        self.blackhole = False
        self.cut_replies = 0
        self.rewrite: Callable[[bytes], bytes] | None = None
        self.connections_made = 0
        self._upstream = (server_host, server_port)
        self._is_tls = tls is not None
        self._cuts: list[_Cut] = []
        self._links: set[_Link] = set()
        self._listener = Listener(self._accept, tls=tls)

    @property
    def port(self) -> int:
        assert self._listener.port, "start the proxy first"
        return self._listener.port

    @property
    def dsn(self) -> str:
        return f"{'rediss' if self._is_tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    @property
    def is_undisturbed(self) -> bool:
        """Whether every order to cut or to confuse replies has found its request."""
        return not self._cuts

    def cut_next_reply(self, n: int = 1, matching: bytes | None = None) -> None:
        """Let the next `n` requests (that contain `matching`) reach Redis, and lose their replies.

        The client's connection is closed when the reply arrives: by then Redis has done the work.
        """
        self._cuts.append(_Cut(n, matching))

    def stray_next_reply(self, reply: bytes, matching: bytes) -> None:
        """Answer the next request that contains `matching` with what nobody asked for, and then as Redis does.

        No network does so; a client that has lost count of its calls sees the same.
        """
        self._cuts.append(_Cut(1, matching, reply))

    def cut_all(self) -> None:
        """Close every open connection now."""
        for link in list(self._links):
            link.abort()

    async def start(self) -> Self:
        await self._listener.start()
        return self

    async def stop(self) -> None:
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        try:
            if not self.refuse:
                await self._serve(reader, writer)
        except OSError:
            pass  # the server behind us is away; the client sees a closed connection
        finally:
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
            if self._loses(link):
                continue
            self._note_request(link, chunk)
            link.server.write(chunk)
            await link.server.drain()
        link.abort()

    def _loses(self, link: _Link) -> bool:
        """Tell whether what was just read is lost, and with it all that this link would carry after it."""
        link.is_dead = link.is_dead or self.blackhole
        return link.is_dead

    def _note_request(self, link: _Link, chunk: bytes) -> None:
        if link.cut_reply:
            return
        # The end of the last chunk is kept: what we look for may lie across two reads.
        seen = link.seen_tail + chunk
        for cut in self._cuts:
            if cut.left and (cut.matching is None or cut.matching in seen):
                cut.left -= 1
                link.cut_reply, link.stray = not cut.stray, cut.stray
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
                if not self._loses(link):
                    link.client.write(chunk)
                    await link.client.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if self._loses(link):
                    continue
                if link.cut_reply:
                    self.cut_replies += 1
                    break
                if self.rewrite is not None:
                    chunk = self.rewrite(chunk)
                waiting.put_nowait((loop.time() + self.delay_seconds, link.stray + chunk))
                link.stray = b""
        except OSError:
            if not self._loses(link):
                raise
        finally:
            delivering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivering
        # That the server hung up is lost like anything else that it said.
        if not self._loses(link):
            link.abort()
