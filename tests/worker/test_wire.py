"""One connection, many calls: whatever cuts a call short, no other call gets its answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from rrq.connection import LOST_REPLY_ERRORS, Wire, open_redis
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis

# More than the kernel takes from a process whose Redis does not read.
LARGE = b"x" * 64_000_000


@pytest.fixture
async def wire(own_redis: EmbeddedRedis) -> AsyncIterator[Wire]:
    settings = RRQSettings(redis_dsn=own_redis.dsn, redis_socket_timeout_seconds=10)
    redis = open_redis(settings)
    wire = Wire(settings, redis)
    yield wire
    await wire.aclose()
    await redis.aclose()


async def echo(wire: Wire, text: str) -> str:
    """Return what Redis answered, or nothing when the connection was lost."""
    try:
        answer: bytes = await wire.call("ECHO", text)
    except LOST_REPLY_ERRORS:
        return ""
    return answer.decode()


@pytest.mark.parametrize("turns", range(4))
async def test_a_call_that_is_cancelled_while_it_is_written_leaves_no_answers_to_others(
    wire: Wire, own_redis: EmbeddedRedis, turns: int
) -> None:
    assert await echo(wire, "before") == "before"
    assert wire._link is not None
    writer = wire._link.connection._writer
    assert writer is not None
    own_redis.pause()
    try:
        early = [asyncio.create_task(echo(wire, f"early {n}")) for n in range(3)]
        cut = asyncio.create_task(wire.call("SET", "large", LARGE))
        await asyncio.sleep(0.1)
        assert not cut.done()
        cut.cancel()
        # Calls that come right away, and some turns of the event loop later.
        for _ in range(turns):
            await asyncio.sleep(0)
        late = [asyncio.create_task(echo(wire, f"late {n}")) for n in range(5)]
        await asyncio.sleep(0.05)
    finally:
        own_redis.resume()
    with pytest.raises(asyncio.CancelledError):
        await cut
    for n, answer in enumerate(await asyncio.gather(*early)):
        assert answer in (f"early {n}", "")
    for n, answer in enumerate(await asyncio.gather(*late)):
        assert answer in (f"late {n}", "")
    for n in range(3):
        answers = await asyncio.gather(*(echo(wire, f"{n} {m}") for m in range(5)))
        assert answers == [f"{n} {m}" for m in range(5)]
    # What was written of the large one still goes out, on a socket that nobody listens to.
    with contextlib.suppress(OSError):
        await asyncio.wait_for(writer.wait_closed(), 30)


async def test_a_connection_that_was_hung_up_behind_our_back_is_not_used_again(wire: Wire) -> None:
    assert await echo(wire, "before") == "before"
    link = wire._link
    assert link is not None
    # As redis-py does when a write fails: it would open the same connection again for the next one.
    await link.connection.disconnect(nowait=True)
    answers = await asyncio.gather(*(echo(wire, str(n)) for n in range(5)))
    assert all(answer in (str(n), "") for n, answer in enumerate(answers))
    await eventually(lambda: not link.is_open, 5, "the old link is still in use")
    assert wire._link is not link
    assert await echo(wire, "after") == "after"
