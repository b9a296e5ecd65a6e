"""A server that logs its clients in like a Redis, and answers everything else as a test likes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from listening import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    #: What is sent as the answer to a command, piece by piece; an answer without end is allowed.
    Answer = Callable[[list[bytes]], AsyncIterator[bytes]]

_HANDSHAKE = frozenset({b"AUTH", b"CLIENT", b"HELLO", b"PING", b"SELECT"})
_MEBIBYTE = 1024 * 1024


class HostileRedis:
    """Use as ``async with HostileRedis(answer) as server``; ``answer`` gets the words of each command."""

    def __init__(self, answer: Answer) -> None:
        self.connections = 0
        self._answer = answer
        self._listener = Listener(self._serve)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.port}/0"

    async def __aenter__(self) -> Self:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while command := await _read_command(reader):
                async for piece in _say_ok() if command[0].upper() in _HANDSHAKE else self._answer(command):
                    writer.write(piece)
                    await writer.drain()


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    header = await reader.readline()
    words = []
    for _ in range(int(header[1:] or 0)):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:-2])
    return words


async def _say_ok() -> AsyncIterator[bytes]:
    yield b"+OK\r\n"


def always(reply: bytes) -> Answer:
    async def answer(command: list[bytes]) -> AsyncIterator[bytes]:
        yield reply

    return answer


def without_end(beginning: bytes, piece: bytes = b"A" * _MEBIBYTE, pause_seconds: float = 0.0) -> Answer:
    async def answer(command: list[bytes]) -> AsyncIterator[bytes]:
        yield beginning
        while True:
            yield piece
            await asyncio.sleep(pause_seconds)

    return answer


#: Everything that no reply of a Redis looks like, by what it does.
HOSTILE_ANSWERS: dict[str, Answer] = {
    "a text without end": without_end(b"$8589934592\r\n"),
    "a line without end": without_end(b"+"),
    "an error without end": without_end(b"-ERR "),
    "an array without end": without_end(b"*4294967295\r\n", b":0\r\n" * 100_000),
    "arrays in arrays without end": without_end(b"", b"*1\r\n" * 100_000),
    "four billion announced values": always(b"*4294967295\r\n:0\r\n"),
    "a million announced values in each of a thousand arrays": always(b"*1000000\r\n" * 1000),
    "pushed messages that nobody asked for": without_end(b"", b">1\r\n:0\r\n" * 10_000),
}
