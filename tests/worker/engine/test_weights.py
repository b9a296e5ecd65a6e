"""Weights: while several queues have work, each gets its share, whatever the size of a claim."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from queue_steps import done, enqueue, start_worker
from rrq.flow import Limit
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from rrq.store import JobStore

QUEUES = ("high", "default", "low")
# These workers send no heartbeats, and thousands of claims take their time.
LONG_LEASE_SECONDS = 600


async def fill(store: JobStore, count: int, *queues: str) -> None:
    for queue in queues or QUEUES:
        for start in range(0, count, 500):
            names = (f"{queue}-{number}" for number in range(start, min(count, start + 500)))
            await enqueue(store, *names, queue_name=queue)


@pytest.mark.parametrize("batch", [1, 7, 50])
async def test_shares_are_those_of_the_weights(store: JobStore, batch: int) -> None:
    store.settings.worker_lease_seconds = LONG_LEASE_SECONDS
    worker = await start_worker(store, queues=QUEUES, weights=(6, 3, 1))
    await fill(store, 140)
    taken: Counter[str] = Counter()
    while taken.total() < 200:
        jobs = await worker.take(min(batch, 200 - taken.total()))
        taken.update(job.queue_name for job in jobs)
        await worker.finish(*map(done, jobs))
    for queue, share in zip(QUEUES, (120, 60, 20), strict=True):
        assert abs(taken[queue] - share) <= 2, taken


async def test_two_thousand_jobs_of_four_workers_are_shared_within_five_percent(store: JobStore) -> None:
    store.settings.worker_lease_seconds = LONG_LEASE_SECONDS
    workers = [
        await start_worker(store, f"worker-{number}", queues=QUEUES, weights=(6, 3, 1)) for number in range(4)
    ]
    await fill(store, 1_400)
    taken: Counter[str] = Counter()
    while taken.total() < 2_000:
        for number, worker in enumerate(workers):
            jobs = await worker.take(3 + 7 * number)
            taken.update(job.queue_name for job in jobs)
            await worker.finish(*map(done, jobs))
    for queue, share in zip(QUEUES, (0.6, 0.3, 0.1), strict=True):
        assert abs(taken[queue] / taken.total() - share) <= 0.05 * share, taken


async def test_the_share_of_an_empty_queue_goes_to_the_others(store: JobStore) -> None:
    worker = await start_worker(store, queues=QUEUES, weights=(6, 3, 1))
    await fill(store, 10, "low")
    await fill(store, 1, "high")
    assert len(await worker.take(11)) == 11


async def test_an_empty_queue_does_not_save_up_its_share(store: JobStore) -> None:
    worker = await start_worker(store, queues=("a", "b"), weights=(1, 1))
    await fill(store, 500, "a")
    for _ in range(40):
        await worker.take(10)
    await fill(store, 500, "b")
    taken = Counter(job.queue_name for job in await worker.take(20))
    assert taken == {"a": 10, "b": 10}


async def test_claims_of_one_job_reach_every_queue_in_time(store: JobStore) -> None:
    store.settings.worker_lease_seconds = LONG_LEASE_SECONDS
    worker = await start_worker(store, queues=("heavy", "light"), weights=(100, 1))
    await fill(store, 2, "light")
    await fill(store, 150, "heavy")
    seen = []
    for _ in range(110):
        (job,) = await worker.take(1)
        seen.append(job.queue_name)
        await worker.finish(done(job))
    assert "light" in seen


async def test_weights_and_limits_work_together(store: JobStore) -> None:
    worker = await start_worker(store, queues=("a", "b"), weights=(9, 1))
    await store.set_limit("queue:a", Limit(concurrency=2))
    await fill(store, 20, "a", "b")
    assert Counter(job.queue_name for job in await worker.take(10)) == {"a": 2, "b": 8}


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="the weight of queue 'low' must be"):
        RRQSettings(worker_queue_weights={"low": 0})
