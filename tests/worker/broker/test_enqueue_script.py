"""Enqueueing: a batch is stored whole or refused whole, by Redis's clock, and wakes who waits."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    done,
    due_score,
    enqueue,
    ids,
    is_queued,
    job_fields,
    new_job,
    now_ms,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.broker.messages import ClaimCode, Verdict
from rrq.client import JobRequest, RRQClient
from rrq.exc import EnqueueError, InvalidJob
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rrq.embedded import EmbeddedRedis

UNIQUE_LOCK = "rrq:lock:unique:key"


# What is stored


async def test_stored_job_is_readable_and_due_now(store: JobStore) -> None:
    before = await now_ms(store)
    (due_ms,) = await enqueue(store, "1", max_retries=7, job_timeout_seconds=0, result_ttl_seconds=60)
    assert before <= due_ms <= await now_ms(store)
    assert await due_score(store, "1") == due_ms
    job = await store.get_job_definition("1")
    assert job is not None
    assert (job.id, job.function_name, job.job_args, job.job_kwargs) == ("1", "greet", ["world"], {})
    assert (job.max_retries, job.job_timeout_seconds, job.result_ttl_seconds) == (7, 0, 60)
    assert (job.status.value, job.current_retries, job.queue_name) == ("PENDING", 0, QUEUE)
    assert job.next_scheduled_run_time == job.enqueue_time
    assert job.enqueue_time.tzinfo is not None
    assert int(job.enqueue_time.timestamp() * 1000) == due_ms
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_reply_tells_the_time_and_the_due_time_of_each_job(store: JobStore) -> None:
    jobs = [
        new_job("now"),
        new_job("later", due="+1500", queue_name="other"),
        new_job("absolute", due="@1700000000123"),
        new_job("past", due="@5", queue_name="other"),
    ]
    answer = await store.enqueue_jobs(jobs, "e.1")
    moment = answer.now_us // 1000
    assert answer.due_ms == [moment, moment + 1500, 1_700_000_000_123, 5]
    assert await due_score(store, "later", "other") == moment + 1500
    assert await due_score(store, "absolute") == 1_700_000_000_123


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 2, 29, 12, 30, 15, 500_000, tzinfo=UTC),
        datetime(2000, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(2100, 3, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
)
async def test_calendar_of_the_scripts_is_that_of_python(store: JobStore, moment: datetime) -> None:
    due_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    await enqueue(store, "1", due=f"@{due_ms}")
    text = (await job_fields(store, "1"))["next_scheduled_run_time"]
    assert datetime.fromisoformat(text) == moment


@pytest.mark.parametrize("due", ["+0.5", "@1700000000123.25"])
async def test_fraction_of_a_millisecond_is_a_due_time_like_any(store: JobStore, due: str) -> None:
    (due_ms,) = await enqueue(store, "1", due=due)
    score = await due_score(store, "1")
    assert score is not None
    assert 0 <= score - due_ms < 1


async def test_job_due_before_1970_is_due_now(client: RRQClient) -> None:
    """`datetime.min` is a way to say "at once"; it must not be taken for an error code."""
    store = client.job_store
    waiter = await start_worker(store)
    await waiter.claim(wait_ms=60_000)
    for job_id, moment in (
        ("1", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("2", datetime(1960, 1, 1, tzinfo=UTC)),
    ):
        await client.enqueue("greet", _job_id=job_id, _defer_until=moment)
    assert await tokens(store) == 1
    assert sorted(ids(await waiter.take(2))) == ["1", "2"]


# An id that is used again


async def test_id_used_again_is_a_new_job_without_traces_of_the_old(store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1", unique_key="key", trace_context="{}")
    await store.watch_job("1", wants_event=True)
    await worker.finish(done(await worker.take_one(), "old", ttl=60))
    await ask(store, "HSET", "rrq:job:1", "suspect", "1", "crashes", "2", "last_error", "boom")
    await enqueue(store, "1")
    fields = await job_fields(store, "1")
    assert set(fields) == {
        "id",
        "function_name",
        "job_args",
        "job_kwargs",
        "enqueue_time",
        "status",
        "current_retries",
        "next_scheduled_run_time",
        "max_retries",
        "job_timeout_seconds",
        "result_ttl_seconds",
        "queue_name",
        "result",
        "attempt_token",
    }
    assert (fields["status"], fields["result"]) == ("PENDING", "null")
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_worker_that_waits_hears_when_the_old_attempt_of_an_id_has_ended(store: JobStore) -> None:
    worker, waiter = await start_worker(store), await start_worker(store, "waiter")
    await enqueue(store, "1")
    old = await worker.take_one()
    await enqueue(store, "1")
    await waiter.claim(wait_ms=60_000)
    await worker.finish(done(old))
    assert await tokens(store) == 1


# Keys of the wrong type


async def test_job_key_of_another_type_refuses_that_job_alone(store: JobStore) -> None:
    await ask(store, "RPUSH", "rrq:job:bad", "precious")
    answer = await store.enqueue_jobs([new_job("1"), new_job("bad"), new_job("2")], "e.1")
    assert [due >= 0 for due in answer.due_ms] == [True, False, True]
    assert answer.due_ms[1] == -1
    assert not await is_queued(store, "bad")
    assert await ask(store, "LRANGE", "rrq:job:bad", 0, -1) == [b"precious"]


async def test_client_says_which_key_is_in_the_way(client: RRQClient) -> None:
    await ask(client.job_store, "SET", "rrq:job:bad", "precious")
    with pytest.raises(InvalidJob, match="rrq:job:bad"):
        await client.enqueue("greet", _job_id="bad")


async def test_queue_key_of_another_type_refuses_the_whole_batch(client: RRQClient) -> None:
    store = client.job_store
    await ask(store, "RPUSH", QUEUE, "text")
    before = await snapshot(store)
    jobs = [new_job("1", queue_name="fine"), new_job("2"), new_job("3", queue_name="fine")]
    with pytest.raises(ResponseError, match=f"RRQTYPE {QUEUE} holds a list, not a queue"):
        await store.enqueue_jobs(jobs, "e.1")
    assert await snapshot(store) == before
    with pytest.raises(EnqueueError, match="Nothing of this batch was queued"):
        await client.enqueue("greet")


# Unique keys (compat 10.8)


async def test_lock_without_expiry_does_not_defer(store: JobStore) -> None:
    """As in 0.7, where such a lock counts as having no time left."""
    await ask(store, "SET", UNIQUE_LOCK, "owner")
    (due_ms,) = await enqueue(store, "2", unique_key="key")
    assert due_ms <= await now_ms(store)
    assert await store.get_unique_lock_holder("key") == "owner"


async def test_of_simultaneous_unique_jobs_one_is_due_and_the_rest_wait(settings: RRQSettings) -> None:
    stores = [JobStore(settings) for _ in range(5)]
    try:
        dues = await asyncio.gather(
            *(enqueue(store, f"job-{n}", unique_key="key") for n, store in enumerate(stores * 4))
        )
        current = await now_ms(stores[0])
        assert sum(due_ms <= current for (due_ms,) in dues) == 1
    finally:
        for store in stores:
            await store.aclose()


# Wake-ups


async def wait(store: JobStore, *worker_ids: str, queues: tuple[str, ...] = (QUEUE,)) -> list[SteppedWorker]:
    """Workers that found nothing and said that they will wait."""
    workers = [await start_worker(store, worker_id, queues=queues) for worker_id in worker_ids]
    for worker in workers:
        await worker.claim(wait_ms=60_000)
    return workers


@pytest.mark.parametrize(("jobs", "woken"), [(10, 3), (2, 2)])
async def test_jobs_wake_as_many_workers_as_they_need_and_each_once(
    store: JobStore, jobs: int, woken: int
) -> None:
    await wait(store, "a", "b", "c")
    await enqueue(store, *(f"job-{n}" for n in range(jobs)))
    assert await tokens(store) == woken


async def test_tokens_left_lying_are_not_added_to(store: JobStore) -> None:
    await wait(store, "a", "b")
    for n in range(10):
        await enqueue(store, f"job-{n}", f"other-{n}")
    assert await tokens(store) == 2


async def test_tokens_that_nobody_takes_go_away(store: JobStore) -> None:
    await wait(store, "a")
    await enqueue(store, "1")
    assert 0 < await ask(store, "PTTL", store.keys.wake_key(QUEUE)) <= 5000


async def test_worker_whose_wait_is_over_gets_no_token(store: JobStore) -> None:
    await wait(store, "a")
    await ask(store, "ZADD", store.keys.waiting_key(QUEUE), await now_ms(store) - 1, "a")
    await enqueue(store, "1")
    assert await tokens(store) == 0


async def test_last_waiter_that_wakes_up_takes_stale_tokens_away(store: JobStore) -> None:
    (worker,) = await wait(store, "a")
    await enqueue(store, "1")
    assert await tokens(store) == 1
    await worker.claim()
    assert await tokens(store) == 0


async def test_deferred_job_wakes_one_worker_when_it_is_the_new_head(store: JobStore) -> None:
    await wait(store, "a", "b")
    await enqueue(store, "far", due="+60000")
    assert await tokens(store) == 1
    await ask(store, "DEL", store.keys.wake_key(QUEUE))
    await enqueue(store, "farther", due="+120000")
    assert await tokens(store) == 0
    await enqueue(store, "near", due="+30000")
    assert await tokens(store) == 1


async def test_blocked_worker_is_woken_at_once(store: JobStore, settings: RRQSettings) -> None:
    (worker,) = await wait(store, "a")
    waiting = asyncio.create_task(store.wait_for_wake([QUEUE], 60))
    producer = JobStore(settings)
    try:
        await enqueue(producer, "1")
        assert await asyncio.wait_for(waiting, 20) is True
    finally:
        await producer.aclose()
    assert ids(await worker.take()) == ["1"]


async def test_waiting_worker_is_woken_through_its_queues_and_no_other(store: JobStore) -> None:
    await wait(store, "a", queues=("emails", "other"))
    await enqueue(store, "1", queue_name="foreign")
    await enqueue(store, "2", queue_name="other")
    assert [await tokens(store, name) for name in ("foreign", "other", "emails")] == [0, 1, 0]


# The channel for onlookers


async def test_onlookers_are_told_at_most_every_50_ms_per_queue(store: JobStore) -> None:
    async with store.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(store.keys.notify_channel)
        await listener.get_message(timeout=20)
        names = {b"rrq:queue:default", b"rrq:queue:other"}
        heard: list[bytes] = []
        started_ms = now = await now_ms(store)
        # Until enough was heard, however long that takes; more than enough would be heard in the same time.
        while min(heard.count(name) for name in names) < 4 and now < started_ms + 20_000:
            await enqueue(store, "1")
            await enqueue(store, "2", queue_name="other")
            while (message := await listener.get_message(timeout=0.005)) is not None:
                heard.append(message["data"])
            now = await now_ms(store)
    assert set(heard) == names
    for name in names:
        assert 4 <= heard.count(name) <= (now - started_ms) // 50 + 1


@pytest.fixture
async def own_store(own_redis: EmbeddedRedis) -> AsyncIterator[JobStore]:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    yield store
    await store.aclose()


@pytest.fixture
async def open_as(own_redis: EmbeddedRedis, own_store: JobStore) -> AsyncIterator[Callable[..., Any]]:
    """Open a store as an ACL user with the given rules."""
    opened: list[JobStore] = []

    async def open_store(*rules: str) -> JobStore:
        await ask(own_store, "ACL SETUSER", "limited", "on", ">secret", *rules)
        dsn = own_redis.dsn.replace("redis://", "redis://limited:secret@")
        store = JobStore(RRQSettings(redis_dsn=dsn))
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        await store.aclose()


async def test_producer_without_access_to_the_channel_still_enqueues(
    own_store: JobStore, open_as: Callable[..., Any]
) -> None:
    producer = await open_as("~rrq:*", "resetchannels", "+@all")
    async with own_store.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(own_store.keys.notify_channel)
        assert len(await enqueue(producer, "1")) == 1
        heard = [await listener.get_message(timeout=0.05) for _ in range(3)]
    assert heard == [None, None, None]
    assert await is_queued(own_store, "1")


async def test_producer_without_the_publish_command_still_enqueues(
    own_store: JobStore, open_as: Callable[..., Any]
) -> None:
    producer = await open_as("~rrq:*", "allchannels", "+@all", "-publish")
    assert len(await enqueue(producer, "1")) == 1
    assert await is_queued(own_store, "1")


# Memory


async def test_full_redis_refuses_a_batch_wholly_and_says_why(own_store: JobStore) -> None:
    await enqueue(own_store, "warm-up")
    await ask(own_store, "CONFIG SET", "maxmemory-policy", "noeviction")
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    before = await snapshot(own_store)
    for changes in ({}, {"unique_key": "key"}, {"due": "+1000"}):
        with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
            await enqueue(own_store, "1", "2", **changes)
    assert await snapshot(own_store) == before
    client = RRQClient(own_store.settings, own_store)
    with pytest.raises(EnqueueError, match=r"maxmemory.* Nothing of this batch was queued"):
        await client.enqueue("greet")
    assert await snapshot(own_store) == before
    await ask(own_store, "CONFIG SET", "maxmemory", "0")
    assert len(await enqueue(own_store, "1", "2")) == 2


# Whose clock


@pytest.mark.parametrize("shift", [timedelta(hours=1), timedelta(hours=-1)])
async def test_wrong_clock_of_the_process_makes_no_difference(
    client: RRQClient, monkeypatch: pytest.MonkeyPatch, shift: timedelta
) -> None:
    """Only `_defer_until` names an absolute time; everything else is counted by Redis."""

    class ShiftedClock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Self:
            return super().now(tz) + shift

    for name, module in list(sys.modules.items()):
        if name.startswith("rrq.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", ShiftedClock)
    store = client.job_store
    before = await now_ms(store)
    worker = await start_worker(store)
    at_once = await client.enqueue("greet", _job_id="now")
    deferred = await client.enqueue("greet", _job_id="later", _defer_by=timedelta(seconds=20))
    await client.enqueue_many([JobRequest("greet", job_id="many")])
    assert at_once is not None
    assert deferred is not None
    after = await now_ms(store)
    for job_id, distance in (("now", 0), ("later", 20_000), ("many", 0)):
        score = await due_score(store, job_id)
        assert score is not None
        assert before + distance <= score <= after + distance
    assert before <= at_once.enqueue_time.timestamp() * 1000 <= after + 1
    claim = await worker.claim(10)
    assert claim.code is ClaimCode.ANSWERED
    assert sorted(ids(claim.jobs)) == ["many", "now"]
    assert await worker.finish(*map(done, claim.jobs)) == [Verdict.STORED] * 2
    completed_at = datetime.fromisoformat((await job_fields(store, "now"))["completion_time"])
    assert before <= completed_at.timestamp() * 1000 <= await now_ms(store) + 1


async def test_an_id_enqueued_again_into_another_queue_moves_there(client: RRQClient) -> None:
    store = client.job_store
    await client.enqueue("send", _job_id="order-1", _queue_name="slow")
    await client.enqueue("send", _job_id="order-1", _queue_name="fast")

    assert await store.get_queued_job_ids("slow") == []
    assert await store.get_queued_job_ids("fast") == ["order-1"]
