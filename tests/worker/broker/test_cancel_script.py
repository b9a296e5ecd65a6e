"""Cancelling: a queued job ends at once, a running one is ended by its worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    back,
    done,
    enqueue,
    is_queued,
    job_fields,
    start_worker,
    ttl_seconds,
)
from rrq.broker.messages import CancelCode, Verdict

if TYPE_CHECKING:
    from rrq.store import JobStore


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def test_key_of_another_type_is_not_found_and_left_alone(store: JobStore) -> None:
    await ask(store, "SET", "rrq:job:1", "precious")
    assert await store.cancel_job("1") == (CancelCode.NOT_FOUND, "")
    assert await ask(store, "GET", "rrq:job:1") == b"precious"


@pytest.mark.parametrize("due", ["", "+60000"])
async def test_queued_job_is_removed_and_cancelled(store: JobStore, due: str) -> None:
    await enqueue(store, "1", due=due, unique_key="key", result_ttl_seconds=50)
    assert await store.cancel_job("1") == (CancelCode.CANCELLED, "PENDING")
    assert not await is_queued(store, "1")
    fields = await job_fields(store, "1")
    assert fields["status"] == "CANCELLED"
    assert fields["completion_time"].endswith("+00:00")
    assert await store.get_unique_lock_holder("key") is None
    assert 20 <= await ttl_seconds(store, "rrq:job:1") <= 50


@pytest.mark.parametrize("queue", ["emails", "rrq:queue:emails"])
async def test_job_is_found_in_its_queue_by_bare_and_full_name(store: JobStore, queue: str) -> None:
    await enqueue(store, "1", queue_name=queue)
    assert (await store.cancel_job("1"))[0] is CancelCode.CANCELLED
    assert not await is_queued(store, "1", "emails")


async def test_job_that_came_back_to_another_queue_than_its_own_is_found(store: JobStore) -> None:
    """It was queued elsewhere than its definition says, as `add_job_to_queue` allows."""
    worker = await start_worker(store, queues=("other",))
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    await store.add_job_to_queue("other", "1", 5.0)
    await worker.finish(back(await worker.take_one()))
    assert (await store.cancel_job("1"))[0] is CancelCode.CANCELLED
    assert await ask(store, "EXISTS", "rrq:queue:other") == 0


async def test_running_job_is_marked_and_its_worker_told(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    assert await store.cancel_job("1") == (CancelCode.TOLD, "ACTIVE")
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["cancel_requested"]) == ("ACTIVE", "1")
    keys = store.keys
    assert await ask(store, "SMEMBERS", keys.cancel_key(worker.worker_id)) == {b"1"}
    assert await ask(store, "LLEN", keys.control_key(worker.worker_id)) == 1
    assert await ttl_seconds(store, keys.cancel_key(worker.worker_id)) > 0
    assert await ttl_seconds(store, keys.control_key(worker.worker_id)) > 0
    assert await worker.in_hand() == {"1"}


async def test_worker_that_listens_hears_of_a_cancellation_at_once(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    listening = type(store)(store.settings)
    try:
        heard = asyncio.create_task(listening.wait_for_control([worker.worker_id], 60))
        await store.cancel_job("1")
        assert await asyncio.wait_for(heard, 20) is True
    finally:
        await listening.aclose()
    assert (await worker.beat()).cancel_job_ids == ("1",)


async def test_status_in_small_letters_is_understood(store: JobStore) -> None:
    await enqueue(store, "1")
    await ask(store, "HSET", "rrq:job:1", "status", "pending")
    assert await store.cancel_job("1") == (CancelCode.CANCELLED, "PENDING")


async def test_end_of_a_cancelled_job_is_announced_to_who_asked(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.watch_job("1", wants_event=True)
    await store.cancel_job("1")
    ((_, event),) = await ask(store, "XRANGE", store.keys.events_key("1"), "-", "+")
    assert event == {b"event": b"failed", b"job_id": b"1", b"status": b"CANCELLED"}


async def test_claim_and_cancel_at_once_have_one_winner(store: JobStore, worker: SteppedWorker) -> None:
    for number in range(50):
        job_id = f"job-{number}"
        await enqueue(store, job_id)
        claim, (code, _) = await asyncio.gather(worker.claim(), store.cancel_job(job_id))
        if claim.jobs:
            assert code is CancelCode.TOLD
            assert await worker.finish(done(claim.jobs[0])) == [Verdict.CANCELLED_INSTEAD]
        else:
            assert code is CancelCode.CANCELLED
        assert (await job_fields(store, job_id))["status"] == "CANCELLED"
