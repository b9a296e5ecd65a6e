"""A worker's life: built, run, drained, run again, stopped."""

import asyncio
import logging
import operator
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from proxy import RedisProxy
from queue_steps import lease_end_ms
from rrq.client import RRQClient
from rrq.cron import CronJob
from rrq.embedded import EmbeddedRedis
from rrq.engine import polling
from rrq.exc import BurstFailed
from rrq.job import Job, JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import run_burst, running, stays_true
from waiting import eventually

QUEUE = "rrq:queue:default"
INTERRUPTED = "Job execution interrupted by worker shutdown. Re-queued."


class Handlers:
    """Handlers that a test starts, watches and lets go."""

    def __init__(self) -> None:
        self.registry = JobRegistry()
        self.registry.register("quick", self.quick)
        self.registry.register("gated", self.gated)
        self.registry.register("endless", self.endless)
        self.ran: list[str] = []
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()

    async def quick(self, context: dict[str, Any]) -> str:
        self.ran.append(context["job_id"])
        return "quick"

    async def gated(self, context: dict[str, Any]) -> str:
        self.started.append(context["job_id"])
        await self.gate.wait()
        self.ran.append(context["job_id"])
        return "gated"

    async def endless(self, context: dict[str, Any]) -> None:
        self.started.append(context["job_id"])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(context["job_id"])
            raise


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


async def enqueue(client: RRQClient, *args: Any, **options: Any) -> Job:
    job = await client.enqueue(*args, **options)
    assert job is not None
    return job


async def read_hash(store: JobStore, job_id: str) -> dict[str, str]:
    fields = await store.get_job_data_dict(job_id)
    assert fields is not None, f"job {job_id} has no hash"
    return fields


def lease_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rrq-lease"]


# Construction


def test_a_worker_is_built_without_an_event_loop_and_without_redis() -> None:
    settings = RRQSettings(
        redis_dsn="redis://127.0.0.1:1/0",
        worker_concurrency=3,
        cron_jobs=[CronJob(function_name="tick", schedule="* * * * *")],
    )
    registry = JobRegistry()

    worker = RRQWorker(settings, registry)

    assert worker.settings is settings
    assert worker.job_registry is registry
    assert worker.queues == [settings.default_queue_name]
    assert worker.status == "initializing"
    assert worker.burst is False
    assert isinstance(worker.job_store, JobStore)
    assert worker.client.job_store is worker.job_store
    assert worker._semaphore._value == 3
    assert worker._running_tasks == set()
    assert not worker._shutdown_event.is_set()
    assert worker._loop is None
    assert worker._health_check_task is None
    assert worker._cron_task is None
    assert worker.cron_jobs is not settings.cron_jobs
    assert worker.cron_jobs[0] is settings.cron_jobs[0]
    assert (signal.SIGINT, signal.SIGTERM) == RRQWorker.SIGNALS


def test_default_ids_name_the_process_and_differ() -> None:
    settings, registry = RRQSettings(), JobRegistry()

    ids = {RRQWorker(settings, registry).worker_id for _ in range(20)}

    assert len(ids) == 20
    assert all(re.fullmatch(rf"rrq_worker_{os.getpid()}_[0-9a-f]{{6}}", worker_id) for worker_id in ids)


def test_a_worker_without_queues_is_refused() -> None:
    with pytest.raises(ValueError, match="queue"):
        RRQWorker(RRQSettings(), JobRegistry(), queues=[])


