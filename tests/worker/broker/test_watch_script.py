"""Watching: where a job stands, and an event at its end for who asked in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    SteppedWorker,
    cancelled,
    dead,
    done,
    enqueue,
    job_fields,
    retry,
    snapshot,
    start_worker,
    ttl_seconds,
)
from rrq.job import JobStatus
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.broker.messages import ClaimedJob, Outcome
    from rrq.client import RRQClient
    from rrq.store import JobStore


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def test_every_stage_of_a_job_is_seen(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    seen = await store.watch_job("1", wants_event=False)
    assert seen is not None
    assert seen.status is JobStatus.ACTIVE
    await worker.finish(retry(job, "first try failed"))
    seen = await store.watch_job("1", wants_event=False)
    assert seen is not None
    assert (seen.status, seen.last_error) == (JobStatus.RETRYING, "first try failed")
    await worker.finish(done(await worker.take_one(), {"answer": 42}))
    seen = await store.watch_job("1", wants_event=False)
    assert seen is not None
    assert (seen.status, seen.result) == (JobStatus.COMPLETED, {"answer": 42})


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(done, JobStatus.COMPLETED), (dead, JobStatus.FAILED), (cancelled, JobStatus.CANCELLED)],
)
async def test_ended_job_is_told_as_it_ended_and_not_marked(
    store: JobStore,
    worker: SteppedWorker,
    outcome: Callable[[ClaimedJob], Outcome],
    status: JobStatus,
) -> None:
    """Nothing will ever answer a wish that comes too late, so none is noted."""
    await enqueue(store, "1")
    await worker.finish(outcome(await worker.take_one()))
    before = await snapshot(store)
    seen = await store.watch_job("1", wants_event=True)
    assert seen is not None
    assert seen.status is status
    assert await snapshot(store) == before


@pytest.mark.parametrize(("ttl", "expected"), [(60, 60), (0, 86_400), (-1, 86_400)])
async def test_stream_of_a_job_always_expires(
    store: JobStore, worker: SteppedWorker, ttl: int, expected: int
) -> None:
    await enqueue(store, "1")
    await store.watch_job("1", wants_event=True)
    await worker.finish(done(await worker.take_one(), ttl=ttl))
    assert expected - 40 <= await ttl_seconds(store, store.keys.events_key("1")) <= expected


async def test_who_waits_is_woken_by_the_end_and_not_by_the_clock(
    client: RRQClient, worker: SteppedWorker
) -> None:
    await enqueue(worker.store, "1")
    job = await worker.take_one()
    waiting = asyncio.create_task(
        client.wait_for_completion("1", timeout_seconds=60, block_interval_seconds=60)
    )

    async def is_noted() -> bool:
        return "waited_for" in await job_fields(worker.store, "1")

    await eventually(is_noted)
    await worker.finish(done(job, "result"))
    seen = await asyncio.wait_for(waiting, 20)
    assert seen is not None
    assert (seen.status, seen.result) == (JobStatus.COMPLETED, "result")


async def test_who_waits_for_a_job_of_a_worker_without_events_sees_the_end_all_the_same(
    client: RRQClient, store: JobStore
) -> None:
    await enqueue(store, "1")
    waiting = asyncio.create_task(
        client.wait_for_completion("1", timeout_seconds=20, block_interval_seconds=0.05)
    )
    await store.save_job_result("1", "from an older engine", 60)
    seen = await asyncio.wait_for(waiting, 20)
    assert seen is not None
    assert seen.result == "from an older engine"
