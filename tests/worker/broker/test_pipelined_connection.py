"""One connection, many calls: whatever cuts a call short, no other call gets its answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from proxy import RedisProxy
from rrq.broker.connection import LOST_REPLY_ERRORS, open_redis
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis

# More than the kernel takes from a process whose Redis does not read.
LARGE = b"x" * 64_000_000
# A map whose key is a list: no parser can make anything of it, and redis-py's raises what is no error of Redis.
UNREADABLE = b"%1\r\n*1\r\n:1\r\n:2\r\n"


@contextlib.asynccontextmanager
async def open_connection(dsn: str) -> AsyncIterator[PipelinedConnection]:
    settings = RRQSettings(redis_dsn=dsn, redis_socket_timeout_seconds=10)
    redis = open_redis(settings)
    connection = PipelinedConnection(settings, redis)
    yield connection
    await connection.aclose()
    await redis.aclose()


@pytest.fixture
async def connection(own_redis: EmbeddedRedis) -> AsyncIterator[PipelinedConnection]:
    async with open_connection(own_redis.dsn) as connection:
        yield connection


@pytest.fixture
async def proxy(own_redis: EmbeddedRedis) -> AsyncIterator[RedisProxy]:
    async with RedisProxy(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
async def odd_connection(proxy: RedisProxy) -> AsyncIterator[PipelinedConnection]:
    """A connection whose answers a test may confuse."""
    async with open_connection(proxy.dsn) as connection:
        assert await echo(connection, "before") == "before"
        yield connection


def is_connecting(connection: PipelinedConnection) -> bool:
    return connection._opening is not None and connection._opening.locked()


async def echo(connection: PipelinedConnection, text: str) -> str:
    """Return what Redis answered, or nothing when the connection was lost."""
    try:
        answer: bytes = await connection.call("ECHO", text)
    except LOST_REPLY_ERRORS:
        return ""
    return answer.decode()


@pytest.mark.parametrize("turns", range(4))
async def test_a_call_that_is_cancelled_while_it_is_written_leaves_no_answers_to_others(
    connection: PipelinedConnection, own_redis: EmbeddedRedis, turns: int
) -> None:
    assert await echo(connection, "before") == "before"
    link = connection._link
    assert link is not None
    writer = link.connection._writer
    assert writer is not None
    own_redis.pause()
    try:
        early = [asyncio.create_task(echo(connection, f"early {n}")) for n in range(3)]
        cut = asyncio.create_task(connection.call("SET", "large", LARGE))
        # Three small ones have gone out, and the kernel takes no more of the large one.
        await eventually(lambda: len(link.pending) == 4 and writer.transport.get_write_buffer_size() > 0)
        assert not cut.done()
        cut.cancel()
        # Calls that come right away, and some turns of the event loop later.
        for _ in range(turns):
            await asyncio.sleep(0)
        late = [asyncio.create_task(echo(connection, f"late {n}")) for n in range(5)]
        await eventually(lambda: not link.is_open and is_connecting(connection), 10, "no new connection")
    finally:
        own_redis.resume()
    with pytest.raises(asyncio.CancelledError):
        await cut
    for n, answer in enumerate(await asyncio.gather(*early)):
        assert answer in (f"early {n}", "")
    for n, answer in enumerate(await asyncio.gather(*late)):
        assert answer in (f"late {n}", "")
    for n in range(3):
        answers = await asyncio.gather(*(echo(connection, f"{n} {m}") for m in range(5)))
        assert answers == [f"{n} {m}" for m in range(5)]
    # What was written of the large one still goes out, on a socket that nobody listens to.
    with contextlib.suppress(OSError):
        await asyncio.wait_for(writer.wait_closed(), 30)


async def test_an_answer_that_came_while_the_process_stood_still_is_read(own_redis: EmbeddedRedis) -> None:
    async with open_connection(own_redis.dsn) as connection:
        assert await echo(connection, "before") == "before"
        link = connection._link
        call = asyncio.create_task(connection.call("ECHO", "during", timeout_seconds=0.1))
        await asyncio.sleep(0)  # it is written
        time.sleep(0.5)  # noqa: ASYNC251  the answer comes and the time is up, and nobody sees either
        assert await call == b"during"
        assert connection._link is link


async def test_a_server_that_does_not_answer_is_given_up(own_redis: EmbeddedRedis) -> None:
    async with open_connection(own_redis.dsn) as connection:
        assert await echo(connection, "before") == "before"
        own_redis.pause()
        try:
            with pytest.raises(RedisTimeoutError, match=r"did not answer within 0\.2 s"):
                await connection.call("ECHO", "in vain", timeout_seconds=0.2)
        finally:
            own_redis.resume()
        assert await echo(connection, "after") == "after"


async def test_a_connection_that_was_hung_up_behind_our_back_is_not_used_again(
    connection: PipelinedConnection,
) -> None:
    assert await echo(connection, "before") == "before"
    link = connection._link
    assert link is not None
    # As redis-py does when a write fails: it would open the same connection again for the next one.
    await link.connection.disconnect(nowait=True)
    answers = await asyncio.gather(*(echo(connection, str(n)) for n in range(5)))
    assert all(answer in (str(n), "") for n, answer in enumerate(answers))
    await eventually(lambda: not link.is_open, 20, "the old link is still in use")
    assert connection._link is not link
    assert await echo(connection, "after") == "after"


@pytest.mark.parametrize("stray", [b":7\r\n", b"$-1\r\n", b"*0\r\n", UNREADABLE])
async def test_an_answer_that_cannot_be_read_is_lost_and_its_connection_with_it(
    proxy: RedisProxy, odd_connection: PipelinedConnection, stray: bytes
) -> None:
    proxy.stray_next_reply(stray, matching=b"asked")
    with pytest.raises(RedisConnectionError):
        await odd_connection.call("ECHO", "asked", read=lambda reply: reply.decode())
    # Were the connection kept, the answer to that call would go to this one.
    assert await odd_connection.call("ECHO", "next", read=lambda reply: reply.decode()) == "next"
    assert proxy.connections_made == 2


async def test_an_answer_is_told_as_what_was_read(connection: PipelinedConnection) -> None:
    assert await connection.call("ECHO", "7", read=int) == 7


async def test_a_connection_can_be_closed_whatever_ended_its_reader(
    proxy: RedisProxy, odd_connection: PipelinedConnection
) -> None:
    link = odd_connection._link
    assert link is not None
    proxy.stray_next_reply(UNREADABLE, matching=b"asked")
    others = [asyncio.create_task(echo(odd_connection, f"asked {n}")) for n in range(3)]
    await asyncio.wait({link.reader})
    await odd_connection.aclose()
    assert await asyncio.gather(*others) == ["", "", ""]


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_while_a_connection_is_closed_notices(
    connection: PipelinedConnection, turns: int
) -> None:
    assert await echo(connection, "before") == "before"
    assert connection._link is not None
    # Nothing to say goodbye to: all that is left to wait for is the reader, which is cancelled, too.
    await connection._link.connection.disconnect(nowait=True)
    closing = asyncio.create_task(connection.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_under_way = closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled() == was_under_way
    assert await echo(connection, "after") == "after"


async def test_a_connection_is_closed_although_its_reader_never_began(
    connection: PipelinedConnection,
) -> None:
    """As when the event loop ends in the turn in which somebody has opened it."""
    link = await connection._open()
    link.reader.cancel()
    await asyncio.wait({link.reader})
    await asyncio.sleep(0)
    assert not link.connection.is_connected
    assert await echo(connection, "again") == "again"