async def test_a_worker_takes_no_more_jobs_than_its_slots(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_concurrency = count = 8
    jobs = [await enqueue(client, "gated") for _ in range(10)]
    worker = RRQWorker(settings, handlers.registry)
    async with running(worker):
        await eventually(lambda: len(handlers.started) == count)
        await eventually(lambda: worker.status == "idle (concurrency limit)")
        assert len(worker._running_tasks) == count
        assert await client.job_store.redis.zcard(QUEUE) == 10 - count
        handlers.gate.set()
        await eventually(lambda: len(handlers.ran) == len(jobs))
    assert sorted(handlers.ran) == sorted(job.id for job in jobs)


# Running


async def test_the_status_says_what_the_worker_does(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(worker.status)

    settings.on_startup = look
    settings.worker_concurrency = 1
    worker = RRQWorker(settings, handlers.registry)
    async with running(worker):
        await eventually(lambda: worker.status == "polling")
        # It stays so while nothing is found: readers of the health record know no other word.
        await stays_true(lambda: worker.status == "polling", 0.3)
        await enqueue(client, "gated")
        await eventually(lambda: worker.status == "idle (concurrency limit)")
        handlers.gate.set()
        await eventually(lambda: worker.status == "polling")
    assert seen == ["running"]
    assert worker.status == "stopped"


async def test_an_idle_worker_polls_rarely(settings: RRQSettings, client: RRQClient) -> None:
    settings.worker_idle_poll_max_seconds = 0.5
    polls = 0

    class Counting(RRQWorker):
        async def _poll_for_jobs(self, count: int) -> int:
            nonlocal polls
            polls += 1
            return await super()._poll_for_jobs(count)

    async with running(Counting(settings, JobRegistry())):
        await eventually(lambda: polls >= 3)
        await stays_true(lambda: polls < 15, 0.5)


async def test_an_idle_worker_starts_a_new_job_at_once(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_idle_poll_max_seconds = 120
    settings.default_poll_delay_seconds = 120
    worker = RRQWorker(settings, handlers.registry)
    async with running(worker):
        await eventually(lambda: client.job_store.redis.exists(f"rrq:waiting:{QUEUE}"))
        started = time.monotonic()
        await enqueue(client, "quick")
        await eventually(lambda: handlers.ran)
        assert time.monotonic() - started < 20


async def test_a_deferred_job_starts_when_it_is_due_not_at_the_next_poll(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_idle_poll_max_seconds = 120
    settings.default_poll_delay_seconds = 120
    async with running(RRQWorker(settings, handlers.registry)):
        await eventually(lambda: client.job_store.redis.exists(f"rrq:waiting:{QUEUE}"))
        started = time.monotonic()
        await enqueue(client, "quick", _defer_by=0.5)
        await eventually(lambda: handlers.ran)
        assert 0.4 < time.monotonic() - started < 20


async def test_an_idle_worker_shuts_down_at_once(settings: RRQSettings) -> None:
    settings.worker_idle_poll_max_seconds = 120
    settings.default_poll_delay_seconds = 120
    worker = RRQWorker(settings, JobRegistry())
    task = asyncio.create_task(worker.run())
    await eventually(lambda: worker.status == "polling")
    started = time.monotonic()

    worker._request_shutdown()
    worker._request_shutdown()
    await task

    assert time.monotonic() - started < 20


async def test_a_signal_shuts_the_worker_down(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client, "gated")
    worker = RRQWorker(settings, handlers.registry)
    task = asyncio.create_task(worker.run())
    await eventually(lambda: handlers.started)

    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(worker._shutdown_event.is_set)
    handlers.gate.set()
    await task

    assert (await read_hash(client.job_store, job.id))["status"] == "COMPLETED"


async def test_queues_are_served_in_the_order_given(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_concurrency = 1
    # Further apart than a millisecond, which is as fine as queues order.
    times = [datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(3)]
    low = [await enqueue(client, "quick", _queue_name="low", _defer_until=moment) for moment in times]
    high = [await enqueue(client, "quick", _queue_name="high", _defer_until=moment) for moment in times]

    await run_burst(settings, handlers.registry, queues=["high", "low"])

    assert handlers.ran == [job.id for job in high + low]


async def test_a_failing_round_does_not_end_the_worker(
    settings: RRQSettings, client: RRQClient, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsOnce(RRQWorker):
        failures = 0

        async def _poll_for_jobs(self, count: int) -> int:
            if not self.failures:
                self.failures += 1
                raise RuntimeError("a bad day")
            return await super()._poll_for_jobs(count)

        def _calculate_jittered_delay(self, base_delay: float, jitter_factor: float = 0.5) -> float:
            return min(base_delay, 0.05)

    async with running(FailsOnce(settings, handlers.registry)):
        await enqueue(client, "quick")
        await eventually(lambda: handlers.ran)
    assert any("a bad day" in str(record.exc_info) for record in caplog.records if record.exc_info)


# Hooks of the application


async def test_start_and_stop_hooks_run_around_the_work(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    events: list[str] = []

    async def on_startup() -> None:
        events.append(f"up with {len(handlers.ran)} jobs run")

    async def on_shutdown() -> None:
        events.append(f"down with {len(handlers.ran)} jobs run")

    settings.on_startup, settings.on_shutdown = on_startup, on_shutdown
    await enqueue(client, "quick")

    await run_burst(settings, handlers.registry)

    assert events == ["up with 0 jobs run", "down with 1 jobs run"]


async def test_a_failing_start_hook_ends_the_run_with_its_error_and_the_stop_hook_still_runs(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    stopped: list[bool] = []

    async def on_startup() -> None:
        raise RuntimeError("no database")

    async def on_shutdown() -> None:
        stopped.append(True)

    settings.on_startup, settings.on_shutdown = on_startup, on_shutdown
    await enqueue(client, "quick")
    worker = RRQWorker(settings, handlers.registry)

    with pytest.raises(RuntimeError, match="no database"):
        await worker.run()

    assert stopped == [True]
    assert worker.status == "stopped"
    assert handlers.ran == []


async def test_a_failing_stop_hook_is_only_logged(
    settings: RRQSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_shutdown() -> None:
        raise RuntimeError("cannot say goodbye")

    settings.on_shutdown = on_shutdown

    worker = await run_burst(settings, JobRegistry())

    assert worker.status == "stopped"
    assert "cannot say goodbye" in caplog.text


# Drain and hand-back


async def test_running_jobs_finish_within_the_grace_period(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client, "gated")
    worker = RRQWorker(settings, handlers.registry)
    task = asyncio.create_task(worker.run())
    await eventually(lambda: handlers.started)

    worker._request_shutdown()
    # Not before the shutdown, or the worker would rightly claim it.
    later = await enqueue(client, "quick")
    await stays_true(lambda: client.job_store.get_ready_job_ids("default", 1), 0.3, "it was taken")
    assert not task.done()
    handlers.gate.set()
    await task

    fields = await read_hash(client.job_store, job.id)
    assert (fields["status"], fields["result"]) == ("COMPLETED", '"gated"')
    assert await client.job_store.get_queued_job_ids("default") == [later.id]


async def expect_handed_back(client: RRQClient, job: Job, due_ms: float, queue: str = QUEUE) -> None:
    store = client.job_store
    fields = await read_hash(store, job.id)
    assert fields["status"] == "PENDING"
    assert fields["last_error"] == INTERRUPTED
    assert fields["current_retries"] == "0"
    assert await store.redis.zscore(queue, job.id) == due_ms
    assert await store.get_job_lock_owner(job.id) is None
    assert await store.redis.ttl(f"rrq:job:{job.id}") == -1
    assert await store.redis.keys("rrq:active:jobs:*") == []


async def stop_by_signal(worker: RRQWorker, task: "asyncio.Task[None]") -> None:
    worker._request_shutdown()
    await task


async def stop_by_cancelling(worker: RRQWorker, task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.done()


@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_cancelling])
@pytest.mark.parametrize("entry", ["run", "_run_loop"])
async def test_what_does_not_end_in_time_is_handed_back_at_its_original_due_time(
    settings: RRQSettings,
    client: RRQClient,
    handlers: Handlers,
    entry: str,
    stop: Callable[[RRQWorker, "asyncio.Task[None]"], Coroutine[Any, Any, None]],
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.2
    job = await enqueue(client, "endless", _unique_key="once")
    due_ms = await client.job_store.redis.zscore(QUEUE, job.id)
    assert due_ms is not None
    worker = RRQWorker(settings, handlers.registry)
    task: asyncio.Task[None] = asyncio.create_task(getattr(worker, entry)())
    await eventually(lambda: handlers.started)
    before = time.monotonic()

    await stop(worker, task)

    assert time.monotonic() - before < 20
    assert handlers.cancelled == [job.id]
    await expect_handed_back(client, job, due_ms)
    assert await client.job_store.get_unique_lock_holder("once") == job.id
    assert worker._running_tasks == set()
    assert worker._health_check_task is None
    assert lease_threads() == []
    await worker.close()


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker_from_ending(
    settings: RRQSettings, client: RRQClient
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.1
    started, is_over = asyncio.Event(), asyncio.Event()

    async def deaf(context: dict[str, Any]) -> None:
        started.set()
        while not is_over.is_set():
            try:
                await is_over.wait()
            except asyncio.CancelledError:
                continue

    registry = JobRegistry()
    registry.register("deaf", deaf)
    await enqueue(client, "deaf")
    worker = RRQWorker(settings, registry)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 10)

    worker._request_shutdown()
    # Shielded: cancelled, it would end in another way.
    await asyncio.wait_for(asyncio.shield(task), 20)

    assert worker._running_tasks
    # Nothing of what was left behind may reach into the next test.
    is_over.set()
    await eventually(lambda: not worker._running_tasks)
    await worker.close()


# Running again


async def test_the_loop_can_run_again_after_its_shutdown(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    worker = RRQWorker(settings, handlers.registry)
    for round_number in (1, 2, 3):
        worker._shutdown_event.clear()
        loop = asyncio.create_task(worker._run_loop())
        job = await enqueue(client, "quick")
        await eventually(partial(operator.contains, handlers.ran, job.id))
        worker._request_shutdown()
        await loop
        assert len(handlers.ran) == round_number
        assert worker._health_check_task is None
        assert lease_threads() == []
    await worker.close()


# Burst


async def test_a_burst_runs_what_is_due_and_ends(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_concurrency = 3
    due = [await enqueue(client, "quick") for _ in range(20)]
    later = await enqueue(client, "quick", _defer_by=60)

    worker = await run_burst(settings, handlers.registry)

    assert sorted(handlers.ran) == sorted(job.id for job in due)
    assert await client.job_store.get_queued_job_ids("default") == [later.id]
    assert worker.status == "stopped"


async def test_a_burst_with_nothing_to_do_ends_at_once(settings: RRQSettings) -> None:
    settings.worker_idle_poll_max_seconds = 120
    settings.default_poll_delay_seconds = 120

    await asyncio.wait_for(run_burst(settings, JobRegistry()), 20)


async def test_a_burst_waits_for_its_own_jobs_and_takes_what_they_enqueue(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    async def parent(context: dict[str, Any]) -> None:
        await asyncio.sleep(0.1)
        await context["rrq_client"].enqueue("quick")

    handlers.registry.register("parent", parent)
    await enqueue(client, "parent")

    await run_burst(settings, handlers.registry)

    assert len(handlers.ran) == 1


async def test_a_burst_takes_retries_that_become_due_while_it_still_runs(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.base_retry_delay_seconds = 0.05
    attempts: list[int] = []

    async def flaky(context: dict[str, Any]) -> None:
        attempts.append(context["job_try"])
        if len(attempts) == 1:
            raise RuntimeError("not yet")
        handlers.gate.set()

    handlers.registry.register("flaky", flaky)
    await enqueue(client, "flaky")
    await enqueue(client, "gated")

    await asyncio.wait_for(run_burst(settings, handlers.registry), 20)

    assert attempts == [1, 2]


async def test_a_burst_lingers_for_retries_if_configured(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.base_retry_delay_seconds = 0.3
    settings.worker_burst_linger_seconds = 60
    attempts: list[int] = []

    async def flaky(context: dict[str, Any]) -> None:
        attempts.append(context["job_try"])
        if len(attempts) == 1:
            raise RuntimeError("not yet")
        worker._request_shutdown()

    handlers.registry.register("flaky", flaky)
    await enqueue(client, "flaky")
    worker = RRQWorker(settings, handlers.registry, burst=True)

    await asyncio.wait_for(worker.run(), 50)

    assert attempts == [1, 2]


async def test_a_burst_whose_process_stood_still_claims_once_more(
    settings: RRQSettings, client: RRQClient, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.worker_burst_linger_seconds = 60
    worker = RRQWorker(settings, handlers.registry, burst=True)
    poll, polls, stood_still_seconds = worker._poll_for_jobs, 0, 0.0
    monkeypatch.setattr(polling, "monotonic", lambda: time.monotonic() + stood_still_seconds)

    async def poll_and_stand_still(count: int) -> int:
        nonlocal polls, stood_still_seconds
        started = await poll(count)
        polls += 1
        if polls == 2:
            # Both found nothing; what comes now has been due for long when the worker looks at its clock.
            await enqueue(client, "quick")
            stood_still_seconds = 100.0
        return started

    monkeypatch.setattr(worker, "_poll_for_jobs", poll_and_stand_still)
    burst = asyncio.create_task(worker.run())
    await eventually(lambda: handlers.ran or burst.done())
    assert len(handlers.ran) == 1
    worker._request_shutdown()
    await asyncio.wait_for(burst, 50)


async def test_a_burst_that_cannot_reach_redis_fails() -> None:
    settings = RRQSettings(redis_dsn="redis://127.0.0.1:1/0", worker_burst_redis_patience_seconds=0.5)
    worker = RRQWorker(settings, JobRegistry(), burst=True)
    before = time.monotonic()

    with pytest.raises(BurstFailed, match="redis_dsn"):
        await worker.run()

    assert time.monotonic() - before < 20
    assert worker.status == "stopped"


async def test_a_burst_goes_on_when_redis_comes_back_in_time(
    own_redis: EmbeddedRedis, handlers: Handlers
) -> None:
    settings = RRQSettings(redis_dsn=own_redis.dsn)
    own_redis.kill()
    burst = asyncio.create_task(run_burst(settings, handlers.registry))
    await stays_true(lambda: not burst.done(), 0.3)

    own_redis.restart()
    async with aclosing(RRQClient(settings)) as client:
        await enqueue(client, "quick")
        await asyncio.wait_for(burst, 20)

        assert len(handlers.ran) == 1


async def test_a_burst_in_a_draining_pod_waits_without_spinning(
    settings: RRQSettings, store: JobStore, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRQ_POD_UID", "pod-1")
    await store.set_drain("pod-1", ttl_seconds=30)

    class Counting(RRQWorker):
        polls = 0

        async def _poll_for_jobs(self, count: int) -> int:
            self.polls += 1
            if self.polls >= 500:
                self._request_shutdown()
            return await super()._poll_for_jobs(count)

    worker = Counting(settings, handlers.registry, burst=True)
    asyncio.get_running_loop().call_later(0.5, worker._request_shutdown)

    await worker.run()

    assert worker.polls < 50


async def test_a_burst_of_a_paused_pool_waits_and_does_its_work_when_it_is_resumed(
    settings: RRQSettings, client: RRQClient, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRQ_POOL", "shop/emails")
    await client.job_store.set_pause("pool:shop/emails", "paused", "ada")
    await enqueue(client, "quick")
    burst = asyncio.create_task(run_burst(settings, handlers.registry))
    # If it ended now, the operator would start the next run for the same job.
    await stays_true(lambda: not burst.done() and not handlers.ran, 0.3)
    await client.job_store.set_pause("pool:shop/emails", None, "ada")
    await asyncio.wait_for(burst, 20)
    assert len(handlers.ran) == 1


# Redis in trouble


async def test_a_worker_survives_an_outage_of_redis(own_redis: EmbeddedRedis, handlers: Handlers) -> None:
    async with RedisProxy(own_redis.port) as proxy:
        settings = RRQSettings(redis_dsn=proxy.dsn)
        async with aclosing(RRQClient(RRQSettings(redis_dsn=own_redis.dsn))) as client:
            worker = RRQWorker(settings, handlers.registry)
            async with running(worker):
                first = await enqueue(client, "gated")
                await eventually(lambda: handlers.started)
                proxy.refuse = True
                proxy.cut_all()
                handlers.gate.set()
                await enqueue(client, "quick")
                await stays_true(lambda: client.job_store.get_job_lock_owner(first.id), 0.5)
                proxy.refuse = False
                await eventually(lambda: len(handlers.ran) == 2, 20)
                await eventually(lambda: ended(client, first.id))


async def ended(client: RRQClient, job_id: str) -> bool:
    result = await client.get_job_status(job_id)
    return result is not None and result.status is JobStatus.COMPLETED


# A store put in by the application


async def test_a_worker_renews_its_lease_in_the_store_it_is_given_after_construction(
    redis_dsn: str, handlers: Handlers
) -> None:
    elsewhere = RRQSettings(
        redis_dsn="redis://127.0.0.1:1/0", worker_lease_renewal_seconds=0.3, worker_concurrency=1
    )
    elsewhere.worker_shutdown_grace_period_seconds = 0.1
    settings = RRQSettings(redis_dsn=redis_dsn, worker_lease_renewal_seconds=0.3)
    worker = RRQWorker(elsewhere, handlers.registry)
    await worker.job_store.aclose()
    worker.job_store = JobStore(settings)
    worker.client = RRQClient(settings, job_store=worker.job_store)
    async with aclosing(RRQClient(settings)) as client, running(worker):
        await enqueue(client, "gated")
        await eventually(lambda: handlers.started)
        ends_at = await lease_end_ms(client.job_store, worker.worker_id)

        async def is_renewed() -> bool:
            return await lease_end_ms(client.job_store, worker.worker_id) > ends_at

        await eventually(is_renewed, 12, "the lease of a living worker is not renewed")
        handlers.gate.set()
        await eventually(lambda: handlers.ran)
        assert handlers.started == handlers.ran


# Closing


async def test_closing_after_polling_by_hand_leaves_nothing_behind(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client, "quick")
    worker = RRQWorker(settings, handlers.registry)
    worker._loop = asyncio.get_running_loop()
    assert await worker._poll_for_jobs(1) == 1
    await asyncio.gather(*worker._running_tasks)

    await worker.close()

    try:
        await eventually(lambda: not lease_threads(), 20, "the thread that renews the lease lives on")
    finally:
        await worker._drain.release_claims()
        await worker.job_store.aclose()
    assert (await read_hash(client.job_store, job.id))["status"] == "COMPLETED"


async def test_signals_that_cannot_be_handled_are_a_warning_only(
    settings: RRQSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def run_in_a_thread() -> None:
        # Only the main thread may handle signals.
        asyncio.run(run_burst(settings, JobRegistry()))

    await asyncio.to_thread(run_in_a_thread)

    assert "signal" in caplog.text
