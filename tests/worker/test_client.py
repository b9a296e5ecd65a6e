"""The producer's side: what a job looks like once it is queued, and what is refused."""

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from proxy import RedisProxy
from rrq.broker.messages import CancelCode
from rrq.client import JobRequest, RRQClient
from rrq.embedded import EmbeddedRedis
from rrq.exc import EnqueueError, InvalidJob, RedisUnavailable, RRQError, UnserializableArguments
from rrq.job import Job, JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import run_burst, running
from waiting import eventually

QUEUE = "rrq:queue:default"


async def enqueue(client: RRQClient, *args: Any, **options: Any) -> Job:
    job = await client.enqueue(*args, **options)
    assert job is not None, "a job is always returned"
    return job


async def read_score(client: RRQClient, job_id: str, queue: str = QUEUE) -> float:
    score = await client.job_store.redis.zscore(queue, job_id)
    assert score is not None, f"job {job_id} is not in {queue}"
    return float(score)


async def read_hash(client: RRQClient, job_id: str) -> dict[str, str]:
    fields = await client.job_store.get_job_data_dict(job_id)
    assert fields is not None, f"job {job_id} has no hash"
    return fields


async def count_keys(client: RRQClient, pattern: str = "rrq:job:*") -> int:
    return len(await client.job_store.redis.keys(pattern))


def to_ms(moment: datetime) -> float:
    return moment.timestamp() * 1000


# Construction and end


async def test_a_client_closes_only_the_store_it_made_and_as_often_as_it_is_told(
    settings: RRQSettings, store: JobStore
) -> None:
    client = RRQClient(settings, job_store=store)
    await enqueue(client, "send")
    connected = store.connection._link
    await client.close()
    assert store.connection._link is connected
    assert connected is not None
    assert connected.is_open

    client = RRQClient(settings)
    assert client.settings is settings
    await enqueue(client, "send")
    await client.close()
    await client.aclose()


NEVER_CLOSED = """
import asyncio, sys
from rrq.client import RRQClient
from rrq.settings import RRQSettings

client = RRQClient(RRQSettings(redis_dsn=sys.argv[1]))

async def use(job_id):
    await client.enqueue("send", _job_id=job_id, _defer_by=60)
    assert (await client.get_job_status(job_id)).status == 'PENDING'
    assert await client.wait_for_completion(job_id, timeout_seconds=0.1) is None

asyncio.run(use("first"))
asyncio.run(use("second"))
"""


def test_a_client_that_was_never_closed_works_on_the_next_event_loop(redis_dsn: str) -> None:
    # In a process of its own, which ends with the sockets that nobody closed.
    command = [sys.executable, "-c", NEVER_CLOSED, redis_dsn]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    with redis.Redis.from_url(redis_dsn) as connection:
        assert connection.zrange(QUEUE, 0, -1) == [b"first", b"second"]


# The steps of enqueueing


async def test_a_plain_job_is_due_at_once_with_the_defaults_written_out(client: RRQClient) -> None:
    before = time.time() * 1000 - 1

    job = await enqueue(client, "send", 1, "two", to="you")

    assert job.status is JobStatus.PENDING
    assert (job.current_retries, job.max_retries) == (0, 5)
    assert (job.job_timeout_seconds, job.result_ttl_seconds) == (300, 86_400)
    assert job.queue_name == QUEUE
    assert (job.job_args, job.job_kwargs) == ([1, "two"], {"to": "you"})
    assert job.next_scheduled_run_time == job.enqueue_time
    assert job.enqueue_time.tzinfo is UTC
    score = await read_score(client, job.id)
    assert score == math.floor(to_ms(job.enqueue_time))
    assert before <= score <= time.time() * 1000 + 1
    assert await client.job_store.get_job_definition(job.id) == job


