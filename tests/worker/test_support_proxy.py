"""The failing proxy that other tests trust: each failure is the one it claims to be."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from redis import asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError

from certificates import make_certificates
from proxy import RedisProxy
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def proxy(redis_dsn: str) -> AsyncIterator[RedisProxy]:
    port = aioredis.connection.parse_url(redis_dsn)["port"]
    async with RedisProxy(port) as proxy:
        yield proxy


@pytest.fixture
async def connection(proxy: RedisProxy) -> AsyncIterator[aioredis.Redis]:
    async with aioredis.Redis.from_url(proxy.dsn, socket_timeout=20, retry=None) as connection:
        await connection.ping()  # the handshake is over before a test begins to interfere
        yield connection


async def test_replies_pass_unchanged(connection: aioredis.Redis) -> None:
    value = bytes(range(256)) * 10_000
    await connection.set("key", value)
    assert await connection.get("key") == value


async def test_cut_reply_means_done_but_not_told(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    proxy.cut_next_reply(matching=b"counter")
    await connection.set("other", 1)
    with pytest.raises(RedisConnectionError):
        await connection.incr("counter")
    assert proxy.cut_replies == 1
    assert await connection.get("counter") == b"1"


async def test_several_replies_are_cut_one_by_one(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    proxy.cut_next_reply(3, matching=b"counter")
    for _ in range(3):
        with pytest.raises(RedisConnectionError):
            await connection.incr("counter")
    assert await connection.incr("counter") == 4


async def test_cut_all_closes_what_is_open(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    waiting = asyncio.ensure_future(connection.blpop(["empty"], timeout=15))
    await asyncio.sleep(0.05)
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        await waiting
    assert await connection.ping()


async def test_refused_until_allowed_again(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    proxy.refuse = True
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        await connection.ping()
    proxy.refuse = False
    assert await connection.ping()


async def test_blackhole_answers_nothing(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    proxy.blackhole = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.ping(), 0.3)


async def test_a_connection_that_lost_bytes_in_a_silence_is_silent_for_good(
    proxy: RedisProxy, redis_dsn: str
) -> None:
    async with aioredis.Redis.from_url(redis_dsn) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            for one, other in ((reader, writer), (idle_reader, idle_writer)):
                assert await say(one, other, b"ECHO before\r\n") == b"$6\r\nbefore\r\n"
            proxy.blackhole = True
            writer.write(b"ECHO lost\r\nSET late 1\r\n")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.2)
            proxy.blackhole = False
            # Were this one answered, its answer would be taken for that to the lost one.
            writer.write(b"SET late 1\r\n")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.2)
            assert await server.get("late") is None
            # Not even the end of the connection is heard of; one that said nothing meanwhile has lost nothing.
            assert await say(idle_reader, idle_writer, b"ECHO after\r\n") == b"$5\r\nafter\r\n"
            await server.client_kill_filter(_type="normal", skipme=True)
            assert await asyncio.wait_for(idle_reader.read(100), 20) == b""
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.2)
        finally:
            for stream in (writer, idle_writer):
                stream.close()
                await stream.wait_closed()
    await eventually(lambda: proxy.open_connections == 0, 20, "a link outlives its client")


async def test_a_reply_that_was_on_its_way_when_the_silence_began_is_lost(
    proxy: RedisProxy, connection: aioredis.Redis
) -> None:
    is_on_its_way = asyncio.Event()

    def note(reply: bytes) -> bytes:
        is_on_its_way.set()
        return reply

    proxy.delay_seconds, proxy.rewrite = 0.2, note
    asked = asyncio.ensure_future(connection.ping())
    await asyncio.wait_for(is_on_its_way.wait(), 20)
    proxy.blackhole = True
    await asyncio.sleep(0.3)
    proxy.blackhole = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked, 0.3)
    assert await connection.ping()  # on another connection


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> bytes:
    writer.write(line)
    return await asyncio.wait_for(reader.read(100), 20)


async def test_delay_is_added_once_per_round_trip(proxy: RedisProxy, connection: aioredis.Redis) -> None:
    proxy.delay_seconds = 0.05
    started = time.monotonic()
    await connection.ping()
    assert 0.05 <= time.monotonic() - started < 20


async def test_tls_ends_at_the_proxy(redis_dsn: str, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    port = aioredis.connection.parse_url(redis_dsn)["port"]
    async with RedisProxy(port, tls=certificates.server_context) as proxy:
        dsn = f"{proxy.dsn}?ssl_ca_certs={certificates.authority_file}"
        async with aioredis.Redis.from_url(dsn) as connection:
            assert await connection.ping()
        async with aioredis.Redis.from_url(proxy.dsn, retry=None) as stranger:
            with pytest.raises(RedisConnectionError):
                await stranger.ping()
