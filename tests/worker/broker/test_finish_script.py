"""Finishing: an outcome counts once, only from the attempt that owns the job, and never spoils a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    back,
    cancelled,
    dead,
    done,
    due_score,
    end_lease,
    enqueue,
    ids,
    job_fields,
    let_the_fleet_beat,
    retry,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.broker.messages import Outcome, OutcomeKind, Verdict
from rrq.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.broker.messages import ClaimedJob
    from rrq.store import JobStore

EVERY_OUTCOME = pytest.mark.parametrize("outcome", [done, retry, dead, cancelled, back])


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def assert_out_of_hand(worker: SteppedWorker, job_id: str = "1") -> None:
    assert await worker.in_hand() == set()
    assert await worker.store.get_job_lock_owner(job_id) is None


# The outcomes


async def test_batch_answers_job_by_job(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3", "4", "5")
    jobs = await worker.take(5)
    await ask(store, "HSET", "rrq:job:2", "attempt_token", "another")
    await worker.finish(done(jobs[2]))
    await store.cancel_job("4")
    await ask(store, "SET", "rrq:job:5", "text")
    assert await worker.finish(*map(done, jobs)) == [
        Verdict.STORED,
        Verdict.FENCED,
        Verdict.ALREADY_APPLIED,
        Verdict.CANCELLED_INSTEAD,
        Verdict.UNREADABLE,
    ]


# Fencing


@EVERY_OUTCOME
async def test_worker_that_claims_its_own_reaped_job_again_is_fenced_by_the_token(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    """By worker id, lock and active entry the late outcome would look legitimate."""
    await enqueue(store, "1")
    old = await worker.take_one()
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).returned == 1
    await worker.register()
    new = await worker.take_one()
    assert new.token != old.token
    before = await snapshot(store)
    assert await worker.finish(outcome(old)) == [Verdict.FENCED]
    assert await snapshot(store) == before
    assert await worker.in_hand() == {"1"}
    assert await store.get_job_lock_owner("1") == worker.worker_id
    assert await worker.finish(done(new, "new")) == [Verdict.STORED]
    assert (await job_fields(store, "1"))["result"] == '"new"'


async def test_lock_that_somebody_else_took_meanwhile_is_left_alone(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await ask(store, "SET", "rrq:lock:job:1", "somebody")
    assert await worker.finish(done(job)) == [Verdict.STORED]
    assert await store.get_job_lock_owner("1") == "somebody"


async def test_job_enqueued_again_by_an_07_producer_while_it_runs_is_a_new_job(
    store: JobStore, worker: SteppedWorker
) -> None:
    """Such a producer knows no token: it saves the definition and adds the id to the queue."""
    await enqueue(store, "1")
    old = await worker.take_one()
    await store.save_job_definition(Job(id="1", function_name="greet", queue_name=QUEUE))
    await store.add_job_to_queue(QUEUE, "1", 5.0)
    assert await worker.finish(done(old, "old")) == [Verdict.FENCED]
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    await assert_out_of_hand(worker)
    assert ids(await worker.take()) == ["1"]


async def test_forgotten_job_is_fenced(store: JobStore, worker: SteppedWorker) -> None:
    """The hash was deleted while the job ran: nothing is left to store a result in."""
    await enqueue(store, "1")
    job = await worker.take_one()
    await ask(store, "DEL", "rrq:job:1")
    assert await worker.finish(done(job)) == [Verdict.FENCED]
    assert await ask(store, "EXISTS", "rrq:job:1") == 0
    await assert_out_of_hand(worker)


# Wake-ups


async def test_retry_that_is_due_at_once_wakes_a_waiting_worker(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    first, second = await worker.take(2)
    await (await start_worker(store, "waiter")).claim(wait_ms=60_000)
    await worker.finish(retry(first))
    assert await tokens(store) == 1
    await ask(store, "DEL", store.keys.wake_key(QUEUE))
    await worker.finish(retry(second, delay_ms=60_000))
    assert await tokens(store) == 0


async def test_job_handed_back_wakes_a_waiting_worker(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await (await start_worker(store, "waiter")).claim(wait_ms=60_000)
    await worker.finish(back(job))
    assert await tokens(store) == 1


# Without a token: callers of the 0.7 methods


async def test_caller_without_a_token_is_served_unless_another_holds_the_lock(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    outcome = Outcome("1", "", OutcomeKind.DONE, '"result"', 60)
    await store.acquire_job_lock("1", "other", 60_000)
    assert await worker.finish(outcome) == [Verdict.FENCED]
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    await store.release_job_lock("1")
    assert await worker.finish(outcome) == [Verdict.STORED]
    assert (await job_fields(store, "1"))["result"] == '"result"'


async def test_caller_without_a_token_hands_back_to_the_queue_and_time_it_names(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    await ask(store, "EXPIRE", "rrq:job:1", 100)
    outcome = Outcome("1", "", OutcomeKind.BACK, "stopping", 77.5, "rrq:queue:other")
    assert await worker.finish(outcome) == [Verdict.STORED]
    assert await due_score(store, "1", "other") == 77.5
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    assert await ttl_seconds(store, "rrq:job:1") == -1


# Whoever waits for the end


@pytest.mark.parametrize(
    ("outcome", "event", "status"),
    [
        (done, b"completed", b"COMPLETED"),
        (dead, b"failed", b"FAILED"),
        (cancelled, b"failed", b"CANCELLED"),
    ],
)
async def test_end_of_a_job_is_announced_to_who_asked(
    store: JobStore,
    worker: SteppedWorker,
    outcome: Callable[[ClaimedJob], Outcome],
    event: bytes,
    status: bytes,
) -> None:
    await enqueue(store, "1", "2")
    await store.watch_job("1", wants_event=True)
    await worker.finish(*map(outcome, await worker.take(2)))
    entries: Any = await ask(store, "XRANGE", store.keys.events_key("1"), "-", "+")
    assert [fields for _, fields in entries] == [{b"event": event, b"job_id": b"1", b"status": status}]
    assert await ttl_seconds(store, store.keys.events_key("1")) > 0
    assert await ask(store, "EXISTS", store.keys.events_key("2")) == 0


async def test_retry_is_not_announced_as_an_end(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await store.watch_job("1", wants_event=True)
    await worker.finish(retry(await worker.take_one()))
    assert await ask(store, "EXISTS", store.keys.events_key("1")) == 0
    await worker.finish(done(await worker.take_one()))
    assert await ask(store, "XLEN", store.keys.events_key("1")) == 1