@pytest.mark.parametrize("queue", ["emails", "rrq:queue:emails"])
async def test_the_hash_is_what_rrq_0_7_reads(client: RRQClient, queue: str) -> None:
    job = await enqueue(client, "send", 1, to="ä", _queue_name=queue, _unique_key="once", _max_retries=True)

    fields = await read_hash(client, job.id)

    assert await read_score(client, job.id, "rrq:queue:emails") > 0
    for name in ("enqueue_time", "next_scheduled_run_time"):
        assert fields.pop(name).endswith("Z")
    assert json.loads(fields.pop("job_args")) == [1]
    assert json.loads(fields.pop("job_kwargs")) == {"to": "ä"}
    names = (
        *("id", "queue_name", "job_unique_key", "status", "current_retries", "result", "max_retries"),
        *("job_timeout_seconds", "result_ttl_seconds"),
    )
    assert [fields[name] for name in names] == [
        *(job.id, queue, "once", "PENDING", "0", "null", "1", "300", "86400"),
    ]
    assert not {"completion_time", "last_error", "dlq_name"} & fields.keys()


@pytest.mark.parametrize("number", [0, 4.0])
async def test_numbers_of_a_job_are_stored_as_given_also_zeros(client: RRQClient, number: float) -> None:
    job = await enqueue(
        client, "send", _max_retries=number, _job_timeout_seconds=number, _result_ttl_seconds=number
    )
    fields = await read_hash(client, job.id)
    stored = (fields["max_retries"], fields["job_timeout_seconds"], fields["result_ttl_seconds"])
    assert stored == (str(int(number)),) * 3


async def test_settings_are_read_at_each_call(client: RRQClient) -> None:
    client.settings.default_queue_name = "changed"
    client.settings.default_max_retries = 2
    client.settings.default_job_timeout_seconds = 7.0  # type: ignore[assignment]  # applications do this

    job = await enqueue(client, "send")

    assert (job.queue_name, job.max_retries, job.job_timeout_seconds) == ("changed", 2, 7)
    assert (await read_hash(client, job.id))["job_timeout_seconds"] == "7"
    assert await read_score(client, job.id, "rrq:queue:changed") > 0


