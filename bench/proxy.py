"""A TCP proxy that holds every chunk back for a fixed time, to stand in for a network.

Run as its own process: ``python bench/proxy.py UPSTREAM_PORT DELAY_MS``. It prints the port it
listens on as a JSON line and serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import sys
from collections import deque
from typing import cast


class DelayedPipe(asyncio.Protocol):
    """One direction of a connection: what arrives here leaves at ``peer`` a fixed time later."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        # In order of arrival with one timer for the oldest: two timers that fall due in the same
        # instant could otherwise swap their chunks.
        self._held: deque[tuple[float, bytes]] = deque()
        self.transport: asyncio.Transport | None = None
        self.peer: DelayedPipe | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._delay_seconds
        self._held.append((due, data))
        if len(self._held) == 1:
            loop.call_at(due, self._release)

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        while self._held and self._held[0][0] <= loop.time():
            _, data = self._held.popleft()
            if self.peer is not None and self.peer.transport is not None:
                self.peer.transport.write(data)
        if self._held:
            loop.call_at(self._held[0][0], self._release)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


class Entrance(DelayedPipe):
    """The client's side: opens the matching connection to Redis before it reads anything."""

    def __init__(self, upstream_port: int, delay_seconds: float) -> None:
        super().__init__(delay_seconds)
        self._upstream_port = upstream_port
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        upstream = DelayedPipe(self._delay_seconds)
        upstream.peer = self
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: upstream, "127.0.0.1", self._upstream_port)
        self.peer = upstream
        assert self.transport is not None
        self.transport.resume_reading()


async def serve(upstream_port: int, delay_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Entrance(upstream_port, delay_ms / 1000), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"event": "listening", "port": port}) + "\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    # select() waits with microsecond accuracy; epoll and uvloop round timers to whole
    # milliseconds, which would double a delay of half a millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(int(sys.argv[1]), float(sys.argv[2])))


if __name__ == "__main__":
    main()
