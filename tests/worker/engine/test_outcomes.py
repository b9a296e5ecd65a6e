"""How an attempt can end, and what each end means for its job."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from rrq.client import RRQClient
from rrq.exc import RetryJob
from rrq.job import Job, JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import by_hand, run_burst, running, stays_true
from waiting import eventually

QUEUE = "rrq:queue:default"
DLQ = "rrq:dlq:default"
INTERRUPTED = "Job execution interrupted by worker shutdown. Re-queued."
A_WEEK_SECONDS = 604_800


def now_ms() -> float:
    return time.time() * 1000


async def read_hash(store: JobStore, job_id: str) -> dict[str, str]:
    fields = await store.get_job_data_dict(job_id)
    assert fields is not None, f"job {job_id} has no hash"
    return fields


class Bench:
    """One handler under test, a client to feed it, and the store to look into."""

    def __init__(self, settings: RRQSettings, client: RRQClient) -> None:
        # Longer than any test takes: a retry must not come due while its burst still runs.
        settings.base_retry_delay_seconds = 60
        self.settings = settings
        self.client = client
        self.store = client.job_store
        self.registry = JobRegistry()

    async def enqueue(self, **options: Any) -> Job:
        job = await self.client.enqueue("work", **options)
        assert job is not None
        return job

    async def run(self, handler: Callable[..., Any], **options: Any) -> Job:
        """Run one job with this handler, once."""
        self.registry.register("work", handler, replace=True)
        job = await self.enqueue(**options)
        await asyncio.wait_for(self.run_again(), 20)
        return job

    async def run_again(self) -> None:
        self.began_ms = now_ms()
        await run_burst(self.settings, self.registry)

    async def fields(self, job: Job) -> dict[str, str]:
        return await read_hash(self.store, job.id)

    async def expect_dead(self, job: Job, error: str, attempts: int = 1) -> None:
        fields = await self.fields(job)
        assert (fields["status"], fields["last_error"]) == ("FAILED", error)
        assert fields["current_retries"] == str(attempts)
        assert fields["completion_time"].endswith("+00:00")
        assert await self.store.redis.lrange(DLQ, 0, -1) == [job.id.encode()]
        assert A_WEEK_SECONDS - 60 <= await self.store.redis.ttl(f"rrq:job:{job.id}") <= A_WEEK_SECONDS
        await self.expect_let_go(job)

    async def expect_retry(self, job: Job, error: str, delay_seconds: float, retries: int = 1) -> None:
        fields = await self.fields(job)
        assert (fields["status"], fields["last_error"]) == ("RETRYING", error)
        assert fields["current_retries"] == str(retries)
        score = await self.store.redis.zscore(QUEUE, job.id)
        assert score is not None
        # It counts from the end of the attempt, which was between these two moments; clocks round.
        delay_ms = delay_seconds * 1000
        assert self.began_ms + delay_ms - 2 <= score <= now_ms() + delay_ms + 2
        planned = datetime.fromisoformat(fields["next_scheduled_run_time"])
        assert planned.timestamp() * 1000 == pytest.approx(score, abs=2)
        assert await self.store.redis.ttl(f"rrq:job:{job.id}") == -1
        await self.expect_let_go(job)

    async def expect_let_go(self, job: Job) -> None:
        assert await self.store.get_job_lock_owner(job.id) is None
        assert await self.store.redis.keys("rrq:active:jobs:*") == []


@pytest.fixture
def bench(settings: RRQSettings, client: RRQClient) -> Bench:
    return Bench(settings, client)


# Success


async def test_a_result_is_stored_with_its_expiry(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> dict[str, int]:
        return {"answer": 42}

    job = await bench.run(work)

    fields = await bench.fields(job)
    assert (fields["status"], json.loads(fields["result"])) == ("COMPLETED", {"answer": 42})
    assert fields["current_retries"] == "0"
    assert abs(datetime.fromisoformat(fields["completion_time"]).timestamp() - time.time()) < 60
    assert fields["completion_time"].endswith("+00:00")
    assert 86_300 <= await bench.store.redis.ttl(f"rrq:job:{job.id}") <= 86_400
    assert await bench.store.get_queued_job_ids("default") == []
    await bench.expect_let_go(job)


@pytest.mark.parametrize(
    ("ttl_seconds", "expiry"), [(50, range(20, 51)), (0, range(-1, 0)), (-1, range(-1, 0))]
)
async def test_the_result_lives_as_long_as_the_job_says(
    bench: Bench, ttl_seconds: int, expiry: range
) -> None:
    async def work(context: dict[str, Any]) -> None: ...

    job = await bench.run(work, _result_ttl_seconds=ttl_seconds)

    assert (await bench.fields(job))["status"] == "COMPLETED"
    assert await bench.store.redis.ttl(f"rrq:job:{job.id}") in expiry


async def test_a_job_without_a_result_time_takes_that_of_the_worker(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None: ...

    bench.registry.register("work", work)
    bench.settings.default_result_ttl_seconds = 77
    await bench.store.save_job_definition(Job(id="j1", function_name="work"))
    await bench.store.add_job_to_queue("default", "j1", now_ms())

    await run_burst(bench.settings, bench.registry)

    assert 40 <= await bench.store.redis.ttl("rrq:job:j1") <= 77


class Receipt(BaseModel):
    paid: float
    at: datetime


class Opaque:
    def __str__(self) -> str:
        return "opaque thing"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def circular() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["self"] = ring
    return ring


async def test_a_finished_job_stays_finished_whatever_it_returns(bench: Bench) -> None:
    results: list[tuple[Any, Any]] = [
        (None, None),
        (Receipt(paid=1.5, at=datetime(2024, 1, 1, tzinfo=UTC)), {"paid": 1.5, "at": "2024-01-01T00:00:00Z"}),
        (Opaque(), "opaque thing"),
        ([b"bytes", {1}], ["b'bytes'", "{1}"]),
        (circular(), "<Unserializable Result: dict>"),
        (Broken(), "<Unserializable Result: Broken>"),
        ({(1, 2): 3}, "<Unserializable Result: dict>"),
        ("lone \udcff", "lone \udcff"),
    ]

    async def work(context: dict[str, Any], number: int) -> Any:
        return results[number][0]

    bench.registry.register("work", work)
    jobs = [await bench.enqueue(number=number) for number in range(len(results))]
    await bench.run_again()

    for job, (result, stored) in zip(jobs, results, strict=True):
        fields = await bench.fields(job)
        assert (fields["status"], json.loads(fields["result"])) == ("COMPLETED", stored), type(result)


# Arguments and context


async def test_the_handler_gets_its_context_and_its_arguments(bench: Bench) -> None:
    seen: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = []

    async def work(context: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        seen.append((context, args, kwargs))

    bench.registry.register("work", work)
    job = await bench.client.enqueue("work", 1, [2], queue_name="x", args=3, _queue_name="emails")
    assert job is not None

    worker = await run_burst(bench.settings, bench.registry, queues=["emails"])

    ((context, args, kwargs),) = seen
    assert args == (1, [2])
    assert kwargs == {"queue_name": "x", "args": 3}
    assert context["job_id"] == job.id
    assert context["job_try"] == 1
    assert context["enqueue_time"] == job.enqueue_time
    assert context["settings"] is bench.settings
    assert context["worker_id"] == worker.worker_id
    assert context["queue_name"] == "emails"
    assert context["rrq_client"] is worker.client


# Failure and retry


async def test_a_failure_is_retried_after_the_base_delay(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise ValueError("bad address")

    job = await bench.run(work)

    await bench.expect_retry(job, "bad address", 60)


async def test_each_further_retry_waits_twice_as_long_up_to_the_maximum(bench: Bench) -> None:
    bench.settings.max_retry_delay_seconds = 180

    async def work(context: dict[str, Any]) -> None:
        raise ValueError("bad address")

    job = await bench.run(work, _max_retries=10)
    for retries, delay_seconds in ((2, 120), (3, 180), (4, 180)):
        await bench.store.add_job_to_queue("default", job.id, 1.0)
        await bench.run_again()
        await bench.expect_retry(job, "bad address", delay_seconds, retries)


@pytest.mark.parametrize(
    ("retries", "delay_ms"), [(-1, 5_000), (0, 5_000), (1, 5_000), (2, 10_000), (3, 20_000), (99, 3_600_000)]
)
def test_the_backoff_of_a_retry_number(retries: int, delay_ms: int) -> None:
    worker = RRQWorker(RRQSettings(), JobRegistry())

    assert worker._calculate_backoff_ms(Job(function_name="work", current_retries=retries)) == delay_ms


async def test_a_retry_goes_to_the_queue_of_the_job_not_to_the_one_it_was_taken_from(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise ValueError("bad address")

    bench.registry.register("work", work)
    await bench.store.save_job_definition(Job(id="j1", function_name="work", queue_name="home"))
    await bench.store.add_job_to_queue("visited", "j1", 1.0)
    await bench.store.save_job_definition(Job(id="j2", function_name="work"))
    await bench.store.add_job_to_queue("visited", "j2", 1.0)

    await run_burst(bench.settings, bench.registry, queues=["visited"])

    assert await bench.store.get_queued_job_ids("home") == ["j1"]
    assert await bench.store.get_queued_job_ids("default") == ["j2"]
    assert await bench.store.get_queued_job_ids("visited") == []


@pytest.mark.parametrize("max_retries", [0, 1])
async def test_a_job_with_one_attempt_is_not_retried(bench: Bench, max_retries: int) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise ValueError("bad address")

    job = await bench.run(work, _max_retries=max_retries)

    await bench.expect_dead(job, "bad address")
    assert await bench.store.get_queued_job_ids("default") == []


async def test_max_retries_is_the_number_of_attempts(bench: Bench) -> None:
    bench.settings.base_retry_delay_seconds = 0.01
    attempts: list[int] = []

    async def work(context: dict[str, Any]) -> None:
        attempts.append(context["job_try"])
        raise ValueError(f"attempt {len(attempts)}")

    bench.registry.register("work", work)
    job = await bench.enqueue(_max_retries=3)
    async with running(RRQWorker(bench.settings, bench.registry)):
        await eventually(lambda: bench.store.redis.llen(DLQ))

    assert attempts == [1, 2, 3]
    await bench.expect_dead(job, "attempt 3", attempts=3)


@pytest.mark.parametrize(("defer_seconds", "delay"), [(90, 90), (60.5, 60.5), (0, 0), (-3, 0), (None, 60)])
async def test_a_job_can_ask_to_be_retried(bench: Bench, defer_seconds: float | None, delay: float) -> None:
    calls: list[int] = []

    async def work(context: dict[str, Any]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RetryJob("wait for the mail server", defer_seconds=defer_seconds)

    job = await bench.run(work)

    if delay == 0:
        # Due again before the burst ended.
        assert (await bench.fields(job))["status"] == "COMPLETED"
        assert (await bench.fields(job))["current_retries"] == "1"
    else:
        await bench.expect_retry(job, "wait for the mail server", delay)


async def test_asking_to_be_retried_counts_like_a_failure(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise RetryJob(defer_seconds=0)

    job = await bench.run(work, _max_retries=2)

    await bench.expect_dead(job, "Job requested retry", attempts=2)


async def test_an_error_whose_text_cannot_be_stored_is_retried_too(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise RuntimeError("file \udcff is gone")

    job = await bench.run(work)

    fields = await bench.fields(job)
    assert fields["status"] == "RETRYING"
    assert "is gone" in fields["last_error"]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


async def test_an_error_that_cannot_be_printed_still_ends_the_attempt(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise Mute

    job = await bench.run(work)

    assert (await bench.fields(job))["status"] in ("RETRYING", "FAILED")
    await bench.expect_let_go(job)


async def test_the_wrong_arguments_are_a_failure(bench: Bench) -> None:
    async def work(context: dict[str, Any], needed: int) -> None: ...

    job = await bench.run(work, surplus=1)

    fields = await bench.fields(job)
    assert fields["status"] == "RETRYING"
    assert "surplus" in fields["last_error"]


# Timeouts


async def test_a_job_that_takes_too_long_is_not_retried(bench: Bench) -> None:
    cleaned: list[bool] = []

    async def work(context: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    job = await bench.run(work, _job_timeout_seconds=1, _unique_key="once")

    await bench.expect_dead(job, "Job timed out after 1s.")
    assert cleaned == [True]
    assert await bench.store.get_unique_lock_holder("once") is None


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_timeout_of_zero_ends_the_attempt_at_once(bench: Bench, kind: str) -> None:
    ran: list[bool] = []

    async def work(context: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        ran.append(True)

    def plain(context: dict[str, Any]) -> None:
        ran.append(True)

    job = await bench.run(work if kind == "async" else plain, _job_timeout_seconds=0)

    await bench.expect_dead(job, "Job timed out after 0s.")
    assert ran == []


@pytest.mark.parametrize(
    ("error", "text"),
    [(TimeoutError("slow peer"), "slow peer"), (TimeoutError(), "Job timed out after 300s.")],
)
async def test_a_timeout_error_of_the_handler_itself_counts_as_one_of_the_job(
    bench: Bench, error: TimeoutError, text: str
) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise error

    job = await bench.run(work)

    await bench.expect_dead(job, text)


async def test_a_job_without_a_timeout_takes_that_of_the_worker(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    bench.registry.register("work", work)
    bench.settings.default_job_timeout_seconds = 0.2  # type: ignore[assignment]  # applications do this
    await bench.store.save_job_definition(Job(id="j1", function_name="work"))
    await bench.store.add_job_to_queue("default", "j1", 1.0)

    await asyncio.wait_for(run_burst(bench.settings, bench.registry), 20)

    assert (await read_hash(bench.store, "j1"))["last_error"] == "Job timed out after 0.2s."


# What no attempt can mend


async def test_an_error_in_the_engine_dead_letters_the_job_and_says_so(bench: Bench) -> None:
    class Faulty(RRQWorker):
        async def _handle_job_success(self, job: Job, result: Any) -> None:
            raise RuntimeError("engine trouble")

    async def work(context: dict[str, Any]) -> None: ...

    bench.registry.register("work", work)
    job = await bench.enqueue()

    await Faulty(bench.settings, bench.registry, burst=True).run()

    await bench.expect_dead(job, "Critical worker error: engine trouble")


async def test_dead_letters_go_to_the_list_of_the_settings(bench: Bench) -> None:
    bench.settings.default_dlq_name = "graveyard"
    bench.settings.unknown_function_patience_seconds = 0

    job = await bench.client.enqueue("unheard-of")
    assert job is not None
    await run_burst(bench.settings, bench.registry)

    assert await bench.store.redis.lrange("rrq:dlq:graveyard", 0, -1) == [job.id.encode()]


async def test_an_unreadable_hash_is_dead_lettered_and_blocks_no_other_job(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None: ...

    bench.registry.register("work", work)
    bench.settings.worker_concurrency = 2
    for n in range(5):
        await bench.store.redis.hset(f"rrq:job:bad-{n}", mapping={"function_name": "work", "job_args": "{"})
        await bench.store.add_job_to_queue("default", f"bad-{n}", 1.0)
        await bench.store.add_job_to_queue("default", f"missing-{n}", 1.0)
    await bench.store.redis.set("rrq:job:text", "no hash at all")
    await bench.store.add_job_to_queue("default", "text", 1.0)
    job = await bench.enqueue()

    await run_burst(bench.settings, bench.registry)

    assert (await bench.fields(job))["status"] == "COMPLETED"
    dead = set(await bench.store.redis.lrange(DLQ, 0, -1))
    assert dead == {b"text", *(f"bad-{n}".encode() for n in range(5))}
    assert (await read_hash(bench.store, "bad-0"))["status"] == "FAILED"
    assert await bench.store.get_queued_job_ids("default") == []


# Cancellation


async def test_a_task_cancelled_from_outside_hands_its_job_back(bench: Bench) -> None:
    starts: list[int] = []
    gate = asyncio.Event()

    async def work(context: dict[str, Any]) -> None:
        starts.append(context["job_try"])
        await gate.wait()

    bench.registry.register("work", work)
    job = await bench.enqueue()
    due_ms = await bench.store.redis.zscore(QUEUE, job.id)
    async with by_hand(RRQWorker(bench.settings, bench.registry)) as worker:
        await worker._poll_for_jobs(1)
        await eventually(lambda: starts)
        (task,) = worker._running_tasks

        task.cancel()
        await task

        fields = await bench.fields(job)
        assert (fields["status"], fields["last_error"]) == ("PENDING", INTERRUPTED)
        assert fields["current_retries"] == "0"
        planned = datetime.fromisoformat(fields["next_scheduled_run_time"])
        assert abs(planned - datetime.now(UTC)) < timedelta(seconds=60)
        assert await bench.store.redis.zscore(QUEUE, job.id) == due_ms
        await bench.expect_let_go(job)


async def test_a_task_cancelled_before_its_first_step_hands_its_job_back(bench: Bench) -> None:
    starts: list[int] = []

    async def work(context: dict[str, Any]) -> None:
        starts.append(context["job_try"])

    bench.registry.register("work", work)
    job = await bench.enqueue()
    async with by_hand(RRQWorker(bench.settings, bench.registry)) as worker:
        await worker._poll_for_jobs(1)
        (task,) = worker._running_tasks

        task.cancel()
        await asyncio.wait({task})

        await eventually(
            lambda: bench.store.redis.zscore(QUEUE, job.id), 20, "the job is neither queued nor running"
        )
        assert starts == []
        assert (await bench.fields(job))["status"] == "PENDING"


async def test_a_handler_may_clean_up_when_it_is_cancelled(bench: Bench) -> None:
    bench.settings.worker_shutdown_grace_period_seconds = 0.05
    events: list[str] = []

    async def work(context: dict[str, Any]) -> None:
        events.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    bench.registry.register("work", work)
    job = await bench.enqueue()
    async with running(RRQWorker(bench.settings, bench.registry)):
        await eventually(lambda: events)

    assert events == ["started", "cleaned up"]
    assert (await bench.fields(job))["status"] == "PENDING"


async def test_a_handler_that_raises_cancelled_error_itself_has_failed(bench: Bench) -> None:
    calls: list[int] = []

    async def work(context: dict[str, Any]) -> None:
        calls.append(1)
        raise asyncio.CancelledError("of its own making")

    job = await bench.run(work)

    assert len(calls) == 1
    fields = await bench.fields(job)
    assert (fields["status"], fields["current_retries"]) == ("RETRYING", "1")
    assert "CancelledError" in fields["last_error"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_sys_exit_in_a_handler_fails_only_its_own_job(bench: Bench, kind: str) -> None:
    finished: list[str] = []

    async def neighbour(context: dict[str, Any]) -> None:
        await asyncio.sleep(0.1)
        finished.append(context["job_id"])

    async def work(context: dict[str, Any]) -> None:
        sys.exit(3)

    def plain(context: dict[str, Any]) -> None:
        sys.exit(3)

    bench.registry.register("neighbour", neighbour)
    await bench.client.enqueue("neighbour")

    job = await bench.run(work if kind == "async" else plain)

    fields = await bench.fields(job)
    assert fields["status"] == "RETRYING"
    assert "sys.exit(3)" in fields["last_error"]
    assert len(finished) == 1


# Plain functions


async def test_a_plain_function_runs_in_a_thread_and_its_return_value_is_the_result(bench: Bench) -> None:
    def work(context: dict[str, Any], a: int, *, b: int) -> dict[str, Any]:
        return {"sum": a + b, "thread": threading.current_thread() is threading.main_thread()}

    bench.registry.register("work", work)
    job = await bench.client.enqueue("work", 1, b=2)
    assert job is not None
    await run_burst(bench.settings, bench.registry)

    assert json.loads((await bench.fields(job))["result"]) == {"sum": 3, "thread": False}


async def test_a_blocking_function_does_not_delay_other_jobs(bench: Bench) -> None:
    release = threading.Event()
    done: list[str] = []

    def work(context: dict[str, Any]) -> None:
        release.wait(20)

    async def quick(context: dict[str, Any]) -> None:
        done.append(context["job_id"])

    bench.registry.register("work", work)
    bench.registry.register("quick", quick)
    async with running(RRQWorker(bench.settings, bench.registry)):
        blocked = await bench.enqueue()
        await eventually(lambda: bench.store.get_job_lock_owner(blocked.id))
        await bench.client.enqueue("quick")
        await eventually(lambda: done)
        release.set()
        result = await bench.client.wait_for_completion(blocked.id, timeout_seconds=10)
    assert result is not None
    assert result.status is JobStatus.COMPLETED


async def test_plain_functions_keep_to_their_own_limit(bench: Bench) -> None:
    bench.settings.worker_sync_handler_threads = 2
    lock = threading.Lock()
    now, most = 0, 0

    def work(context: dict[str, Any]) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1

    bench.registry.register("work", work)
    for _ in range(8):
        await bench.enqueue()
    await run_burst(bench.settings, bench.registry)

    assert most == 2


async def test_an_iterator_that_ends_inside_a_plain_function_is_a_failure_like_any_other(
    bench: Bench,
) -> None:
    def work(context: dict[str, Any]) -> Any:
        return next(iter([]))

    job = await bench.run(work, _job_timeout_seconds=15, _max_retries=1)

    assert "timed out" not in (await bench.fields(job))["last_error"]


async def test_a_plain_function_that_returns_a_coroutine_is_awaited(bench: Bench) -> None:
    async def inner() -> str:
        return "awaited"

    job = await bench.run(lambda context: inner())

    assert json.loads((await bench.fields(job))["result"]) == "awaited"


async def test_a_plain_function_that_takes_too_long_is_not_retried(bench: Bench) -> None:
    release = threading.Event()

    def work(context: dict[str, Any]) -> str:
        release.wait(20)
        return "too late"

    job = await bench.run(work, _job_timeout_seconds=1)

    await bench.expect_dead(job, "Job timed out after 1s.")
    release.set()
    await stays_true(lambda: is_dead(bench, job), 0.2)


async def is_dead(bench: Bench, job: Job) -> bool:
    fields = await bench.fields(job)
    return fields["status"] == "FAILED" and fields["result"] == "null"


# Odd data must cost its own job only


async def test_odd_jobs_do_not_keep_other_outcomes_from_being_stored(bench: Bench) -> None:
    bench.settings.worker_shutdown_grace_period_seconds = 0.1

    async def work(context: dict[str, Any]) -> None: ...

    async def bad(context: dict[str, Any]) -> None:
        raise ValueError("bad address")

    bench.registry.register("work", work)
    bench.registry.register("bad", bad)
    redis = bench.store.redis
    await redis.set(DLQ, "no list")
    await redis.set("rrq:queue:odd", "no queue")
    await redis.set("rrq:events:job:awaited", "no stream")
    await bench.client.enqueue("bad", _max_retries=1)
    await bench.client.enqueue("work", _job_id="awaited")
    await redis.hset("rrq:job:awaited", "waited_for", "1")
    for job in (
        Job(id="kept too long", function_name="work", result_ttl_seconds=10**17),
        Job(id="retried nowhere", function_name="bad", queue_name="odd"),
        Job(id="tried too often", function_name="bad", current_retries=2**63 - 1, max_retries=1),
    ):
        await bench.store.save_job_definition(job)
        await bench.store.add_job_to_queue("default", job.id, 1.0)
    good = [await bench.enqueue() for _ in range(5)]
    worker = RRQWorker(bench.settings, bench.registry)
    async with running(worker):
        for job in good:
            result = await bench.client.wait_for_completion(job.id, timeout_seconds=20)
            assert result is not None, "an outcome that Redis refuses keeps the others from being stored"
            assert result.status is JobStatus.COMPLETED
        late = await bench.enqueue()
        assert await bench.client.wait_for_completion(late.id, timeout_seconds=20) is not None


async def test_a_fractional_result_time_in_the_settings_does_not_keep_jobs_from_being_stored(
    bench: Bench,
) -> None:
    async def work(context: dict[str, Any]) -> None: ...

    bench.registry.register("work", work)
    bench.settings.worker_shutdown_grace_period_seconds = 0.1
    bench.settings.default_result_ttl_seconds = 90.5  # type: ignore[assignment]  # applications do this
    await bench.store.save_job_definition(Job(id="j1", function_name="work"))
    await bench.store.add_job_to_queue("default", "j1", 1.0)
    async with running(RRQWorker(bench.settings, bench.registry)):
        result = await bench.client.wait_for_completion("j1", timeout_seconds=20)
        assert result is not None
        assert result.status is JobStatus.COMPLETED
        await eventually(lambda: is_unlocked(bench, "j1"), 20, "the lock was never released")


async def is_unlocked(bench: Bench, job_id: str) -> bool:
    return await bench.store.get_job_lock_owner(job_id) is None


async def test_a_huge_backoff_does_not_keep_the_failure_from_being_stored(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> None:
        raise RetryJob("much later", defer_seconds=1e15)

    job = await bench.run(work)

    assert (await bench.fields(job))["status"] in ("RETRYING", "FAILED")
    await bench.expect_let_go(job)
    stored = await bench.store.get_job_definition(job.id)
    assert stored is not None, "the job can no longer be read"


# A job that this worker runs without having claimed it, as callers of 0.7 do


async def test_a_job_handed_in_directly_is_run_to_its_end(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> str:
        return "direct"

    bench.registry.register("work", work)
    job = Job(id="j1", function_name="work")
    await bench.store.save_job_definition(job)
    async with by_hand(RRQWorker(bench.settings, bench.registry)) as worker:
        await bench.store.acquire_job_lock("j1", worker.worker_id, 60_000)

        await worker._execute_job(job, "default")

    fields = await bench.fields(job)
    assert (fields["status"], fields["result"]) == ("COMPLETED", '"direct"')
    assert await bench.store.get_job_lock_owner("j1") is None


async def test_a_direct_outcome_is_refused_when_another_worker_holds_the_lock(bench: Bench) -> None:
    async def work(context: dict[str, Any]) -> str:
        return "late"

    bench.registry.register("work", work)
    job = Job(id="j1", function_name="work")
    await bench.store.save_job_definition(job)
    await bench.store.acquire_job_lock("j1", "another-worker", 60_000)
    async with by_hand(RRQWorker(bench.settings, bench.registry)) as worker:
        await worker._execute_job(job, "default")

    assert (await bench.fields(job))["status"] == "PENDING"
    assert await bench.store.get_job_lock_owner("j1") == "another-worker"


async def test_each_end_can_be_reported_by_hand(bench: Bench) -> None:
    async with by_hand(RRQWorker(bench.settings, bench.registry)) as worker:

        async def fresh(job_id: str) -> Job:
            job = Job(id=job_id, function_name="work", max_retries=5, queue_name="default")
            await bench.store.save_job_definition(job)
            return job

        await worker._handle_job_success(await fresh("done"), 1)
        await worker._process_retry_job(await fresh("retry"), RetryJob("r", 60), "default")
        await worker._process_other_failure(await fresh("other"), ValueError("v"), "default")
        await worker._handle_job_timeout(await fresh("timeout"), "default", "too slow")
        await worker._handle_fatal_job_error(await fresh("fatal"), "default", "fatal")
        await worker._move_to_dlq(await fresh("dlq"), "default", "dead")
        await worker._handle_job_cancellation_on_shutdown(await fresh("back"), "default")

    statuses = {
        name: (await read_hash(bench.store, name))["status"]
        for name in ("done", "retry", "other", "timeout", "fatal", "dlq", "back")
    }
    assert statuses == {
        "done": "COMPLETED",
        "retry": "RETRYING",
        "other": "RETRYING",
        "timeout": "FAILED",
        "fatal": "FAILED",
        "dlq": "FAILED",
        "back": "PENDING",
    }
    assert sorted(await bench.store.get_queued_job_ids("default")) == ["back", "other", "retry"]
    assert sorted(await bench.store.redis.lrange(DLQ, 0, -1)) == [b"dlq", b"fatal", b"timeout"]
