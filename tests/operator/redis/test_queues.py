"""What the operator asks of one Redis is bounded in time, and ends with its leadership."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from listening import Listener
from queue_steps import ask
from rrq.broker.messages import DeathCertificate, WorkerIdentity
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.decide.deaths import Deaths
from rrq_operator.redis import queues as queues_module
from rrq_operator.redis.queues import QueueTrouble, RedisQueues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from rrq.store import JobStore


@pytest.fixture
async def silent_url() -> AsyncIterator[str]:
    """Leads to something that takes every connection and never says a word."""

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with Listener(keep_silent) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.mark.parametrize(
    ("module_constant", "options"),
    [
        ("_CALL_SECONDS", ""),
        (
            "_TIMEOUT_SECONDS",
            "?socket_timeout=600&socket%5Fconnect_timeout=600&retry_on_error=1&client_name=a",
        ),
    ],
)
async def test_a_silent_redis_is_unreachable_soon_whatever_its_url_says(
    silent_url: str, module_constant: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, module_constant, 0.2)
    queues = RedisQueues(RedisIdentity(silent_url + options, "rrq:"))
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: queues.observe({"default": 0.0}),
        lambda: queues.drain(["pod"]),
        lambda: queues.release(["pod"]),
        lambda: queues.report(Deaths(hints=("worker",))),
        queues.read_cron_tables,
    ]
    try:
        for ask_it in asks:
            async with asyncio.timeout(30):
                with pytest.raises(QueueTrouble) as trouble:
                    await ask_it()
            assert trouble.value.reason == "Unreachable"
    finally:
        await queues.aclose()


async def test_an_operator_that_does_not_lead_writes_nothing_into_redis(
    redis_dsn: str, store: JobStore
) -> None:
    leads = False
    queues = RedisQueues(RedisIdentity(redis_dsn, "rrq:"), may_write=lambda: leads)
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: queues.drain(["pod"]),
        lambda: queues.release(["pod"]),
        lambda: queues.report(
            Deaths((DeathCertificate(WorkerIdentity("worker", "first"), None),), ("worker",))
        ),
        lambda: queues.fire_cron(0),
    ]
    try:
        for ask_it in asks:
            with pytest.raises(QueueTrouble) as trouble:
                await ask_it()
            assert trouble.value.reason == "NotLeader"
        assert await ask(store, "EXISTS", store.keys.drain_key("pod")) == 0
        assert (await queues.observe({"default": 0.0})).queues, "looking is free"
        leads = True
        await queues.drain(["pod"])
        assert await ask(store, "EXISTS", store.keys.drain_key("pod")) == 1
    finally:
        await queues.aclose()


async def test_a_worker_whose_name_is_not_text_does_not_hide_the_queues(
    redis_dsn: str, store: JobStore
) -> None:
    await ask(store, "ZADD", store.keys.leases, str(2**45), b"bad-\xff")
    await ask(store, "HSET", store.keys.prefix.encode() + b"workers:info:bad-\xff", "queues", "[" * 100_000)
    queues = RedisQueues(RedisIdentity(redis_dsn, "rrq:"))
    try:
        seen = await queues.observe({"default": 0.0})
    finally:
        await queues.aclose()
    assert set(seen.workers) == {"bad-\\xff"}
