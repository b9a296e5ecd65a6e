"""The two atomic steps that RRQ 0.7 is known by, with many callers at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    QUEUE,
    all_keys,
    ask,
    due_score,
    end_lease,
    enqueue,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    now_ms,
    snapshot,
    start_worker,
)
from rrq.job import Job, JobStatus
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.settings import RRQSettings

CALLERS = 8
LOCK = "rrq:lock:job:1"


@pytest.fixture
async def stores(settings: RRQSettings) -> AsyncIterator[list[JobStore]]:
    """Several stores, each with connections of its own, as several processes would have."""
    async with AsyncExitStack() as stack:
        opened = [JobStore(settings) for _ in range(CALLERS)]
        for store in opened:
            stack.push_async_callback(store.aclose)
        yield opened


# Lock and remove


async def test_free_job_is_locked_and_removed(store: JobStore) -> None:
    await enqueue(store, "1")
    assert await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 60_000) == (True, 1)
    assert await store.get_job_lock_owner("1") == "worker"
    assert 30_000 < await ask(store, "PTTL", LOCK) <= 60_000
    assert not await is_queued(store, "1")


async def test_job_not_yet_due_can_be_taken_by_name(store: JobStore) -> None:
    await enqueue(store, "1", due="+60000")
    assert await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 5_000) == (True, 1)


async def test_held_lock_leaves_everything_as_it_was(store: JobStore) -> None:
    await enqueue(store, "1")
    await start_worker(store, "other")
    await store.acquire_job_lock("1", "other", 60_000)
    before = await snapshot(store)
    assert await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 5_000) == (False, 0)
    assert await snapshot(store) == before
    assert await ask(store, "PTTL", LOCK) > 30_000


async def test_job_that_is_not_in_the_queue_leaves_no_lock(store: JobStore) -> None:
    await enqueue(store, "1", queue_name="other")
    before = await snapshot(store)
    assert await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 5_000) == (False, 0)
    assert await snapshot(store) == before


async def test_queue_entry_without_a_hash_can_still_be_taken(store: JobStore) -> None:
    """0.7 locks and removes whatever is queued; what it means is for the caller to find out."""
    await store.add_job_to_queue(QUEUE, "1", 0.0)
    assert await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 5_000) == (True, 1)
    assert await ask(store, "EXISTS", "rrq:job:1") == 0


async def test_job_saved_and_queued_the_07_way_can_be_taken(store: JobStore) -> None:
    job = Job(function_name="greet", queue_name="default")
    await store.save_job_definition(job)
    await store.add_job_to_queue("default", job.id, 1.0)
    assert await store.atomic_lock_and_remove_job(job.id, "default", "worker", 5_000) == (True, 1)


async def test_each_of_many_jobs_goes_to_one_of_many_callers(stores: list[JobStore]) -> None:
    names = [f"job-{number}" for number in range(40)]
    await enqueue(stores[0], *names)

    async def take_all(store: JobStore, worker_id: str) -> list[str]:
        return [
            name
            for name in names
            if (await store.atomic_lock_and_remove_job(name, QUEUE, worker_id, 60_000))[0]
        ]

    shares = await asyncio.gather(*(take_all(store, f"worker-{n}") for n, store in enumerate(stores)))
    assert sorted(name for share in shares for name in share) == sorted(names)
    for number, share in enumerate(shares):
        for name in share:
            assert await stores[0].get_job_lock_owner(name) == f"worker-{number}"
    assert await ask(stores[0], "ZCARD", QUEUE) == 0


async def test_job_of_a_caller_that_never_comes_back_is_queued_again(store: JobStore) -> None:
    await enqueue(store, "1")
    due = await due_score(store, "1")
    await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 60_000)
    await end_lease(store, "worker")
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).returned == 1
    assert await due_score(store, "1") == due
    assert await store.get_job_lock_owner("1") is None


async def test_second_job_of_a_caller_has_until_its_own_lock_ends(store: JobStore) -> None:
    """Without a lease of its own a caller keeps each job as long as the lock it asked for."""
    await enqueue(store, "1", "2")
    await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 1_000)
    await store.atomic_lock_and_remove_job("2", QUEUE, "worker", 60_000)
    ends_ms = await ask(store, "ZSCORE", store.keys.leases, "worker")
    assert float(ends_ms) > await now_ms(store) + 30_000


async def test_caller_whose_earlier_lock_ran_out_may_take_another_job(store: JobStore) -> None:
    await enqueue(store, "1", "2")
    await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 60_000)
    await store.release_job_lock("1")
    await end_lease(store, "worker")
    await store.atomic_lock_and_remove_job("2", QUEUE, "worker", 60_000)
    await let_the_fleet_beat(store)
    await store.reap_workers()
    assert await store.get_job_lock_owner("2") == "worker"
    assert not await is_queued(store, "2")


async def test_taking_a_job_by_name_does_not_stretch_the_lease_of_a_living_worker(store: JobStore) -> None:
    """Or its death would be noticed only when the longest lock has run out."""
    worker = await start_worker(store)
    await enqueue(store, "1")
    before = await ask(store, "ZSCORE", store.keys.leases, worker.worker_id)
    await store.atomic_lock_and_remove_job("1", QUEUE, worker.worker_id, 600_000)
    assert await ask(store, "ZSCORE", store.keys.leases, worker.worker_id) == before


async def test_released_lock_takes_the_active_entry_along(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 60_000)
    await store.release_job_lock("1", "somebody-else")
    assert await store.get_job_lock_owner("1") == "worker"
    await store.release_job_lock("1", "worker")
    assert await store.get_job_lock_owner("1") is None
    assert "rrq:active:jobs:worker" not in await all_keys(store)
    await store.release_job_lock("1")  # silent when absent


# Retry


async def test_retry_counts_says_why_and_queues(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    await ask(store, "EXPIRE", "rrq:job:1", 100)
    score = await now_ms(store) + 5000.25
    assert await store.atomic_retry_job("1", QUEUE, score, "boom", JobStatus.RETRYING) == 1
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["last_error"], fields["current_retries"]) == ("RETRYING", "boom", "1")
    assert await due_score(store, "1") == score
    assert await ask(store, "TTL", "rrq:job:1") == -1
    job = await store.get_job_definition("1")
    assert job is not None
    assert job.next_scheduled_run_time is not None
    assert abs(job.next_scheduled_run_time.timestamp() * 1000 - score) < 1


async def test_retry_does_not_touch_the_lock(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.atomic_lock_and_remove_job("1", QUEUE, "worker", 60_000)
    await store.atomic_retry_job("1", QUEUE, 1.0, "boom", JobStatus.RETRYING)
    assert await store.get_job_lock_owner("1") == "worker"


async def test_parallel_retries_return_consecutive_counts_and_leave_one_entry(
    stores: list[JobStore],
) -> None:
    await enqueue(stores[0], "1")
    counts = await asyncio.gather(
        *(
            store.atomic_retry_job("1", QUEUE, 1000.0 + turn, "boom", JobStatus.RETRYING)
            for store in stores
            for turn in range(10)
        )
    )
    assert sorted(counts) == list(range(1, len(counts) + 1))
    assert await ask(stores[0], "ZCARD", QUEUE) == 1


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), 0.0, -1.0, 1.5])
async def test_retry_takes_any_score_that_a_queue_can_hold(store: JobStore, score: float) -> None:
    await enqueue(store, "1")
    assert await store.atomic_retry_job("1", QUEUE, score, "boom", JobStatus.RETRYING) == 1
    assert await due_score(store, "1") == score


async def test_retry_of_a_key_that_is_no_job_changes_nothing(store: JobStore) -> None:
    await ask(store, "SET", "rrq:job:1", "text")
    before = await snapshot(store)
    with pytest.raises(ResponseError):
        await store.atomic_retry_job("1", QUEUE, 1.0, "boom", JobStatus.RETRYING)
    assert await snapshot(store) == before


async def test_retry_into_a_key_that_is_no_queue_changes_nothing(store: JobStore) -> None:
    await enqueue(store, "1", queue_name="other")
    await ask(store, "SET", QUEUE, "text")
    before = await snapshot(store)
    with pytest.raises(ResponseError):
        await store.atomic_retry_job("1", QUEUE, 1.0, "boom", JobStatus.RETRYING)
    assert await snapshot(store) == before


async def test_worker_claims_what_was_retried_the_07_way_only_once_the_lock_is_gone(
    store: JobStore,
) -> None:
    """0.7 adds to the queue first and drops the lock second; in between nobody may lose the job."""
    old_worker = await start_worker(store, "old")
    worker = await start_worker(store)
    await enqueue(store, "1")
    await store.atomic_lock_and_remove_job("1", QUEUE, old_worker.worker_id, 60_000)
    await store.atomic_retry_job("1", QUEUE, 1.0, "boom", JobStatus.RETRYING)
    assert await worker.take() == []
    assert await is_queued(store, "1")
    await store.release_job_lock("1")
    assert (await worker.take_one()).job_id == b"1"
