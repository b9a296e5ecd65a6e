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
    dead,
    done,
    enqueue,
    is_queued,
    job_fields,
    retry,
    snapshot,
    start_worker,
    ttl_seconds,
)
from rrq.job import Job
from rrq.messages import CancelCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.messages import ClaimedJob, Outcome
    from rrq.store import JobStore


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def test_unknown_job_is_not_found(store: JobStore) -> None:
    assert await store.cancel_job("absent") == (CancelCode.NOT_FOUND, "")
    assert await snapshot(store) == {}


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


async def test_cancelled_duplicate_leaves_the_lock_of_the_owner(store: JobStore) -> None:
    await store.acquire_unique_job_lock("key", "owner", 100)
    await enqueue(store, "2", unique_key="key")
    assert (await store.cancel_job("2"))[0] is CancelCode.CANCELLED
    assert await store.get_unique_lock_holder("key") == "owner"


@pytest.mark.parametrize("queue", ["emails", "rrq:queue:emails"])
async def test_job_is_found_in_its_queue_by_bare_and_full_name(store: JobStore, queue: str) -> None:
    await enqueue(store, "1", queue_name=queue)
    assert (await store.cancel_job("1"))[0] is CancelCode.CANCELLED
    assert not await is_queued(store, "1", "emails")


async def test_job_waiting_for_its_retry_is_cancelled(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.finish(retry(await worker.take_one(), delay_ms=60_000))
    assert await store.cancel_job("1") == (CancelCode.CANCELLED, "RETRYING")
    assert not await is_queued(store, "1")


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


async def test_wait_for_control_ends_when_the_time_is_up(store: JobStore, worker: SteppedWorker) -> None:
    assert await store.wait_for_control([worker.worker_id], 0.01) is False


async def test_many_cancellations_do_not_pile_up_for_a_worker_that_does_not_listen(
    store: JobStore, worker: SteppedWorker
) -> None:
    names = [f"job-{number:02}" for number in range(30)]
    await enqueue(store, *names)
    await worker.take(30)
    for name in names:
        assert (await store.cancel_job(name))[0] is CancelCode.TOLD
    assert await ask(store, "LLEN", store.keys.control_key(worker.worker_id)) == 10
    assert set((await worker.beat()).cancel_job_ids) == set(names)


async def test_cancelling_twice_is_harmless(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "queued")
    await store.cancel_job("queued")
    assert await store.cancel_job("queued") == (CancelCode.ENDED, "CANCELLED")
    await enqueue(store, "running")
    job = await worker.take_one()
    await store.cancel_job("running")
    assert (await store.cancel_job("running"))[0] is CancelCode.TOLD
    assert await worker.finish(done(job)) == [Verdict.CANCELLED_INSTEAD]


@pytest.mark.parametrize(("outcome", "status"), [(done, "COMPLETED"), (dead, "FAILED")])
async def test_job_that_has_ended_cannot_be_cancelled(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome], status: str
) -> None:
    await enqueue(store, "1")
    await worker.finish(outcome(await worker.take_one()))
    before = await snapshot(store)
    assert await store.cancel_job("1") == (CancelCode.ENDED, status)
    assert await snapshot(store) == before


async def test_job_on_an_07_worker_cannot_be_told(store: JobStore) -> None:
    """Such a worker keeps a lock and a status and listens to nobody."""
    await store.save_job_definition(Job(id="1", function_name="greet", queue_name=QUEUE))
    await ask(store, "HSET", "rrq:job:1", "status", "ACTIVE")
    await store.acquire_job_lock("1", "old-worker", 60_000)
    before = await snapshot(store)
    assert await store.cancel_job("1") == (CancelCode.CANNOT_TELL, "ACTIVE")
    assert await snapshot(store) == before


async def test_status_in_small_letters_is_understood(store: JobStore) -> None:
    await enqueue(store, "1")
    await ask(store, "HSET", "rrq:job:1", "status", "pending")
    assert await store.cancel_job("1") == (CancelCode.CANCELLED, "PENDING")


async def test_cancelled_id_can_be_used_again(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await store.cancel_job("1")
    await enqueue(store, "1")
    assert "cancel_requested" not in await job_fields(store, "1")


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
