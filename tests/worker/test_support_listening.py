"""The servers of other tests: whoever comes while one ends, no socket of it stays open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from listening import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket() as client:
        # The listener has ended when it is used, so it may block; with its socket open it would for ever.
        client.settimeout(5)
        yield client


def is_hung_up(client: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


async def wait_for_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize("turns", range(6))
async def test_who_comes_at_the_end_is_hung_up_on(client: socket.socket, turns: int) -> None:
    """After some turns the listener has accepted, and nobody serves the connection yet."""
    async with Listener(wait_for_words) as listener:
        client.connect(("127.0.0.1", listener.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    assert is_hung_up(client)


async def test_a_handler_need_not_hang_up(client: socket.socket) -> None:
    async def say_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async with Listener(say_hello) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


async def test_what_a_handler_raises_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise RuntimeError("no such thing")

    async with Listener(fail) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert "a handler of a listener failed" in caplog.text
