"""The network between one pod, or the producers, and Redis: every connection goes through a proxy that fails on command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from proxy import RedisProxy

if TYPE_CHECKING:
    from collections.abc import Sequence


class Network:
    """What is done to it is done to the way to each server."""

    def __init__(self, *ports: int) -> None:
        self._proxies = {port: RedisProxy(port) for port in ports}

    async def start(self) -> Self:
        for proxy in self._proxies.values():
            await proxy.start()
        return self

    async def stop(self) -> None:
        await asyncio.gather(*(proxy.stop() for proxy in self._proxies.values()))

    def port_to(self, port: int) -> int:
        """Return where the server with this port is reached on this network."""
        return self._proxies[port].port

    def announce(self, sentinel_port: int, ports: Sequence[int]) -> None:
        """Have Sentinel tell where its servers are reached on this network, and not where they are.

        A port is replaced by one of as many digits, so that the reply stays well-formed.
        """
        names = {f"\r\n{port}\r\n": f"\r\n{self.port_to(port)}\r\n" for port in ports}
        assert all(len(told) == len(meant) for told, meant in names.items())

        def rewrite(reply: bytes) -> bytes:
            for told, meant in names.items():
                reply = reply.replace(told.encode(), meant.encode())
            return reply

        self._proxies[sentinel_port].rewrite = rewrite

    def slow_down(self, delay_seconds: float) -> None:
        for proxy in self._proxies.values():
            proxy.delay_seconds = delay_seconds

    def refuse(self, is_refused: bool) -> None:
        for proxy in self._proxies.values():
            proxy.refuse = is_refused

    def silence(self, is_silent: bool) -> None:
        for proxy in self._proxies.values():
            proxy.blackhole = is_silent

    def cut_all(self) -> None:
        for proxy in self._proxies.values():
            proxy.cut_all()

    def cut_replies(self, count: int, matching: bytes) -> None:
        for proxy in self._proxies.values():
            proxy.cut_next_reply(count, matching=matching)
