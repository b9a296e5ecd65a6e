"""Claiming: a due job goes to one worker and nobody else, and no odd entry stands in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    dead_letters,
    done,
    enqueue,
    ids,
    is_queued,
    job_fields,
    now_ms,
    retry,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.broker.messages import Verdict
from rrq.flow import Limit
from rrq.job import Job
from rrq.jobs.codec import CLAIMED_FIELDS, parse_claimed_job
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


@pytest.fixture
async def own_store(own_redis: EmbeddedRedis) -> AsyncIterator[JobStore]:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    yield store
    await store.aclose()


async def lock(store: JobStore, *job_ids: str, holder: str, ttl_ms: int = 60_000) -> None:
    async with store.redis.pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.set(store.keys.job_lock_key(job_id), holder, px=ttl_ms)
        await pipe.execute()


async def make_suspect(store: JobStore, *job_ids: str) -> None:
    for job_id in job_ids:
        await ask(store, "HSET", store.keys.job_key(job_id), "suspect", "1")


# What a claim is


async def test_claim_brings_everything_needed_to_run_the_job(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", kwargs_json='{"name": "Ada"}', trace_context='{"traceparent": "00-1"}')
    claimed = await worker.take_one()
    assert len(claimed.fields) == len(CLAIMED_FIELDS)
    job = parse_claimed_job(claimed.job_id, claimed.fields)
    assert isinstance(job, Job)
    assert (job.id, job.function_name, job.job_args, job.job_kwargs) == (
        "1",
        "greet",
        ["world"],
        {"name": "Ada"},
    )


@pytest.mark.parametrize("is_limited", [False, True])
async def test_arguments_kept_in_one_object_reach_the_worker(
    store: JobStore, worker: SteppedWorker, is_limited: bool
) -> None:
    if is_limited:
        await store.publish_limits("app", {"function:other": Limit(concurrency=1)})
    await enqueue(store, "1", "2")
    await ask(store, "HDEL", store.keys.job_key("1"), "job_args", "job_kwargs")
    await ask(store, "HSET", store.keys.job_key("1"), "job_params", '{"to": "me"}')
    await ask(store, "HSET", store.keys.job_key("2"), "completion_time", "2020-01-01T00:00:00Z")
    await ask(store, "EXPIRE", store.keys.job_key("2"), 100)
    first, second = (parse_claimed_job(job.job_id, job.fields) for job in await worker.take(2))
    assert (first.job_args, first.job_kwargs) == ([], {"to": "me"})
    assert (second.job_args, second.job_kwargs) == (["world"], {})
    assert await ask(store, "TTL", store.keys.job_key("2")) == -1


async def test_claim_takes_no_more_than_asked_for_and_says_that_more_is_due(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2", "3")
    claim = await worker.claim(2)
    assert ids(claim.jobs) == ["1", "2"]
    assert claim.more_due
    claim = await worker.claim(1)
    assert ids(claim.jobs) == ["3"]
    assert not claim.more_due


async def test_claimer_that_leaves_due_jobs_behind_wakes_one_more_worker(
    store: JobStore, worker: SteppedWorker
) -> None:
    waiters = [await start_worker(store, name) for name in ("b", "c")]
    for waiter in waiters:
        await waiter.claim(wait_ms=60_000)
    await enqueue(store, "1", "2", "3")
    await ask(store, "DEL", store.keys.wake_key(QUEUE))
    await worker.claim(1)
    assert await tokens(store) == 1


async def test_thousands_of_jobs_are_claimed_in_one_call(store: JobStore, worker: SteppedWorker) -> None:
    names = [f"job-{number:04}" for number in range(3000)]
    await enqueue(store, *names)
    claimed = await worker.take(3000)
    assert ids(claimed) == names
    assert len({job.token for job in claimed}) == 3000
    assert len(await worker.in_hand()) == 3000
    assert await worker.finish(*map(done, claimed[:2000])) == [Verdict.STORED] * 2000


# What is due next


async def test_next_due_time_is_told_and_not_too_early(store: JobStore, worker: SteppedWorker) -> None:
    moment = await now_ms(store)
    await enqueue(store, "1", "2")
    await ask(store, "ZADD", QUEUE, moment + 60_000.25, "1", moment + 90_000, "2")
    claim = await worker.claim()
    assert claim.jobs == []
    assert claim.next_due_ms == moment + 60_001


async def test_next_due_time_is_the_earliest_of_all_queues(store: JobStore) -> None:
    worker = await start_worker(store, queues=("a", "b", "c"))
    (late,) = await enqueue(store, "1", queue_name="a", due="+90000")
    (early,) = await enqueue(store, "2", queue_name="b", due="+30000")
    assert late > early
    assert (await worker.claim()).next_due_ms == early


# Entries that are no jobs


async def test_key_that_is_no_hash_goes_to_the_dead_letters_and_spoils_no_batch(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "3")
    await ask(store, "RPUSH", "rrq:job:bad", "precious")
    content = await ask(store, "DUMP", "rrq:job:bad")
    await ask(store, "ZADD", QUEUE, 1, "1", 2, "bad", 3, "3")
    claim = await worker.claim(3)
    assert ids(claim.jobs) == ["1", "3"]
    assert claim.unreadable == ["bad"]
    assert claim.missing == []
    assert not await is_queued(store, "bad")
    assert await dead_letters(store) == ["bad"]
    fields = await job_fields(store, "bad")
    assert (fields["id"], fields["status"]) == ("bad", "FAILED")
    assert "list" in fields["last_error"]
    assert "rrq:job:bad:unreadable" in fields["last_error"]
    assert await ask(store, "DUMP", "rrq:job:bad:unreadable") == content
    assert 0 < await ttl_seconds(store, "rrq:job:bad:unreadable") <= 604_800
    assert 0 < await ttl_seconds(store, "rrq:job:bad") <= 604_800
    assert await worker.in_hand() == {"1", "3"}
    assert await worker.finish(*map(done, claim.jobs)) == [Verdict.STORED] * 2


async def test_entry_without_a_job_is_dropped_and_told(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await ask(store, "ZADD", QUEUE, 1, "ghost")
    claim = await worker.claim(2)
    assert ids(claim.jobs) == ["1"]
    assert claim.missing == ["ghost"]
    assert not await is_queued(store, "ghost")
    assert await ask(store, "EXISTS", "rrq:lock:job:ghost", "rrq:job:ghost") == 0
    assert await dead_letters(store) == []


async def test_absurd_timeout_in_a_hash_spoils_no_batch(store: JobStore, worker: SteppedWorker) -> None:
    for timeout in ("soon", "1e300", "-inf", "nan", "-5", "9999999999999999999"):
        await enqueue(store, "1", timeout, "3")
        await ask(store, "HSET", store.keys.job_key(timeout), "job_timeout_seconds", timeout)
        claim = await worker.claim(3)
        assert {"1", "3"} <= set(ids(claim.jobs)), timeout
        await worker.finish(*map(done, claim.jobs))


async def test_id_of_any_bytes_can_be_claimed(store: JobStore, worker: SteppedWorker) -> None:
    odd = b"\xff\x00 \r\n"
    await ask(store, "HSET", b"rrq:job:" + odd, "function_name", "greet")
    await ask(store, "ZADD", QUEUE, 1, odd)
    (job,) = await worker.take()
    assert job.job_id == odd
    assert await worker.finish(done(job)) == [Verdict.STORED]


# Locks


async def test_lock_of_a_holder_without_any_sign_of_life_is_taken_over(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await lock(store, "1", holder="long-gone", ttl_ms=1000)
    job = await worker.take_one()
    assert await store.get_job_lock_owner("1") == worker.worker_id
    assert await ask(store, "PTTL", "rrq:lock:job:1") > 100_000
    assert await worker.finish(done(job)) == [Verdict.STORED]


@pytest.mark.parametrize(
    ("sign_of_life", "its_end"),
    [
        # Even an ended lease: its worker is reaped first.
        (("ZADD", "rrq:workers:lease", 1, "holder"), ("ZREM", "rrq:workers:lease", "holder")),
        (("SET", "rrq:health:worker:holder", "{}"), ("DEL", "rrq:health:worker:holder")),
        (("ZADD", "rrq:active:jobs:holder", 1, "1"), ("DEL", "rrq:active:jobs:holder")),
    ],
)
async def test_lock_is_not_taken_over_while_its_holder_shows_a_sign_of_life(
    store: JobStore, worker: SteppedWorker, sign_of_life: tuple[Any, ...], its_end: tuple[str, ...]
) -> None:
    await enqueue(store, "1")
    await lock(store, "1", holder="holder")
    await ask(store, *sign_of_life)
    assert await worker.take() == []
    assert await store.get_job_lock_owner("1") == "holder"
    assert await is_queued(store, "1")
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    await ask(store, *its_end)
    assert ids(await worker.take()) == ["1"]


# Suspects (rule 8)


async def let_reservation_run_out(store: JobStore, job_id: str) -> float:
    """Let time pass for a suspect until another worker may be asked; returns how many seconds that was."""
    fields, key = await job_fields(store, job_id), store.keys.job_key(job_id)
    left_ms = int(fields["reserved_until_ms"]) - await now_ms(store)
    for name in ("reserved_until_ms", "reserved_since_ms"):
        await ask(store, "HSET", key, name, int(fields[name]) - left_ms)
    return left_ms / 1000


async def test_each_worker_that_is_asked_in_vain_is_given_twice_the_time_of_the_one_before(
    store: JobStore, worker: SteppedWorker
) -> None:
    workers = [await start_worker(store, name) for name in ("second", "third", "fourth", "fifth")]
    await enqueue(store, *"12345")
    for each in [worker, *workers]:
        await each.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    await worker.claim()
    waited_seconds = []
    for next_worker in workers:
        assert (await next_worker.claim()).make_room_for == []
        waited_seconds.append(await let_reservation_run_out(store, "suspect"))
        assert (await next_worker.claim()).make_room_for == ["suspect"]
    assert waited_seconds == pytest.approx([30, 30, 60, 120], abs=10)


async def test_room_is_made_once_for_all_suspects_that_wait_together(
    store: JobStore, worker: SteppedWorker
) -> None:
    second = await start_worker(store, "second")
    await enqueue(store, "1", "2")
    await worker.take()
    await second.take()
    suspects = [f"suspect-{number}" for number in range(9)]
    for suspect in suspects:
        await enqueue(store, suspect, f"t-{suspect}")
    await make_suspect(store, *suspects)
    assert (await worker.claim()).make_room_for == suspects
    claim = await second.claim(5)
    assert len(claim.jobs) == 5
    assert claim.make_room_for == []


# Memory


async def test_full_redis_can_still_be_drained(own_store: JobStore) -> None:
    worker = await start_worker(own_store)
    await enqueue(own_store, "1", "2", "3", "4", unique_key="", job_timeout_seconds=60)
    await ask(own_store, "SET", "rrq:job:bad", "text")
    await ask(own_store, "ZADD", QUEUE, 1, "bad")
    await ask(own_store, "CONFIG SET", "maxmemory-policy", "noeviction")
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    claim = await worker.claim(3, wait_ms=1000)
    assert ids(claim.jobs) == ["1", "2", "3"]
    assert claim.unreadable == ["bad"]
    assert await worker.in_hand() == {"1", "2", "3"}
    first, second, third = claim.jobs
    verdicts = await worker.finish(done(first, "x" * 1000), retry(second, delay_ms=60_000), done(third))
    assert verdicts == [Verdict.STORED] * 3
    assert (await job_fields(own_store, "1"))["status"] == "COMPLETED"
    assert await is_queued(own_store, "2")
    assert ids(await worker.take()) == ["4"]
