"""A worker that drains while Redis is away: it keeps the outcomes of its handlers until the grace period ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fleet import all_done, status_of
from rrq.client import JobRequest, RRQClient
from rrq.engine import consumer, executor
from rrq.job import JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rrq.embedded import EmbeddedRedis


class Gated:
    """Handlers that wait for their gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started = 0
        self.registry = JobRegistry()
        self.registry.register("wait_at_gate", self.wait_at_gate)
        self.registry.register("ignore_timeout", self.ignore_timeout)

    async def wait_at_gate(self, ctx: dict[str, Any]) -> None:
        self.started += 1
        await self.gate.wait()

    async def ignore_timeout(self, ctx: dict[str, Any]) -> None:
        self.started += 1
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()


@pytest.fixture
def server(make_redis: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A Redis that remembers its jobs when it comes back."""
    return make_redis(appendonly=True)


@pytest.fixture
async def producer(server: EmbeddedRedis) -> AsyncIterator[RRQClient]:
    client = RRQClient(RRQSettings(redis_dsn=server.dsn))
    yield client
    await client.close()


@pytest.fixture
def gated() -> Gated:
    return Gated()


@contextlib.asynccontextmanager
async def draining_later(
    server: EmbeddedRedis, gated: Gated, grace_seconds: float
) -> AsyncIterator[tuple[RRQWorker, asyncio.Task[None]]]:
    """A worker that the test drains, and its run; a test that has failed does not wait for its end."""
    settings = RRQSettings(
        redis_dsn=server.dsn,
        worker_shutdown_grace_period_seconds=grace_seconds,
        # With this lease nothing but the draining itself makes the worker come back soon.
        worker_lease_seconds=600,
    )
    worker = RRQWorker(settings, gated.registry)
    run = asyncio.create_task(worker.run())
    try:
        yield worker, run
    finally:
        gated.gate.set()
        worker.drain()
        worker._drain.cut_short(0.0)
        await run
        await eventually(lambda: not worker._running_tasks)


async def cut_off(producer: RRQClient) -> None:
    await producer.job_store.redis.shutdown(nosave=True)


async def test_results_are_stored_soon_after_redis_is_back_within_the_grace_period(
    server: EmbeddedRedis, producer: RRQClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_FIRST_RETRY_SECONDS", 60.0)
    monkeypatch.setattr(consumer, "_LONGEST_RETRY_SECONDS", 60.0)
    async with draining_later(server, gated, grace_seconds=30) as (worker, run):
        jobs = await producer.enqueue_many([JobRequest("wait_at_gate")] * 3)
        await eventually(lambda: gated.started == 3, message="jobs did not start")
        await cut_off(producer)
        gated.gate.set()
        await eventually(lambda: worker.consumer.unacknowledged == 3, message="handlers did not end")
        worker.drain()
        server.restart()
        await all_done(producer.job_store, jobs, 10)
        await asyncio.wait_for(asyncio.shield(run), 10)


async def test_an_outcome_that_no_handler_waits_for_is_reported_until_the_grace_period_ends(
    server: EmbeddedRedis, producer: RRQClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "IGNORED_AFTER_SECONDS", 0.05)
    async with draining_later(server, gated, grace_seconds=30) as (worker, run):
        [job] = await producer.enqueue_many([JobRequest("ignore_timeout", job_timeout_seconds=1)])
        await eventually(lambda: gated.started, message="the job did not start")
        await cut_off(producer)
        await eventually(lambda: worker.consumer.unacknowledged, message="its end was not noticed")
        worker.drain()
        # Longer than a worker takes to end that has nothing left to tell.
        await stays_true(lambda: not run.done(), 2.5, "the worker ended before its grace period")
        server.restart()
        await asyncio.wait_for(asyncio.shield(run), 10)
        assert await status_of(producer.job_store, job) is JobStatus.FAILED


async def test_the_log_names_the_jobs_whose_outcome_could_not_be_stored_in_time(
    server: EmbeddedRedis, producer: RRQClient, gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    async with draining_later(server, gated, grace_seconds=0.3) as (worker, run):
        jobs = await producer.enqueue_many([JobRequest("wait_at_gate")] * 3)
        await eventually(lambda: gated.started == 3, message="jobs did not start")
        await cut_off(producer)
        gated.gate.set()
        await eventually(lambda: worker.consumer.unacknowledged == 3, message="handlers did not end")
        worker.drain()
        await asyncio.wait_for(asyncio.shield(run), 10)
    [record] = [record for record in caplog.records if "job_ids" in record.__dict__]
    assert sorted(record.__dict__["job_ids"]) == sorted(job.id for job in jobs)
    assert record.levelname == "ERROR"


async def test_the_grace_period_begins_with_the_signal_and_not_when_redis_has_answered(
    settings: RRQSettings, gated: Gated
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.05
    worker = RRQWorker(settings, gated.registry)
    task: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(600))
    worker._running_tasks.add(task)
    worker.drain()
    settings.worker_shutdown_grace_period_seconds = 600  # too late to count
    await asyncio.wait_for(worker._drain_tasks(), 10)
    assert task.cancelled()
    worker._running_tasks.clear()
    await worker.close()
