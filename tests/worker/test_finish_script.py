"""Finishing: an outcome counts once, only from the attempt that owns the job, and never spoils a batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    DLQ,
    QUEUE,
    SteppedWorker,
    ask,
    back,
    cancelled,
    dead,
    dead_letters,
    done,
    due_score,
    end_lease,
    enqueue,
    ids,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    now_ms,
    retry,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.job import Job
from rrq.messages import CancelCode, Outcome, OutcomeKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.messages import ClaimedJob
    from rrq.store import JobStore

EVERY_OUTCOME = pytest.mark.parametrize("outcome", [done, retry, dead, cancelled, back])


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def assert_out_of_hand(worker: SteppedWorker, job_id: str = "1") -> None:
    assert await worker.in_hand() == set()
    assert await worker.store.get_job_lock_owner(job_id) is None


async def read_counters(store: JobStore) -> dict[str, int]:
    counters = await ask(store, "HGETALL", store.keys.counters)
    return {name.decode(): int(value) for name, value in counters.items()}


# The outcomes


async def test_result_is_stored_with_its_expiry(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    assert await worker.finish(done(await worker.take_one(), {"a": 1}, ttl=100)) == [Verdict.STORED]
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["result"], fields["current_retries"]) == ("COMPLETED", '{"a": 1}', "0")
    completed_at = datetime.fromisoformat(fields["completion_time"])
    assert fields["completion_time"].endswith("+00:00")
    assert abs(completed_at - await store.read_time()) < timedelta(seconds=60)
    assert 50 <= await ttl_seconds(store, "rrq:job:1") <= 100
    await assert_out_of_hand(worker)


@pytest.mark.parametrize(("ttl", "expected"), [(0, -1), (-1, -1)])
async def test_result_can_be_kept_for_ever(
    store: JobStore, worker: SteppedWorker, ttl: int, expected: int
) -> None:
    await enqueue(store, "1")
    await worker.finish(done(await worker.take_one(), ttl=ttl))
    assert await ttl_seconds(store, "rrq:job:1") == expected


async def test_retry_is_counted_and_due_after_its_delay(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    before = await now_ms(store)
    outcome = Outcome("1", job.token, OutcomeKind.RETRY, "boom", 5000.5, QUEUE, "Traceback…")
    assert await worker.finish(outcome) == [Verdict.STORED]
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["current_retries"]) == ("RETRYING", "1")
    assert (fields["last_error"], fields["traceback"]) == ("boom", "Traceback…")
    score = await due_score(store, "1")
    assert score is not None
    assert before + 5000.5 <= score <= await now_ms(store) + 5000.5
    next_run = datetime.fromisoformat(fields["next_scheduled_run_time"])
    assert abs(next_run.timestamp() * 1000 - score) < 1
    assert not {"worker_id", "claimed_queue", "claimed_score"} & set(fields)
    assert await ttl_seconds(store, "rrq:job:1") == -1
    await assert_out_of_hand(worker)


async def test_retry_can_go_to_another_queue(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", queue_name="home")
    other = await start_worker(store, "other", queues=("home",))
    await other.finish(retry(await other.take_one(), queue="rrq:queue:elsewhere"))
    assert await is_queued(store, "1", "elsewhere")
    assert not await is_queued(store, "1", "home")


async def test_expiry_never_survives_on_a_retried_job(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await ask(store, "EXPIRE", "rrq:job:1", 100)
    await worker.finish(retry(job))
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_dead_job_is_counted_kept_and_listed(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    outcome = Outcome("1", job.token, OutcomeKind.DEAD, "boom", 1000, DLQ, "Traceback…")
    assert await worker.finish(outcome) == [Verdict.STORED]
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["current_retries"]) == ("FAILED", "1")
    assert (fields["last_error"], fields["traceback"]) == ("boom", "Traceback…")
    assert datetime.fromisoformat(fields["completion_time"]).tzinfo is not None
    assert await dead_letters(store) == ["1"]
    assert 900 <= await ttl_seconds(store, "rrq:job:1") <= 1000
    await assert_out_of_hand(worker)


async def test_newest_dead_letter_is_at_the_head(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2")
    await worker.finish(*map(dead, await worker.take(2)))
    assert await dead_letters(store) == ["2", "1"]


async def test_cancelled_job_ends_as_cancelled(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    assert await worker.finish(cancelled(await worker.take_one(), ttl=50)) == [Verdict.STORED]
    assert (await job_fields(store, "1"))["status"] == "CANCELLED"
    assert 20 <= await ttl_seconds(store, "rrq:job:1") <= 50
    await assert_out_of_hand(worker)


async def test_job_handed_back_is_due_as_before_and_not_counted(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await ask(store, "ZADD", QUEUE, 1234.5, "1")
    job = await worker.take_one()
    await ask(store, "EXPIRE", "rrq:job:1", 100)
    assert await worker.finish(back(job, "stopping")) == [Verdict.STORED]
    assert await due_score(store, "1") == 1234.5
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")
    assert fields["last_error"] == "stopping"
    assert await ttl_seconds(store, "rrq:job:1") == -1
    await assert_out_of_hand(worker)
    # The attempt is over: it cannot finish what the next one runs.
    again = await worker.take_one()
    assert await worker.finish(done(job)) == [Verdict.FENCED]
    assert await worker.finish(done(again)) == [Verdict.STORED]


async def test_job_claimed_before_it_was_due_is_handed_back_to_its_time(
    store: JobStore, worker: SteppedWorker
) -> None:
    (due_ms,) = await enqueue(store, "1", due="+60000")
    claim = await worker.claim(job_ids=["1"])
    await worker.finish(back(claim.jobs[0]))
    assert await due_score(store, "1") == due_ms


async def test_outcomes_are_counted(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3", "4", "5")
    first, second, third, fourth, fifth = await worker.take(5)
    await worker.finish(done(first), done(second), retry(third), dead(fourth), cancelled(fifth))
    assert await read_counters(store) == {"done": 2, "retry": 1, "dead": 1, "cancelled": 1}


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
async def test_attempt_that_no_longer_owns_the_job_changes_nothing(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1")
    old = await worker.take_one()
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    await store.reap_workers()
    other = await start_worker(store, "other")
    new = await other.take_one()
    before = await snapshot(store)
    assert await worker.finish(outcome(old)) == [Verdict.FENCED]
    assert await snapshot(store) == before
    assert await other.finish(done(new)) == [Verdict.STORED]


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


async def test_late_outcome_of_a_reaped_job_that_is_queued_again_is_fenced(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    old = await worker.take_one()
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    await store.reap_workers()
    assert await worker.finish(done(old)) == [Verdict.FENCED]
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    assert await is_queued(store, "1")


async def test_lock_that_expired_under_its_owner_is_no_obstacle(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await ask(store, "DEL", "rrq:lock:job:1")
    assert await worker.finish(done(job)) == [Verdict.STORED]
    assert (await job_fields(store, "1"))["status"] == "COMPLETED"


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


# Sent twice


@pytest.mark.parametrize("outcome", [done, retry, dead, cancelled])
async def test_outcome_sent_twice_is_applied_once(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    assert await worker.finish(outcome(job)) == [Verdict.STORED]
    before = await snapshot(store)
    assert await worker.finish(outcome(job)) == [Verdict.ALREADY_APPLIED]
    assert await snapshot(store) == before


async def test_job_handed_back_twice_is_queued_once(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await worker.finish(back(job))
    before = await snapshot(store)
    assert await worker.finish(back(job)) == [Verdict.FENCED]
    assert await snapshot(store) == before


async def test_retry_sent_twice_after_the_job_runs_again_is_fenced(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    old = await worker.take_one()
    await worker.finish(retry(old))
    other = await start_worker(store, "other")
    await other.take_one()
    assert await worker.finish(retry(old)) == [Verdict.FENCED]
    assert (await job_fields(store, "1"))["current_retries"] == "1"
    assert not await is_queued(store, "1")


# Against cancellation: the first wins


@pytest.mark.parametrize("outcome", [done, retry, dead, back])
async def test_cancellation_wins_over_a_later_finish(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1", unique_key="key")
    job = await worker.take_one()
    assert (await store.cancel_job("1"))[0] is CancelCode.TOLD
    assert await worker.finish(outcome(job)) == [Verdict.CANCELLED_INSTEAD]
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["result"]) == ("CANCELLED", "null")
    assert not await is_queued(store, "1")
    assert await dead_letters(store) == []
    assert await store.get_unique_lock_holder("key") is None
    assert await ttl_seconds(store, "rrq:job:1") > 0
    await assert_out_of_hand(worker)


async def test_worker_that_obeyed_a_cancellation_is_told_that_it_is_stored(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await store.cancel_job("1")
    assert await worker.finish(cancelled(job)) == [Verdict.STORED]


async def test_finish_wins_over_a_later_cancellation(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.finish(done(await worker.take_one(), "result"))
    assert await store.cancel_job("1") == (CancelCode.ENDED, "COMPLETED")
    assert (await job_fields(store, "1"))["status"] == "COMPLETED"


# Unique locks (compat 10.8)


@pytest.mark.parametrize("outcome", [done, dead, cancelled])
async def test_unique_lock_is_released_when_the_job_ends(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1", unique_key="key")
    await worker.finish(outcome(await worker.take_one()))
    assert await store.get_unique_lock_holder("key") is None


@pytest.mark.parametrize("outcome", [retry, back])
async def test_unique_lock_is_kept_while_the_job_goes_on(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1", unique_key="key")
    await worker.finish(outcome(await worker.take_one()))
    assert await store.get_unique_lock_holder("key") == "1"


@pytest.mark.parametrize("outcome", [done, dead, cancelled])
async def test_deferred_duplicate_does_not_release_the_lock_of_the_owner(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await store.acquire_unique_job_lock("key", "owner", 100)
    await enqueue(store, "duplicate", unique_key="key")
    claim = await worker.claim(job_ids=["duplicate"])
    await worker.finish(outcome(claim.jobs[0]))
    assert await store.get_unique_lock_holder("key") == "owner"


async def test_store_releases_a_unique_lock_only_for_its_owner_when_one_is_named(store: JobStore) -> None:
    await store.acquire_unique_job_lock("key", "owner", 100)
    await store.release_unique_job_lock("key", "other")
    assert await store.get_unique_lock_holder("key") == "owner"
    await store.release_unique_job_lock("key", "owner")
    assert await store.get_unique_lock_holder("key") is None
    await store.release_unique_job_lock("key", "owner")  # silent when absent


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


# Keys and values that make no sense


async def test_job_key_of_another_type_is_told_and_spoils_no_batch(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2-bad", "3")
    jobs = await worker.take(3)
    await ask(store, "SET", "rrq:job:2-bad", "precious")
    verdicts = await worker.finish(*map(done, jobs))
    assert verdicts == [Verdict.STORED, Verdict.UNREADABLE, Verdict.STORED]
    assert await ask(store, "GET", "rrq:job:2-bad") == b"precious"
    assert await worker.in_hand() == set()


@pytest.mark.parametrize(
    ("outcome", "key"),
    [
        (dead, "rrq:dlq:default"),
        (retry, "rrq:queue:default"),
        (done, "rrq:events:job:2-bad"),
        (done, "rrq:lock:unique:bad"),
        (done, "rrq:lock:job:2-bad"),
    ],
)
async def test_key_of_another_type_on_the_way_does_not_spoil_the_rest_of_the_batch(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome], key: str
) -> None:
    await enqueue(store, "1")
    await enqueue(store, "2-bad", unique_key="bad")
    await enqueue(store, "3")
    await store.watch_job("2-bad", wants_event=True)
    first, bad, third = await worker.take(3)
    await ask(store, "DEL", key)
    await ask(store, "SADD", key, "text")
    verdicts = await worker.finish(done(first), outcome(bad), done(third))
    assert (verdicts[0], verdicts[2]) == (Verdict.STORED, Verdict.STORED)
    assert (await job_fields(store, "3"))["status"] == "COMPLETED"
    assert await worker.in_hand() <= {"2-bad"}


@pytest.mark.parametrize("outcome", [retry, dead])
async def test_count_that_is_no_number_does_not_spoil_the_rest_of_the_batch(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    """A worker dead-letters what it cannot read; that must succeed for exactly such a job."""
    await enqueue(store, "1", "2-bad", "3")
    await ask(store, "HSET", "rrq:job:2-bad", "current_retries", "many")
    first, bad, third = await worker.take(3)
    verdicts = await worker.finish(done(first), outcome(bad), done(third))
    assert verdicts == [Verdict.STORED] * 3
    assert (await job_fields(store, "3"))["status"] == "COMPLETED"


async def test_nothing_to_finish_is_no_error(worker: SteppedWorker) -> None:
    assert await worker.finish() == []


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


async def test_completion_time_comes_from_the_clock_of_redis(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    before = await store.read_time()
    await worker.finish(done(job))
    after = await store.read_time()
    text = (await job_fields(store, "1"))["completion_time"]
    assert before <= datetime.fromisoformat(text).astimezone(UTC) <= after
