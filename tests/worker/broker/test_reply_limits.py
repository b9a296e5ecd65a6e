"""What one reply of Redis may cost the process that asked: limits in bytes and in values, short error texts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil
import pytest
from redis.exceptions import InvalidResponse, RedisClusterException, RedisError, ResponseError

from hostile_redis import HOSTILE_ANSWERS, HostileRedis, always, without_end
from rrq.broker.connection import LOST_REPLY_ERRORS, close_redis, open_redis
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

MOST_BYTES = 1024 * 1024
MOST_VALUES = 10_000
MEBIBYTE = 1024 * 1024


def build_settings(dsn: str, **changes: int | str) -> RRQSettings:
    limits = {"redis_max_reply_bytes": MOST_BYTES, "redis_max_reply_values": MOST_VALUES}
    return RRQSettings.model_validate({"redis_dsn": dsn} | limits | changes)


@contextlib.asynccontextmanager
async def opened(settings: RRQSettings) -> AsyncIterator[tuple[PipelinedConnection, Redis]]:
    redis = open_redis(settings)
    connection = PipelinedConnection(settings, redis)
    try:
        yield connection, redis
    finally:
        await connection.aclose()
        await close_redis(redis)


def used_bytes() -> int:
    used: int = psutil.Process().memory_info().rss
    return used


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS)
async def test_a_reply_beyond_the_limits_costs_a_connection_and_little_memory(answer: str) -> None:
    before = used_bytes()
    async with (
        HostileRedis(HOSTILE_ANSWERS[answer]) as server,
        opened(build_settings(server.url)) as (connection, _),
    ):
        with pytest.raises(LOST_REPLY_ERRORS):
            await connection.call("GET", "key")
        assert not connection.is_open
        assert used_bytes() - before < 64 * MEBIBYTE


@pytest.mark.parametrize("answer", ["a text without end", "four billion announced values"])
async def test_the_ordinary_client_has_the_same_limits(answer: str) -> None:
    async with (
        HostileRedis(HOSTILE_ANSWERS[answer]) as server,
        opened(build_settings(server.url)) as (_, redis),
    ):
        with pytest.raises(InvalidResponse, match="the limit redis_max_reply_"):
            await redis.get("key")
        async with redis.pubsub() as channel:
            await channel.subscribe("channel")
            with pytest.raises(InvalidResponse, match="the limit redis_max_reply_"):
                await channel.get_message(timeout=30)


@pytest.mark.parametrize(
    ("scheme", "path", "prefix"), [("redis+sentinel", "/service/0", "rrq:"), ("redis+cluster", "", "{rrq}:")]
)
async def test_sentinels_and_the_nodes_of_a_cluster_have_the_same_limits(
    scheme: str, path: str, prefix: str
) -> None:
    before = used_bytes()
    async with HostileRedis(without_end(b"$8589934592\r\n")) as server:
        dsn = server.url.replace("redis://", f"{scheme}://").removesuffix("/0") + path
        async with opened(build_settings(dsn, key_prefix=prefix)) as (_, redis):
            with pytest.raises((RedisError, RedisClusterException)):
                await redis.get("key")
            assert used_bytes() - before < 64 * MEBIBYTE


@pytest.mark.parametrize("read_bytes", [1, 65_536])
async def test_values_are_counted_however_the_reply_is_cut_into_pieces(read_bytes: int) -> None:
    reply = b"*%d\r\n" + b":1\r\n" * MOST_VALUES
    async with HostileRedis(always(reply % MOST_VALUES)) as server:
        settings = build_settings(f"{server.url}?socket_read_size={read_bytes}")
        async with opened(settings) as (connection, _):
            for _ in range(2):
                assert await connection.call("LRANGE", "list", 0, -1) == [1] * MOST_VALUES
    async with HostileRedis(always(reply % (MOST_VALUES + 1))) as server:
        settings = build_settings(f"{server.url}?socket_read_size={read_bytes}")
        async with opened(settings) as (connection, _):
            with pytest.raises(LOST_REPLY_ERRORS, match="more than 10000 values"):
                await connection.call("LRANGE", "list", 0, -1)


async def test_each_reply_is_measured_on_its_own_and_a_new_connection_goes_on(redis_dsn: str) -> None:
    async with opened(build_settings(redis_dsn)) as (connection, _):
        for _ in range(3):
            assert await connection.call("ECHO", b"x" * (MOST_BYTES - 100)) == b"x" * (MOST_BYTES - 100)
        with pytest.raises(LOST_REPLY_ERRORS, match=f"more than {MOST_BYTES} bytes"):
            await connection.call("ECHO", b"x" * (MOST_BYTES + 1))
        assert await connection.call("ECHO", "well") == b"well"


async def test_a_worker_takes_the_largest_jobs_that_a_producer_may_send(redis_dsn: str) -> None:
    settings = RRQSettings(redis_dsn=redis_dsn)
    assert settings.redis_max_reply_bytes > 2 * settings.worker_concurrency * settings.max_job_payload_bytes
    text = b"\r\n*4294967295\r\n" + b"x" * settings.max_job_payload_bytes
    async with opened(settings) as (connection, _):
        assert await connection.call("ECHO", text) == text


@pytest.mark.parametrize("beginning", [b"-ERR ", b"-MOVED nowhere \x1b[2J"], ids=["refusal", "bad redirect"])
async def test_an_error_text_of_redis_is_one_short_line(beginning: bytes) -> None:
    reply = beginning + b"E" * 60_000 + b"\r\n"
    async with HostileRedis(always(reply)) as server, opened(build_settings(server.url)) as (connection, _):
        with pytest.raises(ResponseError) as caught:
            await connection.call("GET", "key")
        assert 1000 < len(str(caught.value)) <= 1024
        assert str(caught.value).isprintable()
        assert connection.is_open
