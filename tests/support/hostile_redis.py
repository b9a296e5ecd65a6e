"""A server that logs its clients in like a Redis, and answers everything else as a test likes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from listening import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    #: What is sent as the answer to a command, piece by piece; an answer without end is allowed.
    Answer = Callable[[list[bytes]], AsyncIterator[bytes]]

#: Stands for the port of the server in what it answers.
PORT = b"{port}"
_HANDSHAKE = frozenset({b"AUTH", b"CLIENT", b"PING", b"SELECT"})
_MEBIBYTE = 1024 * 1024


class HostileRedis:
    """Use as ``async with HostileRedis(answer) as server``; ``answer`` gets the words of each command.

    ``greeting`` is what it says to HELLO.
    """

    def __init__(self, answer: Answer, *, greeting: bytes = b"+OK\r\n") -> None:
        self.connections = 0
        self._answer = answer
        self._greeting = greeting
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
                async for piece in self._choose(command)(command):
                    writer.write(piece.replace(PORT, b"%d" % self._listener.port))
                    await writer.drain()

    def _choose(self, command: list[bytes]) -> Answer:
        word = command[0].upper()
        if word == b"HELLO":
            return always(self._greeting)
        return always(b"+OK\r\n") if word in _HANDSHAKE else self._answer


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    header = await reader.readline()
    words = []
    for _ in range(int(header[1:] or 0)):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:-2])
    return words


#: What nobody says to HELLO: a number, nothing, no list.
ODD_GREETINGS = (b":1\r\n", b"$-1\r\n", b"*-1\r\n")


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


def listened(flood: bytes, answer: Answer) -> Answer:
    """Let clients subscribe and send them ``flood`` again and again; other commands get ``answer``."""

    async def answer_or_flood(command: list[bytes]) -> AsyncIterator[bytes]:
        if command[0].upper() != b"SUBSCRIBE":
            async for piece in answer(command):
                yield piece
            return
        channel = b"$%d\r\n%b\r\n" % (len(command[1]), command[1])
        yield b"*3\r\n$9\r\nsubscribe\r\n" + channel + b":1\r\n"
        message = b"*3\r\n$7\r\nmessage\r\n" + channel + flood
        while True:
            yield message * 2000
            await asyncio.sleep(0)

    return answer_or_flood


def build_observation(workers: int) -> bytes:
    """Return what a Redis with one empty queue and so many workers says to an operator."""
    worker = (
        b"*10\r\n$12\r\nw%011d\r\n$3\r\npod\r\n:3\r\n:10\r\n:0\r\n$2\r\n[]\r\n:4102444800000\r\n$5\r\nfirst\r\n"
        b":1700000000000\r\n:12345\r\n"
    )
    queue = b"*7\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n"
    listed = b"".join(worker % number for number in range(workers))
    return (
        b"*7\r\n:1700000000000\r\n*1\r\n"
        + queue
        + b"*%d\r\n" % workers
        + listed
        + b":0\r\n*0\r\n:0\r\n:0\r\n"
    )


async def differ(command: list[bytes]) -> AsyncIterator[bytes]:
    """Refuse each command in other words, many of them."""
    yield b"-ERR %d " % random.getrandbits(60) + b"E" * 60_000 + b"\r\n"


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
#: The same and worse for whoever looks at a Redis all the time.
HOSTILE_TO_OBSERVERS: dict[str, Answer] = HOSTILE_ANSWERS | {
    "a redirect to itself": always(b"-MOVED 1 127.0.0.1:" + PORT + b"\r\n"),
    "a reply that trickles": without_end(b"$1000\r\n", b"A", pause_seconds=0.1),
    "a flood of announcements and long errors": listened(b"$7\r\ndefault\r\n", differ),
    "a flood of announcements and as many workers as can be": listened(
        b"$7\r\ndefault\r\n", always(build_observation(13_000))
    ),
}


@contextlib.contextmanager
def hostile_process(answer: str) -> Iterator[str]:
    """Run a server of HOSTILE_TO_OBSERVERS in a process of its own, and return its URL."""
    process = subprocess.Popen([sys.executable, __file__, answer], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


async def _run(answer: str) -> None:
    async with HostileRedis(HOSTILE_TO_OBSERVERS[answer]) as server:
        print(server.url, flush=True)  # noqa: T201  read by the test
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