@pytest.mark.parametrize(
    "moment",
    [
        datetime.now(timezone(timedelta(hours=5))) + timedelta(hours=2, microseconds=7),
        datetime(2035, 1, 2, 3, 4, 5),  # noqa: DTZ001  a naive moment counts as UTC
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
    ids=["aware", "naive", "past", "the last of the calendar"],
)
async def test_a_job_is_deferred_until_a_moment(client: RRQClient, moment: datetime) -> None:
    job = await enqueue(client, "send", _defer_until=moment, _defer_by=timedelta(days=30))

    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    stored = await client.job_store.get_job_definition(job.id)
    assert stored is not None
    assert stored.next_scheduled_run_time is not None
    assert abs(stored.next_scheduled_run_time - moment) < timedelta(milliseconds=1)
    assert await read_score(client, job.id) == math.floor(to_ms(moment))
    is_past = moment < datetime.now(UTC)
    assert await client.job_store.get_ready_job_ids("default", 5) == ([job.id] if is_past else [])


@pytest.mark.parametrize(
    ("defer_by", "seconds"),
    [
        (timedelta(seconds=90), 90),
        (timedelta(milliseconds=1500), 1.5),
        (45, 45),
        (0.25, 0.25),
        (timedelta(seconds=-5), 0),
        (-3, 0),
        (0, 0),
    ],
)
async def test_a_job_is_deferred_by_a_time_or_a_number_of_seconds(
    client: RRQClient, defer_by: timedelta | float, seconds: float
) -> None:
    job = await enqueue(client, "send", _defer_by=defer_by)

    due_ms = math.floor(to_ms(job.enqueue_time)) + seconds * 1000
    assert await read_score(client, job.id) == pytest.approx(due_ms, abs=1)
    assert job.next_scheduled_run_time is not None
    assert to_ms(job.next_scheduled_run_time) == pytest.approx(due_ms, abs=1)


async def test_using_an_id_again_makes_a_new_job_of_it(client: RRQClient) -> None:
    await enqueue(client, "old", 1, _job_id="j1", _unique_key="once", _defer_by=500)
    await client.job_store.redis.hset("rrq:job:j1", mapping={"last_error": "x", "completion_time": "x"})
    await client.job_store.redis.expire("rrq:job:j1", 100)

    await enqueue(client, "new", 2, _job_id="j1")

    fields = await read_hash(client, "j1")
    assert fields["function_name"] == "new"
    assert json.loads(fields["job_args"]) == [2]
    assert not {"last_error", "completion_time", "job_unique_key"} & fields.keys()
    assert await client.job_store.redis.ttl("rrq:job:j1") == -1
    assert await client.job_store.get_ready_job_ids("default", 9) == ["j1"]


@pytest.mark.parametrize("new_key", ["other", None])
async def test_an_id_used_again_with_another_unique_key_frees_the_first(
    client: RRQClient, new_key: str | None
) -> None:
    await enqueue(client, "send", _job_id="report", _unique_key="once")
    await enqueue(client, "send", _job_id="report", _unique_key=new_key)

    next_of_first = await enqueue(client, "send", _unique_key="once")

    assert await client.job_store.get_unique_lock_holder("once") == next_of_first.id
    assert next_of_first.next_scheduled_run_time == next_of_first.enqueue_time
    if new_key is not None:
        assert await client.job_store.get_unique_lock_holder(new_key) == "report"


async def test_an_id_used_again_frees_no_unique_key_of_another_job(client: RRQClient) -> None:
    owner = await enqueue(client, "send", _unique_key="once")
    await enqueue(client, "send", _job_id="duplicate", _unique_key="once")
    await enqueue(client, "send", _job_id="duplicate")

    assert await client.job_store.get_unique_lock_holder("once") == owner.id


async def test_parallel_enqueues_all_arrive_and_of_those_with_one_key_one_is_due(client: RRQClient) -> None:
    jobs = await asyncio.gather(*(enqueue(client, "send", n, _queue_name="many") for n in range(100)))
    assert len({job.id for job in jobs}) == 100
    assert await client.job_store.redis.zcard("rrq:queue:many") == 100

    await asyncio.gather(*(enqueue(client, "send", n, _unique_key="once") for n in range(20)))
    assert len(await client.job_store.get_ready_job_ids("default", 50)) == 1
    assert await client.job_store.redis.zcard(QUEUE) == 20


# Unique keys


async def test_a_duplicate_is_deferred_until_the_lock_of_the_first_ends_and_never_refused(
    client: RRQClient,
) -> None:
    first = await enqueue(client, "send", _unique_key="once")

    assert first.next_scheduled_run_time == first.enqueue_time
    assert await client.job_store.get_job_definition(first.id) == first
    assert 21_500 <= await client.job_store.get_lock_ttl("once") <= 21_600

    second = await enqueue(client, "send", _unique_key="once")
    third = await enqueue(client, "send", _unique_key="once", _defer_by=timedelta(days=2))

    assert await client.job_store.get_unique_lock_holder("once") == first.id
    waits_ms = await read_score(client, second.id) - to_ms(second.enqueue_time)
    assert waits_ms == pytest.approx(21_600_000, abs=60_000)
    assert second.next_scheduled_run_time is not None
    assert second.next_scheduled_run_time > second.enqueue_time + timedelta(hours=5)
    # Deferred further than the lock lasts, it keeps its time.
    waits_ms = await read_score(client, third.id) - to_ms(third.enqueue_time)
    assert waits_ms == pytest.approx(2 * 86_400_000, abs=1_000)


async def test_the_lock_of_a_deferred_job_outlives_its_start(client: RRQClient) -> None:
    later = timedelta(days=1)
    await enqueue(client, "send", _unique_key="by", _defer_by=later)
    await enqueue(client, "send", _unique_key="until", _defer_until=datetime.now(UTC) + later)

    for key in ("by", "until"):
        assert 86_300 <= await client.job_store.get_lock_ttl(key) <= 86_401


async def test_a_refused_job_leaves_no_unique_lock(client: RRQClient) -> None:
    await client.job_store.redis.set(QUEUE, "no queue")
    with pytest.raises(EnqueueError):
        await client.enqueue("send", _unique_key="once")
    await client.job_store.redis.set("rrq:job:j1", "no hash")
    with pytest.raises(EnqueueError):
        await client.enqueue("send", _unique_key="twice", _job_id="j1", _queue_name="other")

    assert await client.job_store.get_unique_lock_holder("once") is None
    assert await client.job_store.get_unique_lock_holder("twice") is None


# Many at once


async def test_many_jobs_come_back_in_order_over_several_batches_with_all_their_options(
    client: RRQClient,
) -> None:
    requests = [
        JobRequest("send", [n], {"n": n, "queue_name": "q"}, queue_name=("a", "b")[n % 2], job_id=f"job-{n}")
        for n in range(57)
    ]
    numbers = {"max_retries": 1, "job_timeout_seconds": 2, "result_ttl_seconds": 3}
    requests.append(
        JobRequest("send", unique_key="once", defer_by=60, trace_context={"traceparent": "00-ab"}, **numbers)  # type: ignore[arg-type]  # all are integers
    )

    *jobs, last = await client.enqueue_many(iter(requests), batch_size=10)

    assert [job.id for job in jobs] == [f"job-{n}" for n in range(57)]
    assert await client.job_store.batch_get_queue_sizes(["a", "b"]) == {"a": 29, "b": 28}
    assert await client.job_store.get_job_definition("job-41") == jobs[41]
    assert (last.max_retries, last.job_timeout_seconds, last.result_ttl_seconds) == (1, 2, 3)
    assert await client.job_store.get_job_definition(last.id) == last
    assert await client.job_store.get_unique_lock_holder("once") == last.id


async def test_a_batch_with_one_bad_job_is_refused_whole_and_those_before_it_stay(client: RRQClient) -> None:
    requests = [JobRequest("send", [n]) for n in range(4)]
    requests.append(JobRequest("send", [object()]))

    assert await client.enqueue_many([]) == []
    with pytest.raises(UnserializableArguments):
        await client.enqueue_many(requests, batch_size=2)

    assert await client.job_store.redis.zcard(QUEUE) == 4


async def test_a_batch_whose_queue_is_no_queue_stores_nothing(client: RRQClient) -> None:
    await client.job_store.redis.set("rrq:queue:odd", "no queue")

    with pytest.raises(EnqueueError, match="odd"):
        await client.enqueue_many([JobRequest("send"), JobRequest("send", queue_name="odd")])

    assert await count_keys(client) == 0


# What is refused


async def test_arguments_that_json_cannot_express_are_a_type_error(client: RRQClient) -> None:
    for bad in (object(), {1, 2}, b"bytes", 1j, {(1, 2): 3}):
        with pytest.raises(TypeError, match="send") as caught:
            await client.enqueue("send", [bad])
        assert isinstance(caught.value, EnqueueError)
        with pytest.raises(TypeError):
            await client.enqueue("send", key={"deep": bad})

    assert await count_keys(client) == 0


async def test_oversized_arguments_are_refused_with_the_limit_named(client: RRQClient) -> None:
    client.settings.max_job_payload_bytes = 1000

    with pytest.raises(InvalidJob, match="max_job_payload_bytes"):
        await client.enqueue("send", "x" * 1000)

    assert await count_keys(client) == 0
    await enqueue(client, "send", "x" * 900)
    client.settings.max_job_payload_bytes = 0
    await enqueue(client, "send", "x" * 100_000)


async def test_arguments_with_half_a_surrogate_pair_arrive_unchanged(client: RRQClient) -> None:
    job = await enqueue(client, "send", "\udcff", key="\ud800")

    stored = await client.job_store.get_job_definition(job.id)

    assert stored is not None
    assert stored.job_args == ["\udcff"]
    assert stored.job_kwargs == {"key": "\ud800"}


NAMES = ("_queue_name", "_job_id", "_unique_key")
NUMBERS = ("_max_retries", "_job_timeout_seconds", "_result_ttl_seconds")


async def test_what_no_worker_could_read_is_refused_before_anything_is_stored(client: RRQClient) -> None:
    for function in ("", None, 5, "send\udcff"):
        with pytest.raises(InvalidJob):
            await client.enqueue(function)  # type: ignore[arg-type]  # the point
    for option in NAMES:
        with pytest.raises(InvalidJob, match="surrogate"):
            await enqueue(client, "send", **{option: "x\udcff"})
        with pytest.raises((InvalidJob, TypeError, AttributeError)):
            await enqueue(client, "send", **{option: 5})
    for option in NUMBERS:
        for value in (0.5, float("nan"), float("inf"), "5", [1]):
            with pytest.raises(InvalidJob, match=option.strip("_")):
                await enqueue(client, "send", **{option: value})
        with pytest.raises((InvalidJob, OverflowError)):
            await enqueue(client, "send", **{option: 10**30})
    for defer_by in (float("nan"), float("inf"), 1e12, 1e300, timedelta.max):
        with pytest.raises((InvalidJob, OverflowError, ValueError)):
            await client.enqueue("send", _defer_by=defer_by)
    assert await count_keys(client) == 0


async def test_an_empty_option_is_one_that_was_not_given(client: RRQClient) -> None:
    job = await enqueue(client, "send", **dict.fromkeys(NAMES, ""))

    assert len(job.id) == 36
    assert job.queue_name == QUEUE
    assert await read_score(client, job.id) > 0
    assert await count_keys(client, "rrq:lock:unique:*") == 0


async def test_a_queue_may_have_any_name(
    settings: RRQSettings, client: RRQClient, registry: JobRegistry
) -> None:
    names = ["with space", "ümläut", "a:b:c", "{tag}", "*?[x]", "line\nbreak", "\0", "rrq:dlq:x"]
    jobs = [await enqueue(client, "send", _queue_name=name) for name in names]
    for name, job in zip(names, jobs, strict=True):
        assert await read_score(client, job.id, f"rrq:queue:{name}") > 0
    await run_burst(settings, registry, queues=names)

    ended = [await client.get_job_status(job.id) for job in jobs]
    assert [seen and seen.status for seen in ended] == [JobStatus.COMPLETED] * len(names)


async def test_a_call_that_cannot_be_sent_does_not_disturb_the_next_one(settings: RRQSettings) -> None:
    # What would wait for the answer of another call would wait for so long.
    settings.redis_socket_timeout_seconds = 60.0
    async with aclosing(RRQClient(settings)) as client:
        job = await enqueue(client, "send")
        for odd_value in ("\udcff", uuid4(), None):
            with pytest.raises((ValueError, TypeError)):
                await client.job_store.connection.call("ECHO", odd_value)

        started = time.monotonic()
        status = await client.get_job_status(job.id)

        assert status is not None
        assert status.status is JobStatus.PENDING
        assert time.monotonic() - started < 20


# Following a job


async def answer(context: dict[str, Any], *args: Any, **kwargs: Any) -> str:
    return "done"


async def fail(context: dict[str, Any]) -> None:
    raise RuntimeError("broken")


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.register("send", answer)
    registry.register("fail", fail)
    return registry


@pytest.fixture
async def worker(settings: RRQSettings, registry: JobRegistry) -> AsyncIterator[RRQWorker]:
    worker = RRQWorker(settings, registry)
    async with running(worker):
        yield worker


async def test_the_status_of_a_job_follows_it_and_waiting_ends_as_soon_as_the_job_does(
    settings: RRQSettings, client: RRQClient, registry: JobRegistry
) -> None:
    job = await enqueue(client, "send", _defer_by=0.3)
    failing = await enqueue(client, "fail", _max_retries=1)
    queued = await client.get_job_status(job.id)
    assert queued is not None
    assert (queued.status, queued.result, queued.last_error) == (JobStatus.PENDING, None, None)
    started = time.monotonic()

    async with running(RRQWorker(settings, registry)):
        result = await client.wait_for_completion(job.id, timeout_seconds=60, block_interval_seconds=60)
        failed = await client.wait_for_completion(failing.id, timeout_seconds=30)

    assert time.monotonic() - started < 20
    assert result is not None
    assert (result.status, result.result) == (JobStatus.COMPLETED, "done")
    assert await client.get_job_status(job.id) == result
    assert await client.wait_for_completion(job.id, timeout_seconds=0) == result
    assert failed is not None
    assert (failed.status, failed.last_error) == (JobStatus.FAILED, "broken")
    assert await client.get_job_status("nobody") is None


async def test_waiting_ends_with_a_cancellation_too(client: RRQClient) -> None:
    job = await enqueue(client, "send", _defer_by=60)
    waiting = asyncio.create_task(client.wait_for_completion(job.id, timeout_seconds=30))
    await eventually(lambda: client.job_store.redis.hexists(f"rrq:job:{job.id}", "waited_for"))

    assert await client.cancel(job.id) is CancelCode.CANCELLED

    result = await waiting
    assert result is not None
    assert result.status is JobStatus.CANCELLED


async def test_waiting_gives_up_at_its_deadline(client: RRQClient) -> None:
    job = await enqueue(client, "send", _defer_by=60)
    started = time.monotonic()

    # Not at the end of the interval, which is a minute away.
    assert await client.wait_for_completion(job.id, timeout_seconds=0.3, block_interval_seconds=60) is None

    assert 0.25 < time.monotonic() - started < 20
    assert await client.wait_for_completion("nobody", timeout_seconds=5) is None


async def test_waiting_for_a_second_life_does_not_spin_on_the_events_of_the_first(
    client: RRQClient, worker: RRQWorker
) -> None:
    job = await enqueue(client, "send", _defer_by=0.3, _job_id="j1")
    await client.wait_for_completion(job.id, timeout_seconds=10)
    await enqueue(client, "send", _defer_by=60, _job_id="j1")
    before = await count_commands(client, "xread")

    assert await client.wait_for_completion("j1", timeout_seconds=1, block_interval_seconds=0.25) is None

    assert await count_commands(client, "xread") - before < 20


async def count_commands(client: RRQClient, name: str) -> int:
    stats = await client.job_store.redis.info("commandstats")
    calls = stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
    return int(calls)


# Cancelling


async def test_a_queued_job_is_cancelled(client: RRQClient) -> None:
    job = await enqueue(client, "send", _unique_key="once", _queue_name="emails")

    assert await client.cancel(job.id) is CancelCode.CANCELLED

    fields = await read_hash(client, job.id)
    assert fields["status"] == "CANCELLED"
    assert await client.job_store.get_queued_job_ids("emails") == []
    assert await client.job_store.get_unique_lock_holder("once") is None
    assert await client.job_store.redis.ttl(f"rrq:job:{job.id}") > 0
    assert await client.cancel(job.id) is CancelCode.ENDED
    assert await client.cancel("nobody") is CancelCode.NOT_FOUND


async def test_a_running_job_is_cancelled_at_once(settings: RRQSettings, client: RRQClient) -> None:
    settings.worker_lease_seconds = 300.0  # the next heartbeat, which would tell too, is far away
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(context: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    registry = JobRegistry()
    registry.register("wait", wait_for_ever)
    async with running(RRQWorker(settings, registry)):
        job = await enqueue(client, "wait", _unique_key="once")
        await asyncio.wait_for(started.wait(), 10)

        assert await client.cancel(job.id) is CancelCode.TOLD
        await asyncio.wait_for(cancelled.wait(), 20)

        result = await client.wait_for_completion(job.id, timeout_seconds=20)
    assert result is not None
    assert result.status is JobStatus.CANCELLED
    assert await client.job_store.get_unique_lock_holder("once") is None
    assert await client.job_store.get_job_lock_owner(job.id) is None
    assert await client.job_store.get_queued_job_ids("default") == []


@pytest.mark.parametrize("ttl_seconds", [0, 50])
async def test_a_cancelled_job_that_returns_all_the_same_stays_cancelled_and_is_kept_as_long_as_a_result(
    settings: RRQSettings, client: RRQClient, ttl_seconds: int
) -> None:
    started = asyncio.Event()

    async def stubborn(context: dict[str, Any]) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    registry = JobRegistry()
    registry.register("wait", stubborn)
    async with running(RRQWorker(settings, registry)):
        job = await enqueue(client, "wait", _result_ttl_seconds=ttl_seconds)
        await asyncio.wait_for(started.wait(), 10)
        await client.cancel(job.id)
        result = await client.wait_for_completion(job.id, timeout_seconds=20)

    assert result is not None
    assert result.status is JobStatus.CANCELLED
    expiry = await client.job_store.redis.ttl(f"rrq:job:{job.id}")
    assert expiry == -1 if ttl_seconds == 0 else 20 <= expiry <= 50


# Redis away


async def call_everything(client: RRQClient) -> None:
    """Expect a clear error, and soon, from all that a producer can call."""
    for call in (
        client.enqueue("send"),
        client.enqueue_many([JobRequest("send")]),
        client.get_job_status("j1"),
        client.wait_for_completion("j1"),
        client.cancel("j1"),
    ):
        started = time.monotonic()
        with pytest.raises(RedisUnavailable) as caught:
            await call
        assert time.monotonic() - started < 20
        assert isinstance(caught.value, RRQError)
        assert isinstance(caught.value, RedisConnectionError)
        assert "RRQ_REDIS_DSN" in str(caught.value)


async def test_a_redis_that_is_not_there_is_a_clear_error_at_once() -> None:
    async with aclosing(RRQClient(RRQSettings(redis_dsn="redis://user:secret@127.0.0.1:1/0"))) as client:
        await call_everything(client)
        with pytest.raises(RedisUnavailable) as caught:
            await client.enqueue("send")

        assert "127.0.0.1:1" in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_a_redis_that_went_away_is_a_clear_error_and_its_return_is_noticed(
    own_redis: EmbeddedRedis,
) -> None:
    async with aclosing(RRQClient(RRQSettings(redis_dsn=own_redis.dsn))) as client:
        await enqueue(client, "send")
        own_redis.kill()
        await call_everything(client)

        own_redis.restart()

        assert await enqueue(client, "send")


def set_socket_timeout(client: RRQClient, seconds: float) -> None:
    client.settings.redis_socket_timeout_seconds = seconds
    client.job_store.redis.connection_pool.connection_kwargs["socket_timeout"] = seconds


async def test_a_link_that_swallows_everything_is_a_clear_error_after_the_socket_timeout(
    own_redis: EmbeddedRedis,
) -> None:
    async with (
        RedisProxy(own_redis.port) as proxy,
        aclosing(RRQClient(RRQSettings(redis_dsn=proxy.dsn))) as client,
    ):
        await enqueue(client, "send")
        proxy.blackhole = True
        # Only where no answer is to come, so that a slow one is not taken for none.
        set_socket_timeout(client, 0.3)

        await call_everything(client)

        proxy.blackhole = False
        set_socket_timeout(client, 20.0)
        assert await enqueue(client, "send")


async def test_a_lost_answer_is_told_as_such_and_the_same_id_queues_the_job_once(
    own_redis: EmbeddedRedis,
) -> None:
    async with (
        RedisProxy(own_redis.port) as proxy,
        aclosing(RRQClient(RRQSettings(redis_dsn=proxy.dsn))) as client,
    ):
        await enqueue(client, "send", _job_id="warm")
        proxy.cut_next_reply()
        with pytest.raises(RedisUnavailable, match="_job_id"):
            await client.enqueue("send", _job_id="j1")

        await enqueue(client, "send", _job_id="j1")

        assert sorted(await client.job_store.get_queued_job_ids("default")) == ["j1", "warm"]


async def test_a_full_redis_refuses_jobs_and_says_so(own_redis: EmbeddedRedis) -> None:
    async with aclosing(RRQClient(RRQSettings(redis_dsn=own_redis.dsn))) as client:
        await client.job_store.redis.config_set("maxmemory", "1")

        with pytest.raises(EnqueueError, match="memory"):
            await client.enqueue("send")

        await client.job_store.redis.config_set("maxmemory", "0")
        assert await count_keys(client) == 0
