"""The line between supervisor and child, with real sockets."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from rrq.broker.messages import BeatReply, LeaseState
from rrq.pod.channel import (
    BeatAnswer,
    ChildEnd,
    Failed,
    Farewell,
    Hello,
    InHand,
    Message,
    RenewYourself,
    Report,
    Retire,
    encode_message,
    make_channel,
    parse_message,
)
from waiting import eventually

MESSAGES: list[Message] = [
    Hello("w1", "abc", ["default"], {"redis_dsn": "redis://h", "worker_lease_seconds": 1.5}),
    Report("w1", True, False, "polling", 3, 10, 12.5, 99, {"counts": [["x", 1]], "series": []}),
    InHand(5.5, 7),
    Failed("no such module"),
    Farewell(0),
    BeatAnswer("w1", 1, False, 3, ["a", "b"]),
    Retire(),
    RenewYourself(),
]


def test_every_message_survives_encoding() -> None:
    for message in MESSAGES:
        line = encode_message(message)
        assert line.count(b"\n") == 1
        assert parse_message(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"nonsense\n", b'["Nobody", {}]\n', b'["Farewell", {"x": 1}]\n', b"[1]\n"]
)
def test_an_invalid_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        parse_message(line)


def test_an_answer_keeps_the_meaning_of_the_reply() -> None:
    reply = BeatReply(LeaseState.REAPED, True, 4, ("a",))
    assert BeatAnswer.of("w1", reply).reply == reply


async def test_both_ends_exchange_messages_and_notice_the_end() -> None:
    ours, theirs = make_channel()
    child = ChildEnd(os.dup(theirs.fileno()))
    theirs.close()
    heard: list[Message] = []
    ordered: list[Message] = []
    lost: list[bool] = []

    async def read() -> None:
        heard.extend([message async for message in ours.read()])

    reading = asyncio.create_task(read())
    child.listen(ordered.append, lambda: lost.append(True))
    child.send(MESSAGES[0])
    await asyncio.sleep(0)
    await eventually(lambda: ours.is_open, 30, "the line was not opened")
    ours.send(Retire())
    await eventually(lambda: bool(ordered), 30, "the order never came")
    child.send(Farewell(0))
    child._socket.shutdown(socket.SHUT_WR)
    await reading
    assert heard == [MESSAGES[0], Farewell(0)]
    await eventually(lambda: lost, 30, "the child did not notice that the line is closed")
    child.close()
    ours.close()


async def test_a_child_is_not_blocked_by_a_supervisor_that_does_not_read_or_has_died() -> None:
    ours, theirs = socket.socketpair()
    child = ChildEnd(os.dup(theirs.fileno()))
    theirs.close()
    for _ in range(200):
        child.send(Failed("x" * 10_000))
    assert child.has_backlog
    ours.close()
    lost: list[bool] = []
    child.listen(lambda _: None, lambda: lost.append(True))
    child.send(Farewell(0))
    await eventually(lambda: lost, 30, "nobody noticed")
    child.close()
