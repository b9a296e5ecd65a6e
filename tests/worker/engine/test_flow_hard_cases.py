"""Flow control where it is hard: foreign values, clocks that jump, old versions beside it, a Redis that forgets or is full."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    SteppedWorker,
    ask,
    back,
    dead,
    done,
    enqueue,
    ids,
    is_queued,
    job_fields,
    new_job,
    now_ms,
    retry,
    start_worker,
)
from rrq.broker.messages import Admission, Verdict
from rrq.client import JobRequest
from rrq.exc import InvalidJob
from rrq.flow import JobFilter, Limit
from rrq.job import JobStatus
from rrq.jobs.options import JobOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rrq import RRQClient
    from rrq.broker.messages import ClaimedJob, Outcome
    from rrq.store import JobStore

GREET = "function:greet"
HOUR_MS = 3_600_000


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def parked(store: JobStore, scope: str = "f:greet") -> list[str]:
    return [entry.decode() for entry in await ask(store, "ZRANGE", store.keys.blocked_key(scope), 0, -1)]


async def slots(store: JobStore, scope: str = "f:greet") -> list[str]:
    return sorted(entry.decode() for entry in await ask(store, "SMEMBERS", store.keys.slots_key(scope)))


async def look_now(store: JobStore, scope: str = "f:greet") -> None:
    await ask(store, "ZADD", store.keys.blocked_scopes, 0, scope)


# Rates, and clocks that jump


async def test_an_expired_key_does_not_fill_a_slow_bucket(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit(GREET, Limit(rate=0.1, per_seconds=1, burst=10))
    await enqueue(store, *(f"job-{number}" for number in range(12)))
    assert len(await worker.take(20)) == 10
    # An empty bucket takes a hundred seconds to fill.
    assert await ask(store, "PTTL", store.keys.rate_key("f:greet")) > 60_000


@pytest.mark.parametrize("burst", [None, 2])
async def test_a_clock_set_back_does_not_stop_a_rate_for_as_long(
    store: JobStore, worker: SteppedWorker, burst: float | None
) -> None:
    await store.set_limit(GREET, Limit(rate=2, per_seconds=60, burst=burst))
    await enqueue(store, *"1234")
    assert len(await worker.take(10)) == 2
    # By the clock that is set back now, those two started in an hour.
    rate = store.keys.rate_key("f:greet")
    if burst is None:
        for start in await ask(store, "ZRANGE", rate, 0, -1):
            await ask(store, "ZINCRBY", rate, HOUR_MS, start)
    else:
        await ask(store, "HINCRBY", rate, "at_ms", HOUR_MS)
    await look_now(store)
    assert ids(await worker.take(10)) == ["3", "4"]


async def test_a_burst_added_to_a_rate_leaves_no_unreadable_key(
    store: JobStore, worker: SteppedWorker
) -> None:
    for limit in (Limit(rate=5, per_seconds=60), Limit(rate=5, per_seconds=60, burst=5)) * 2:
        await store.set_limit(GREET, limit)
        await enqueue(store, "1", is_chosen_id=1)
        await worker.finish(done(await worker.take_one()))
    assert not [key for key in await ask(store, "KEYS", "*") if b"unreadable" in key]


async def test_a_bucket_with_an_unreadable_value_stops_no_claim(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(rate=1, per_seconds=60, burst=1))
    values = ("-inf", "inf", "nan", "-1e308", "text")
    for tokens, at_ms in product(values, values):
        await ask(store, "HSET", store.keys.rate_key("f:greet"), "tokens", tokens, "at_ms", at_ms)
        await enqueue(store, "1", is_chosen_id=1)
        await worker.take(10)


async def test_an_invalid_limit_stops_no_claim(store: JobStore, worker: SteppedWorker) -> None:
    for limit in (
        '{"rate": 1, "per_seconds": 0, "burst": 1}',
        '{"rate": 1, "per_seconds": 4e15}',
        '{"rate": 1e-300, "per_seconds": 4e15, "burst": 1}',
        '{"concurrency": 1.5, "per_key": 0.5, "key": null, "key_position": 1e300}',
        '{"per_key": 1, "key": 7, "key_position": "x"}',
        '{"per_key": 1, "key": {}, "key_position": []}',
        '{"concurrency": NaN, "rate": Infinity, "burst": -Infinity}',
    ):
        await ask(store, "HSET", store.keys.limits, GREET, limit)
        await enqueue(store, "1", "2", "3", is_chosen_id=1)
        for _ in range(3):
            await worker.take(1)
            await look_now(store)
        await store.observe(["default"])
        await store.admit_jobs(["default"])


# Blocked jobs delay no other job


async def test_jobs_unblocked_into_a_paused_queue_delay_no_other_queue(store: JobStore) -> None:
    worker = await start_worker(store, queues=("x", "y"))
    await store.set_limit(GREET, Limit(concurrency=1))
    await enqueue(store, "y1", queue_name="y")
    running = await worker.take_one()
    await enqueue(store, *(f"x{number}" for number in range(50)), queue_name="x")
    await enqueue(store, "y2", queue_name="y")
    await worker.take(10)
    await store.set_pause("queue:x", "paused")
    await worker.finish(done(running))
    await look_now(store)
    assert ids(await worker.take(10)) == ["y2"]


async def test_a_claim_that_blocks_very_many_jobs_reports_more_due(store: JobStore) -> None:
    worker = await start_worker(store, queues=("a", "b"), weights=(1, 1))
    await enqueue(store, "later", queue_name="a", due="+60000")
    await store.set_pause(GREET, "paused")
    for start in range(0, 1500, 500):
        await enqueue(store, *(f"b{number}" for number in range(start, start + 500)), queue_name="b")
    await enqueue(store, "free", queue_name="b", function_name="other")
    claim = await worker.claim(10)
    assert (claim.jobs, claim.more_due) == ([], True)
    assert ids(await worker.take(10)) == ["free"]


# Bounds


async def _commands(store: JobStore) -> int:
    stats = await store.redis.info("commandstats")
    return sum(entry["calls"] for entry in stats.values())


async def test_one_claim_unblocks_a_bounded_number_of_jobs_from_all_scopes(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(key="tenant", per_key=0))
    for tenant in range(10):
        names = (f"{tenant}-{number}" for number in range(200))
        await enqueue(store, *names, kwargs_json=json.dumps({"tenant": tenant}))
    while (await worker.claim(10)).more_due:
        pass
    await ask(store, "DEL", store.keys.limit_overrides)
    for tenant in range(10):
        await look_now(store, f"k:greet:{tenant}")
    before = await _commands(store)
    assert len(await worker.take(10)) == 10
    assert await _commands(store) - before < 8_000
    taken = 10
    while jobs := await worker.take(500):
        taken += len(jobs)
    assert taken == 2_000


# Values that another program has written


async def test_an_outcome_is_stored_whatever_the_list_of_blocked_scopes_contains(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(concurrency=1))
    await enqueue(store, "1", "2")
    first = (await worker.take(10))[0]
    await ask(store, "SET", store.keys.blocked_scopes, "text")
    assert await worker.finish(done(first)) == [Verdict.STORED]
    assert ids(await worker.take(10)) == ["2"]


@pytest.mark.parametrize("name", ["slots", "next", "attempts", "batch_id", "boost_ms", "parked_in"])
async def test_an_unreadable_field_stops_no_outcome(
    store: JobStore, worker: SteppedWorker, name: str
) -> None:
    texts = ("[{}]", "[[1]]", "[null]", '{"a": 1}', "{", "5", "[1e999]")
    for text, outcome in product(texts, (done, retry, dead, back)):
        await enqueue(store, "1", is_chosen_id=1)
        job = await worker.take_one()
        await ask(store, "HSET", store.keys.job_key("1"), "extras", "1", name, text)
        assert await worker.finish(outcome(job)) == [Verdict.STORED], (text, outcome)
        assert await worker.in_hand() == set()


async def test_an_unreadable_chain_ends_without_an_error(store: JobStore, worker: SteppedWorker) -> None:
    for chain in (
        "[[]]",
        '[["id"]]',
        '[["id", "f", "[]", "{}", "1", "default", "x", "y", "z", "soon", "", "", "1", "5"]]',
        '[["id", "f", "[]", "{}", "1", "default", "1", "1", "1", "", "", "", "1", "{\\"priority\\": 1e999}"]]',
        '[["id", "f", "[]", "{}", "1", "default", "1", "1", "1", "", "", "", "1", "{\\"limit_key\\": {}}"]]',
        '[["id", {}, "[]", "{}", "1", [], "1", "1", "1", "", "", "", "1", ""]]',
        '[["id", "f", null, null, "1", null, "1", "1", "1", "", "", "", "1", "{\\"takes_result\\": true}"]]',
    ):
        await enqueue(store, "1", is_chosen_id=1)
        (job,) = (await worker.claim(job_ids=["1"])).jobs
        await ask(store, "HSET", store.keys.job_key("1"), "extras", "1", "next", chain)
        assert await worker.finish(done(job)) == [Verdict.STORED], chain
        assert await worker.in_hand() == set()
        assert (await job_fields(store, "1"))["status"] == "COMPLETED"


async def test_unreadable_options_leave_no_batch_half_stored(store: JobStore) -> None:
    for options in (
        "{",
        "null",
        '{"limit_key": {}}',
        '{"idempotency_key": "k"}',
        '{"idempotency_key": [], "idempotency_ms": 5}',
        '{"idempotency_key": "k", "idempotency_ms": 0}',
        '{"idempotency_key": "k", "idempotency_ms": 1e300}',
        '{"debounce_key": false, "debounce_max_ms": "x"}',
        '{"debounce_max_ms": []}',
        '{"batch_id": {}}',
        '{"parent_id": {}}',
        '{"next": [1e999]}',
        '{"priority": {}}',
    ):
        jobs = [new_job("1"), new_job("2", options=options), new_job("3")]
        with pytest.raises(ResponseError, match="RRQOPTIONS the options of job 2"):
            await store.enqueue_jobs(jobs, "e.1")
        assert await ask(store, "KEYS", "*") == [], options


async def test_a_key_that_is_not_text_is_refused_with_an_explanation(
    store: JobStore, client: RRQClient
) -> None:
    values: tuple[Any, ...] = ("\ud800", True, {})
    for name, value in product(("_limit_key", "_idempotency_key", "_debounce_key"), values):
        with pytest.raises(InvalidJob, match=r"surrogate|are text"):
            await client.enqueue("greet", **{name: value})
    assert await ask(store, "KEYS", "*") == []


async def test_a_long_error_is_cut_between_two_letters(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.finish(retry(await worker.take_one(), "x" + "ä" * 400))
    # As RRQ 0.7 reads it, which takes every field of a job for UTF-8.
    raw = await ask(store, "HGET", store.keys.job_key("1"), "attempts")
    assert json.loads(raw.decode())[0]["error"] == "x" + "ä" * 249


# Chains and batches


async def test_a_chain_of_one_id_goes_on_to_its_end(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    batch = await client.enqueue_batch(
        [
            JobRequest(
                "poll", job_id="x", then=[JobRequest("poll", job_id="x"), JobRequest("last", job_id="y")]
            )
        ],
        JobRequest("whole", job_id="callback"),
    )
    for _ in range(2):
        await worker.finish(done(await worker.take_one()))
        if await is_queued(store, "callback"):
            (callback,) = (await worker.claim(1, job_ids=["callback"])).jobs
            await worker.finish(done(callback))
    assert ids(await worker.take(10)) == ["y"]
    state = await store.read_batch(batch.batch_id)
    assert state is not None
    assert "ended" in state


async def test_a_job_sent_again_stays_in_its_batch(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    batch = await client.enqueue_batch(
        [JobRequest("part", job_id="x")], JobRequest("whole", job_id="callback")
    )
    request = JobRequest("part", job_id="x", options=JobOptions(batch_id=batch.batch_id))
    await client.enqueue_many([request])
    assert not await is_queued(store, "callback")
    await worker.finish(done(await worker.take_one()))
    assert await is_queued(store, "callback")


async def test_a_follow_up_whose_key_is_no_job_is_not_lost(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("a", _then=[JobRequest("b", job_id="two")])
    job = await worker.take_one()
    await ask(store, "SET", store.keys.job_key("two"), "text")
    assert await worker.finish(done(job)) == [Verdict.STORED]
    assert ids(await worker.take(10)) == ["two"]


async def test_a_follow_up_is_not_lost_where_no_queue_is_one(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("a", _then=[JobRequest("b", job_id="two", queue_name="broken")])
    job = await worker.take_one()
    for name in ("broken", "default"):
        await ask(store, "SET", store.keys.queue_key(name), "text")
    assert await worker.finish(done(job)) == [Verdict.STORED]
    assert ids(await worker.take(10)) == ["two"]


# Two places


async def test_a_dead_letter_whose_id_is_blocked_again_is_not_requeued(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.finish(dead(await worker.take_one()))
    await store.set_pause(GREET, "paused")
    await enqueue(store, "1", is_chosen_id=1)
    await worker.take(10)
    assert await store.requeue_dlq("default", "default") == 0
    assert await parked(store) == ["1"]
    assert not await is_queued(store, "1")


async def enqueue_as_engines_without_tokens_do(store: JobStore, job_id: str, queue: str) -> None:
    fields = {"id": job_id, "function_name": "greet", "status": "PENDING", "queue_name": queue}
    flat = [part for pair in fields.items() for part in pair]
    await ask(store, "HSET", store.keys.job_key(job_id), *flat)
    await ask(store, "ZADD", store.keys.queue_key(queue), await now_ms(store), job_id)


async def test_a_blocked_id_that_a_0_7_producer_uses_again_runs_once(store: JobStore) -> None:
    worker = await start_worker(store, queues=("default", "other"))
    await store.set_pause(GREET, "paused")
    await enqueue(store, "1")
    await worker.take(10)
    await enqueue_as_engines_without_tokens_do(store, "1", "other")
    await store.set_pause(GREET, None)
    jobs = await worker.take(10)
    assert ids(jobs) == ["1"]
    await worker.finish(*map(done, jobs))
    await look_now(store)
    assert await worker.take(10) == []


@pytest.mark.parametrize("outcome", [done, back])
async def test_a_running_id_that_a_0_7_producer_uses_again_is_not_ended_while_it_is_blocked(
    store: JobStore, worker: SteppedWorker, outcome: Callable[[ClaimedJob], Outcome]
) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await store.set_pause(GREET, "paused")
    await enqueue_as_engines_without_tokens_do(store, "1", "default")
    await worker.take(10)
    assert await parked(store) == ["1"]
    assert await worker.finish(outcome(job)) == [Verdict.FENCED]
    assert await parked(store) == ["1"]
    await store.set_pause(GREET, None)
    assert ids(await worker.take(10)) == ["1"]


async def test_a_priority_does_not_make_a_job_old_enough_to_be_cancelled(
    store: JobStore, client: RRQClient
) -> None:
    await client.enqueue("greet", _job_id="fresh", _priority=9)
    await enqueue(store, "old", due=f"@{await now_ms(store) - 400_000}")
    assert await store.cancel_where(JobFilter("default", due_for_seconds=300)) == 1
    assert await is_queued(store, "fresh")


async def test_a_retry_keeps_its_age(store: JobStore, client: RRQClient, worker: SteppedWorker) -> None:
    await client.enqueue("greet", _job_id="1", _priority=9)
    await worker.finish(retry(await worker.take_one()))
    await ask(store, "ZADD", store.keys.queue_key("default"), await now_ms(store) - 60_000, "1")
    seen = (await store.observe(["default"])).queues["default"]
    assert seen.oldest_due_age_seconds is not None
    assert seen.oldest_due_age_seconds > 59


async def test_a_retry_by_the_method_of_0_7_frees_its_slot(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit(GREET, Limit(concurrency=1))
    await enqueue(store, "1", "2")
    await worker.take(10)
    due_ms = await now_ms(store) + 60_000
    await store.atomic_retry_job("1", store.keys.queue_key("default"), due_ms, "boom", JobStatus.RETRYING)
    assert await slots(store) == []
    assert ids(await worker.take(10)) == ["2"]


# A window that outlives a result


async def test_an_idempotent_job_is_remembered_for_its_whole_window(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("greet", _job_id="1", _idempotency_key="k", _result_ttl_seconds=60)
    job = await worker.take_one()
    ttl_seconds = int((await job_fields(store, "1"))["result_ttl_seconds"])
    await worker.finish(done(job, ttl=ttl_seconds))
    left_ms = await ask(store, "PTTL", store.keys.job_key("1"))
    assert left_ms >= await ask(store, "PTTL", store.keys.idempotency_key("k"))


# A Redis that forgets


async def test_blocked_jobs_are_found_when_the_list_of_scopes_is_lost(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    await store.set_pause(GREET, "paused")
    await worker.take(10)
    await ask(store, "DEL", store.keys.blocked_scopes)
    await store.set_pause(GREET, None)
    assert ids(await worker.take(10)) == ["1", "2"]


# A Redis that is full


@pytest.fixture
async def full_store(store: JobStore) -> AsyncIterator[JobStore]:
    yield store
    await ask(store, "CONFIG", "SET", "maxmemory", 0)


async def test_a_full_redis_can_be_paused_and_inspected(full_store: JobStore, client: RRQClient) -> None:
    store, worker = full_store, await start_worker(full_store)
    await enqueue(store, "1", "2", "3")
    batch = await client.enqueue_batch([JobRequest("other", queue_name="other")])
    await ask(store, "CONFIG", "SET", "maxmemory", 1)
    assert await store.set_pause(GREET, "paused", "ada")
    assert await store.admit_jobs(["default"]) == Admission(3, 0)
    assert await store.set_limit(GREET, Limit(concurrency=1), "ada")
    assert await store.close_batch(batch.batch_id) == 1
    assert await store.set_pause(GREET, None, "ada")
    assert ids(await worker.take(10)) == ["1"]


# Names


async def test_functions_whose_names_hold_a_colon_share_no_slots(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit("function:a", Limit(key="key", per_key=1))
    await store.set_limit("function:a:b", Limit(key="key", per_key=1))
    await enqueue(store, "1", function_name="a", kwargs_json='{"key": "b:c"}')
    await enqueue(store, "2", function_name="a:b", kwargs_json='{"key": "c"}')
    assert ids(await worker.take(10)) == ["1", "2"]
