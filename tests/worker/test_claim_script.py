"""Claiming: a due job goes to one worker and nobody else, and no odd entry stands in its way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    dead_letters,
    done,
    due_score,
    end_lease,
    enqueue,
    ids,
    is_queued,
    job_fields,
    now_ms,
    retry,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.decoding import CLAIMED_FIELDS, parse_claimed_job
from rrq.flow import Limit
from rrq.job import Job
from rrq.messages import ClaimCode, DeathCertificate, Verdict
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis

LOOK_AHEAD = 1000


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


async def test_claimed_job_is_off_the_queue_locked_and_in_hand(
    store: JobStore, worker: SteppedWorker
) -> None:
    (due_ms,) = await enqueue(store, "1")
    before = await now_ms(store)
    claim = await worker.claim()
    after = await now_ms(store)
    assert claim.code is ClaimCode.ANSWERED
    (job,) = claim.jobs
    assert (job.job_id, job.queue_name, job.queue_key) == (b"1", QUEUE, QUEUE)
    assert float(job.due_score) == due_ms
    assert not job.is_suspect
    assert not await is_queued(store, "1")
    assert await store.get_job_lock_owner("1") == worker.worker_id
    assert await worker.in_hand() == {"1"}
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["worker_id"]) == ("ACTIVE", worker.worker_id)
    assert fields["attempt_token"] == job.token
    assert fields["claimed_queue"] == QUEUE
    assert float(fields["claimed_score"]) == due_ms
    assert fields["start_time"].endswith("Z")
    started = await ask(store, "ZSCORE", store.keys.active_jobs_key(worker.worker_id), "1")
    assert before // 1000 <= float(started) <= after / 1000


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


async def test_every_claim_gives_a_token_of_its_own(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3")
    jobs = await worker.take(3)
    assert len({job.token for job in jobs}) == 3
    stored = [(await job_fields(store, job_id))["attempt_token"] for job_id in ("1", "2", "3")]
    assert stored == [job.token for job in jobs]
    assert all(job.token_before.startswith(b"e.") for job in jobs)


async def test_lock_lives_as_long_as_the_timeout_of_the_job_and_the_extension(
    store: JobStore, worker: SteppedWorker
) -> None:
    store.settings.default_lock_timeout_extension_seconds = 60
    await enqueue(store, "1", job_timeout_seconds=100)
    await enqueue(store, "2", job_timeout_seconds=0)
    await worker.take(2)
    assert 100_000 < await ask(store, "PTTL", "rrq:lock:job:1") <= 160_000
    assert 30_000 < await ask(store, "PTTL", "rrq:lock:job:2") <= 60_000


async def test_job_without_a_timeout_gets_the_default_one(store: JobStore, worker: SteppedWorker) -> None:
    job = Job(id="1", function_name="greet", queue_name="default")
    await store.save_job_definition(job)
    await store.add_job_to_queue("default", "1", 1.0)
    claimed = await worker.take_one()
    assert claimed.token_before == b""
    expected_ms = (300 + 60) * 1000
    assert expected_ms - 50_000 < await ask(store, "PTTL", "rrq:lock:job:1") <= expected_ms


async def test_expiry_never_survives_on_a_claimed_job(store: JobStore, worker: SteppedWorker) -> None:
    """In a mixed fleet: our producer, then an 0.7 worker and an 0.7 producer, both without PERSIST."""
    await enqueue(store, "1")
    await ask(store, "ZREM", QUEUE, "1")
    await store.save_job_result("1", "from the 0.7 worker", 100)
    await store.save_job_definition(Job(id="1", function_name="greet", queue_name=QUEUE))
    await ask(store, "ZADD", QUEUE, 1, "1")
    await worker.take_one()
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_expiry_never_survives_on_a_dead_letter_that_07_queued_again(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await ask(store, "ZREM", QUEUE, "1")
    await store.move_job_to_dlq("1", "default", "boom", datetime.now(UTC))
    await ask(store, "RPOP", "rrq:dlq:default")
    await ask(store, "ZADD", QUEUE, 1, "1")
    await worker.take_one()
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_nothing_due_is_an_answer_too(store: JobStore, worker: SteppedWorker) -> None:
    before = await now_ms(store)
    claim = await worker.claim(5)
    assert (claim.code, claim.jobs, claim.next_due_ms) == (ClaimCode.ANSWERED, [], None)
    assert not claim.more_due
    assert before <= claim.now_ms <= await now_ms(store)


async def test_worker_without_a_free_slot_gets_nothing(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    claim = await worker.claim(0)
    assert (claim.code, claim.jobs) == (ClaimCode.ANSWERED, [])
    assert await is_queued(store, "1")


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


async def test_queues_are_served_in_the_order_given(store: JobStore) -> None:
    await enqueue(store, "low-1", "low-2", queue_name="low")
    await enqueue(store, "high-1", "high-2", queue_name="high")
    worker = await start_worker(store, queues=("high", "low"))
    claim = await worker.claim(3)
    assert ids(claim.jobs) == ["high-1", "high-2", "low-1"]
    assert [job.queue_name for job in claim.jobs] == ["high", "high", "low"]
    assert [job.queue_key for job in claim.jobs] == ["rrq:queue:high", "rrq:queue:high", "rrq:queue:low"]
    assert claim.more_due


async def test_thousands_of_jobs_are_claimed_in_one_call(store: JobStore, worker: SteppedWorker) -> None:
    names = [f"job-{number:04}" for number in range(3000)]
    await enqueue(store, *names)
    claimed = await worker.take(3000)
    assert ids(claimed) == names
    assert len({job.token for job in claimed}) == 3000
    assert len(await worker.in_hand()) == 3000
    assert await worker.finish(*map(done, claimed[:2000])) == [Verdict.STORED] * 2000


async def test_many_workers_share_the_queue_without_sharing_a_job(settings: RRQSettings) -> None:
    stores = [JobStore(settings) for _ in range(6)]
    try:
        names = [f"job-{number}" for number in range(300)]
        await enqueue(stores[0], *names)

        async def work(store: JobStore, name: str) -> list[str]:
            worker = await start_worker(store, name)
            taken: list[str] = []
            while jobs := await worker.take(7):
                taken += ids(jobs)
            return taken

        shares = await asyncio.gather(*(work(store, f"worker-{n}") for n, store in enumerate(stores)))
        assert sorted(name for share in shares for name in share) == sorted(names)
    finally:
        for store in stores:
            await store.aclose()


# Scores


async def test_scores_reach_from_minus_to_plus_infinity(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "first", "never", "fraction", "zero")
    moment = await now_ms(store)
    await ask(store, "ZADD", QUEUE, "-inf", "first", "+inf", "never", moment - 0.75, "fraction", 0, "zero")
    claim = await worker.claim(10)
    assert ids(claim.jobs) == ["first", "zero", "fraction"]
    assert [float(job.due_score) for job in claim.jobs] == [float("-inf"), 0.0, moment - 0.75]
    assert claim.next_due_ms is None
    assert await due_score(store, "never") == float("inf")
    report = await store.reap_workers(DeathCertificate(worker.identity))
    assert report.returned == 3
    assert await due_score(store, "first") == float("-inf")
    assert await due_score(store, "fraction") == moment - 0.75


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


# Named jobs


async def test_named_job_is_claimed_before_it_is_due(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", due="+60000")
    claim = await worker.claim(5, job_ids=["2", "absent"])
    assert ids(claim.jobs) == ["2"]
    assert await is_queued(store, "1")


async def test_named_job_is_found_in_any_of_the_queues(store: JobStore) -> None:
    worker = await start_worker(store, queues=("a", "b"))
    await enqueue(store, "1", queue_name="b")
    claim = await worker.claim(job_ids=["1"])
    assert [job.queue_name for job in claim.jobs] == ["b"]


# Who may not claim


async def test_worker_that_never_registered_gets_nothing(store: JobStore) -> None:
    await enqueue(store, "1")
    before = await snapshot(store)
    claim = await SteppedWorker(store).claim(wait_ms=60_000)
    assert (claim.code, claim.jobs) == (ClaimCode.LEASE_LOST, [])
    assert await snapshot(store) == before


async def test_worker_whose_lease_ended_gets_nothing(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await end_lease(store, worker.worker_id)
    before = await snapshot(store)
    claim = await worker.claim()
    assert (claim.code, claim.jobs) == (ClaimCode.LEASE_LOST, [])
    assert await snapshot(store) == before


async def test_earlier_incarnation_of_a_worker_gets_nothing(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await store.reap_workers(DeathCertificate(worker.identity))
    await start_worker(store, worker.worker_id)
    assert (await worker.claim()).code is ClaimCode.LEASE_LOST


async def test_workers_of_a_draining_pod_get_nothing_and_do_not_wait(store: JobStore) -> None:
    worker = await start_worker(store, pod_uid="pod-1")
    other = await start_worker(store, "other", pod_uid="pod-2")
    await enqueue(store, "1", "2")
    await store.set_drain("pod-1")
    claim = await worker.claim(wait_ms=60_000)
    assert (claim.code, claim.jobs) == (ClaimCode.DRAINING, [])
    assert await ask(store, "EXISTS", store.keys.waiting_key(QUEUE)) == 0
    assert ids(await other.take()) == ["1"]
    await store.clear_drain("pod-1")
    assert ids(await worker.take()) == ["2"]


async def test_nobody_claims_just_after_a_restart_of_redis(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    until = await now_ms(store) + 60_000
    await ask(store, "HSET", store.keys.guard, "claim_not_before_ms", until)
    before = await snapshot(store)
    claim = await worker.claim(wait_ms=60_000)
    assert (claim.code, claim.jobs, claim.next_due_ms) == (ClaimCode.TOO_EARLY, [], until)
    assert await snapshot(store) == before
    await ask(store, "HSET", store.keys.guard, "claim_not_before_ms", await now_ms(store) - 1)
    assert ids(await worker.take()) == ["1"]


# Waiting


async def test_worker_that_found_too_little_is_known_to_wait(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    claim = await worker.claim(2, wait_ms=5000)
    assert ids(claim.jobs) == ["1"]
    ends_ms = float(await ask(store, "ZSCORE", store.keys.waiting_key(QUEUE), worker.worker_id))
    assert ends_ms == claim.now_ms + 5000
    left_ms = await ask(store, "PTTL", store.keys.waiting_key(QUEUE))
    assert await now_ms(store) + left_ms > ends_ms


async def test_worker_that_found_enough_does_not_wait(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.claim(1, wait_ms=5000)
    assert await ask(store, "EXISTS", store.keys.waiting_key(QUEUE)) == 0


async def test_waits_that_are_over_are_cleared_away(store: JobStore, worker: SteppedWorker) -> None:
    await ask(store, "ZADD", store.keys.waiting_key(QUEUE), 1, "long-gone")
    await worker.claim(wait_ms=5000)
    members = await ask(store, "ZRANGE", store.keys.waiting_key(QUEUE), 0, -1)
    assert members == [worker.worker_id.encode()]


# Entries that are no jobs


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("string", ("SET", "rrq:job:bad", "precious")),
        ("list", ("RPUSH", "rrq:job:bad", "precious")),
        ("zset", ("ZADD", "rrq:job:bad", 1, "precious")),
        ("stream", ("XADD", "rrq:job:bad", "*", "field", "precious")),
    ],
)
async def test_key_that_is_no_hash_goes_to_the_dead_letters_and_spoils_no_batch(
    store: JobStore, worker: SteppedWorker, kind: str, make: tuple[Any, ...]
) -> None:
    await enqueue(store, "1", "3")
    await ask(store, *make)
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
    assert kind in fields["last_error"]
    assert "rrq:job:bad:unreadable" in fields["last_error"]
    assert await ask(store, "DUMP", "rrq:job:bad:unreadable") == content
    assert 0 < await ttl_seconds(store, "rrq:job:bad:unreadable") <= 604_800
    assert 0 < await ttl_seconds(store, "rrq:job:bad") <= 604_800
    assert await worker.in_hand() == {"1", "3"}
    assert await worker.finish(*map(done, claim.jobs)) == [Verdict.STORED] * 2


async def test_dead_letter_key_of_another_type_does_not_cost_the_rest_of_the_batch(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "3")
    await ask(store, "SET", "rrq:job:bad", "precious")
    await ask(store, "SET", "rrq:dlq:default", "text")
    await ask(store, "ZADD", QUEUE, 1, "1", 2, "bad", 3, "3")
    claim = await worker.claim(3)
    assert ids(claim.jobs) == ["1", "3"]
    assert await worker.in_hand() == {"1", "3"}


async def test_entry_without_a_job_is_dropped_and_told(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await ask(store, "ZADD", QUEUE, 1, "ghost")
    claim = await worker.claim(2)
    assert ids(claim.jobs) == ["1"]
    assert claim.missing == ["ghost"]
    assert not await is_queued(store, "ghost")
    assert await ask(store, "EXISTS", "rrq:lock:job:ghost", "rrq:job:ghost") == 0
    assert await dead_letters(store) == []


async def test_ghosts_at_the_head_do_not_block_the_queue(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    ghosts = [item for number in range(1500) for item in (number, f"ghost-{number}")]
    await ask(store, "ZADD", QUEUE, *ghosts)
    claim = await worker.claim(1)
    assert ids(claim.jobs) == ["1"]
    assert len(claim.missing) == 1500


async def test_hash_without_a_function_is_still_handed_out(store: JobStore, worker: SteppedWorker) -> None:
    """Whether a hash makes sense as a job is for the worker to find out; it is not lost here."""
    await ask(store, "HSET", "rrq:job:1", "id", "1")
    await ask(store, "ZADD", QUEUE, 1, "1")
    claim = await worker.claim()
    assert ids(claim.jobs) == ["1"]
    assert claim.missing == []


async def test_odd_timeout_in_a_hash_is_read_as_the_default(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2")
    await ask(store, "HSET", "rrq:job:1", "job_timeout_seconds", "soon")
    assert ids(await worker.take(2)) == ["1", "2"]
    assert await ask(store, "PTTL", "rrq:lock:job:1") > 300_000


@pytest.mark.parametrize("timeout", ["1e300", "inf", "-inf", "nan", "-5", "9999999999999999999"])
async def test_absurd_timeout_in_a_hash_spoils_no_batch(
    store: JobStore, worker: SteppedWorker, timeout: str
) -> None:
    await enqueue(store, "1", "2", "3")
    await ask(store, "HSET", "rrq:job:2", "job_timeout_seconds", timeout)
    claim = await worker.claim(3)
    assert {"1", "3"} <= set(ids(claim.jobs))


async def test_id_of_any_bytes_can_be_claimed(store: JobStore, worker: SteppedWorker) -> None:
    odd = b"\xff\x00 \r\n"
    await ask(store, "HSET", b"rrq:job:" + odd, "function_name", "greet")
    await ask(store, "ZADD", QUEUE, 1, odd)
    (job,) = await worker.take()
    assert job.job_id == odd
    assert await worker.finish(done(job)) == [Verdict.STORED]


@pytest.mark.parametrize("queues", [("fine", "broken"), ("broken", "fine")])
async def test_queue_key_of_another_type_does_not_keep_jobs_of_other_queues_from_running(
    store: JobStore, queues: tuple[str, ...]
) -> None:
    worker = await start_worker(store, queues=queues)
    await enqueue(store, "1", queue_name="fine")
    await ask(store, "SET", "rrq:queue:broken", "text")
    claim = await worker.claim(2)
    assert ids(claim.jobs) == ["1"]


# Locks


async def test_locked_entries_at_the_head_are_looked_past(store: JobStore, worker: SteppedWorker) -> None:
    holder = await start_worker(store, "holder")
    locked = [f"locked-{number}" for number in range(30)]
    await enqueue(store, *locked)
    await enqueue(store, "free", due="+0")
    await lock(store, *locked, holder=holder.worker_id)
    assert ids(await worker.take(1)) == ["free"]
    assert await ask(store, "ZCARD", QUEUE) == 30


@pytest.mark.parametrize(("in_front", "is_found"), [(LOOK_AHEAD - 1, True), (LOOK_AHEAD, False)])
@pytest.mark.parametrize("most", [1, 100])
async def test_looking_past_locked_entries_is_bounded(
    store: JobStore, worker: SteppedWorker, in_front: int, is_found: bool, most: int
) -> None:
    holder = await start_worker(store, "holder")
    locked = [f"locked-{number}" for number in range(in_front)]
    await enqueue(store, *locked)
    await enqueue(store, "zz-free")
    await ask(store, "ZADD", QUEUE, await now_ms(store) + 1, "zz-free")
    await lock(store, *locked, holder=holder.worker_id)
    while await now_ms(store) <= float(await due_score(store, "zz-free") or 0):
        pass
    assert ids((await worker.claim(most)).jobs) == (["zz-free"] if is_found else [])


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


async def test_active_entry_for_another_job_does_not_keep_a_stale_lock(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await lock(store, "1", holder="holder")
    await ask(store, "ZADD", "rrq:active:jobs:holder", 1, "another")
    assert ids(await worker.take()) == ["1"]


async def test_lock_key_of_another_type_names_nobody_and_is_replaced(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    await ask(store, "RPUSH", "rrq:lock:job:1", "x")
    assert ids(await worker.take(2)) == ["1", "2"]
    assert await ask(store, "GET", "rrq:lock:job:1") == b"worker-a"


# Suspects (rule 8)


async def test_suspect_is_claimed_alone_by_an_idle_worker(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3")
    await make_suspect(store, "1")
    claim = await worker.claim(3)
    assert ids(claim.jobs) == ["1"]
    assert claim.jobs[0].is_suspect
    assert claim.more_due


async def test_suspect_behind_other_jobs_is_left_for_later(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3")
    await make_suspect(store, "2")
    claim = await worker.claim(3)
    # What comes behind it is left too: it would have to end before the suspect can run.
    assert ids(claim.jobs) == ["1"]
    assert claim.make_room_for == ["2"]
    assert claim.more_due
    assert await is_queued(store, "2")
    assert await store.get_job_lock_owner("2") is None


async def test_busy_worker_is_asked_to_make_room_and_the_next_one_is_not(
    store: JobStore, worker: SteppedWorker
) -> None:
    second = await start_worker(store, "second")
    await enqueue(store, "1", "2")
    (first_job,) = await worker.take()
    await second.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    assert (await worker.claim()).make_room_for == ["suspect"]
    assert (await second.claim()).make_room_for == []
    # The one that holds the reservation is asked again as long as it is busy.
    assert (await worker.claim()).make_room_for == ["suspect"]
    await worker.finish(done(first_job))
    assert ids(await worker.take()) == ["suspect"]
    assert not {"reserved_by", "reserved_until_ms", "reserved_since_ms"} & set(
        await job_fields(store, "suspect")
    )


async def test_reservation_that_ran_out_passes_to_the_next_busy_worker(
    store: JobStore, worker: SteppedWorker
) -> None:
    second = await start_worker(store, "second")
    await enqueue(store, "1", "2")
    await worker.take()
    await second.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    await worker.claim()
    await ask(store, "HSET", "rrq:job:suspect", "reserved_until_ms", await now_ms(store) - 1)
    assert (await second.claim()).make_room_for == ["suspect"]


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


async def test_reservation_ends_with_the_death_of_its_holder(store: JobStore, worker: SteppedWorker) -> None:
    second = await start_worker(store, "second")
    await enqueue(store, "1", "2")
    await worker.take()
    await second.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    assert (await worker.claim()).make_room_for == ["suspect"]
    await store.reap_workers(DeathCertificate(worker.identity, {"signal": "SIGKILL"}))
    assert (await second.claim()).make_room_for == ["1", "suspect"]


async def test_reservation_ends_with_the_lease_of_its_holder(store: JobStore, worker: SteppedWorker) -> None:
    second = await start_worker(store, "second")
    await enqueue(store, "1", "2")
    await worker.take()
    await second.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    await worker.claim()
    await end_lease(store, worker.identity.worker_id)
    assert (await second.claim()).make_room_for == ["suspect"]


async def test_worker_that_was_asked_takes_nothing_that_comes_behind_the_suspect(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take()
    await enqueue(store, "suspect")
    await enqueue(store, *(f"t-{number}" for number in range(50)))
    await make_suspect(store, "suspect")
    claim = await worker.claim(10)
    assert (claim.jobs, claim.make_room_for, claim.more_due) == ([], ["suspect"], True)


async def test_worker_that_was_asked_finds_the_suspect_behind_whatever_came_before_it(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    (first_job,) = await worker.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    waiting = (await worker.claim()).make_room_for
    await enqueue(store, *(f"older-{number}" for number in range(20)), due="@5000")
    assert (await worker.claim(job_ids=waiting)).make_room_for == waiting
    await worker.finish(done(first_job))
    assert ids((await worker.claim(job_ids=waiting)).jobs) == ["suspect"]
    assert (await worker.claim(job_ids=waiting)).make_room_for == []


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


async def test_suspect_that_failed_meanwhile_is_not_run_before_it_is_due_again(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    (job,) = await worker.take()
    await worker.finish(retry(job, delay_ms=60_000))
    claim = await worker.claim(job_ids=["suspect"])
    assert (claim.jobs, claim.make_room_for) == ([], [])


async def test_idle_worker_takes_a_reserved_suspect_at_once(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take()
    await enqueue(store, "suspect")
    await make_suspect(store, "suspect")
    await worker.claim()
    idle = await start_worker(store, "idle")
    assert ids(await idle.take(5)) == ["suspect"]


async def test_two_suspects_never_share_a_worker(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2")
    await make_suspect(store, "1", "2")
    assert ids(await worker.take(2)) == ["1"]
    assert await worker.take(2) == []
    other = await start_worker(store, "other")
    assert ids(await other.take(2)) == ["2"]


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
