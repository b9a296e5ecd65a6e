"""Acquisition before semaphore: a job is locked and taken off its queue first, a slot is used second.

Whoever loses a race must not occupy a slot; whatever cannot be started goes back where it was. Methods
that applications override one at a time are tested that way: by overriding them.
"""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from rrq.client import RRQClient
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import by_hand, running
from waiting import eventually

QUEUE = "rrq:queue:default"


class Handlers:
    """A quick handler and one that waits for its gate, and who ran what."""

    def __init__(self) -> None:
        self.registry = JobRegistry()
        self.registry.register("quick", self.quick)
        self.registry.register("gated", self.gated)
        self.runs: Counter[str] = Counter()
        self.by_worker: Counter[str] = Counter()
        self.gate = asyncio.Event()

    async def quick(self, context: dict[str, Any]) -> None:
        self.runs[context["job_id"]] += 1
        self.by_worker[context["worker_id"]] += 1
        await asyncio.sleep(0.005)

    async def gated(self, context: dict[str, Any]) -> None:
        self.runs[context["job_id"]] += 1
        await self.gate.wait()


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


async def enqueue(client: RRQClient, function: str = "gated", **options: Any) -> Job:
    job = await client.enqueue(function, **options)
    assert job is not None
    return job


async def status_of(store: JobStore, job: Job) -> str:
    fields = await store.get_job_data_dict(job.id)
    assert fields is not None
    return fields["status"]


def free_slots(worker: RRQWorker) -> int:
    return worker._semaphore._value


# _try_acquire_job


async def test_an_acquired_job_is_locked_off_the_queue_and_uses_no_slot(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client, _job_timeout_seconds=100)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        acquired = await worker._try_acquire_job(job.id, "default")

        assert acquired is not None
        assert (acquired.id, acquired.function_name) == (job.id, "gated")
        assert await client.job_store.get_job_lock_owner(job.id) == worker.worker_id
        assert 100_000 < await client.job_store.redis.pttl(f"rrq:lock:job:{job.id}") <= 160_000
        assert await client.job_store.get_queued_job_ids("default") == []
        assert free_slots(worker) == settings.worker_concurrency
        assert worker._running_tasks == set()


async def test_the_lock_of_a_job_without_timeout_follows_the_settings(
    settings: RRQSettings, store: JobStore, handlers: Handlers
) -> None:
    settings.default_job_timeout_seconds = 200
    settings.default_lock_timeout_extension_seconds = 50
    await store.save_job_definition(Job(id="j1", function_name="gated"))
    await store.add_job_to_queue("default", "j1", 1.0)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        assert await worker._try_acquire_job("j1", "default") is not None

        assert 200_000 < await store.redis.pttl("rrq:lock:job:j1") <= 250_000


@pytest.mark.parametrize("reason", ["absent", "in another queue", "locked", "without a hash"])
async def test_what_cannot_be_acquired_is_none_and_uses_no_slot(
    settings: RRQSettings, client: RRQClient, handlers: Handlers, reason: str
) -> None:
    store = client.job_store
    if reason == "in another queue":
        await enqueue(client, _job_id="j1", _queue_name="elsewhere")
    elif reason == "locked":
        await enqueue(client, _job_id="j1")
        await store.set_worker_health("other", {"worker_id": "other"}, 60)
        await store.acquire_job_lock("j1", "other", 60_000)
    elif reason == "without a hash":
        await store.add_job_to_queue("default", "j1", 1.0)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        assert await worker._try_acquire_job("j1", "default") is None
        assert await worker._try_process_job("j1", "default") is False

        assert free_slots(worker) == settings.worker_concurrency
        assert await store.get_job_lock_owner("j1") == ("other" if reason == "locked" else None)
        if reason == "locked":
            assert await store.get_queued_job_ids("default") == ["j1"]


async def test_an_acquired_job_that_is_never_started_goes_back_when_the_worker_ends(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client)
    due_ms = await client.job_store.redis.zscore(QUEUE, job.id)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        await worker._try_acquire_job(job.id, "default")

    assert await client.job_store.redis.zscore(QUEUE, job.id) == due_ms
    assert await client.job_store.get_job_lock_owner(job.id) is None
    assert await status_of(client.job_store, job) == "PENDING"


# _process_acquired_job and _try_process_job


async def test_a_processed_job_is_active_and_among_the_running_tasks(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        acquired = await worker._try_acquire_job(job.id, "default")
        assert acquired is not None
        await worker._semaphore.acquire()

        await worker._process_acquired_job(acquired, "default")

        assert len(worker._running_tasks) == 1
        assert await status_of(client.job_store, job) == "ACTIVE"
        assert free_slots(worker) == settings.worker_concurrency - 1
        handlers.gate.set()
        await asyncio.gather(*worker._running_tasks)
        await eventually(lambda: free_slots(worker) == settings.worker_concurrency)
        assert worker._running_tasks == set()
        assert await status_of(client.job_store, job) == "COMPLETED"


async def test_trying_a_job_by_name_starts_it(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client, _defer_by=60)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        assert await worker._try_process_job(job.id, "default") is True

        assert free_slots(worker) == settings.worker_concurrency - 1
        assert await worker._try_process_job(job.id, "default") is False
        handlers.gate.set()
        await asyncio.gather(*worker._running_tasks)
    assert handlers.runs == {job.id: 1}


class CannotStart(RRQWorker):
    """Fails to start jobs for as long as it is told to; an application may have overridden this."""

    is_broken = True

    async def _process_acquired_job(self, job: Job, queue_name: str) -> None:
        if self.is_broken:
            raise RuntimeError("no room")
        await super()._process_acquired_job(job, queue_name)


async def expect_back(client: RRQClient, job: Job, due_ms: float | None) -> None:
    store = client.job_store

    async def is_back() -> bool:
        return await store.redis.zscore(QUEUE, job.id) == due_ms and not await store.get_job_lock_owner(
            job.id
        )

    await eventually(is_back, message="the job that could not be started did not go back to its queue")
    fields = await store.get_job_data_dict(job.id)
    assert fields is not None
    assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")


async def test_a_job_that_cannot_be_started_goes_back_at_its_original_score(
    settings: RRQSettings, client: RRQClient, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    job = await enqueue(client)
    due_ms = await client.job_store.redis.zscore(QUEUE, job.id)
    async with by_hand(CannotStart(settings, handlers.registry)) as worker:
        assert await worker._poll_for_jobs(5) == 0

        await expect_back(client, job, due_ms)
        assert free_slots(worker) == settings.worker_concurrency
        assert any(record.levelno == logging.ERROR for record in caplog.records)


class LoopIsClosed(RRQWorker):
    """Fails inside the engine's own start: the task cannot be made."""

    def _execute_job(self, job: Job, queue_name: str) -> Any:
        raise RuntimeError("no task for you")


async def test_a_task_that_cannot_be_made_gives_job_and_slot_back(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    job = await enqueue(client)
    due_ms = await client.job_store.redis.zscore(QUEUE, job.id)
    async with by_hand(LoopIsClosed(settings, handlers.registry)) as worker:
        assert await worker._poll_for_jobs(5) == 0
        await expect_back(client, job, due_ms)

        acquired = await worker._try_acquire_job(job.id, "default")
        assert acquired is not None
        with pytest.raises(RuntimeError, match="no task"):
            await worker._process_acquired_job(acquired, "default")
        await expect_back(client, job, due_ms)


async def test_one_job_that_cannot_be_started_does_not_stop_the_others(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    class Picky(RRQWorker):
        async def _process_acquired_job(self, job: Job, queue_name: str) -> None:
            if job.id == "bad":
                raise RuntimeError("not this one")
            await super()._process_acquired_job(job, queue_name)

    for job_id in ("a", "bad", "z"):
        await enqueue(client, "quick", _job_id=job_id)
    async with by_hand(Picky(settings, handlers.registry)) as worker:
        assert await worker._poll_for_jobs(5) == 2
        await asyncio.gather(*worker._running_tasks)

    assert handlers.runs == {"a": 1, "z": 1}
    assert await client.job_store.get_queued_job_ids("default") == ["bad"]


async def test_an_overridden_execution_is_what_runs(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    seen: list[tuple[str, str]] = []

    class Watching(RRQWorker):
        async def _execute_job(self, job: Job, queue_name: str) -> None:
            seen.append((job.id, queue_name))
            await super()._execute_job(job, queue_name)

    job = await enqueue(client, "quick", _queue_name="emails")
    async with running(Watching(settings, handlers.registry, queues=["emails"])):
        await eventually(lambda: handlers.runs[job.id])
    assert seen == [(job.id, "emails")]


async def test_an_execution_that_reports_nothing_does_not_keep_the_job_for_ever(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    class Silent(RRQWorker):
        async def _execute_job(self, job: Job, queue_name: str) -> None:
            raise RuntimeError("an override that breaks")

    job = await enqueue(client, "quick")
    async with by_hand(Silent(settings, handlers.registry)) as worker:
        await worker._poll_for_jobs(1)
        await eventually(lambda: not worker._running_tasks)
        await eventually(
            lambda: is_unlocked(client, job), message="nobody runs the job, and nobody may claim it"
        )


async def is_unlocked(client: RRQClient, job: Job) -> bool:
    return await client.job_store.get_job_lock_owner(job.id) is None


# _poll_for_jobs


async def test_a_poll_starts_as_many_as_asked_and_does_not_wait_for_them(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    for _ in range(5):
        await enqueue(client)
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        assert await worker._poll_for_jobs(3) == 3
        assert len(worker._running_tasks) == 3
        assert free_slots(worker) == settings.worker_concurrency - 3
        assert await worker._poll_for_jobs(0) == 0
        assert await worker._poll_for_jobs(-1) == 0
        assert await client.job_store.redis.zcard(QUEUE) == 2
        assert await worker._poll_for_jobs(9) == 2
        handlers.gate.set()


# Contention


async def test_contending_workers_run_each_job_once_and_losers_keep_their_slots(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    settings.worker_concurrency = 2
    jobs = [await enqueue(client, "quick") for _ in range(60)]
    workers = [RRQWorker(settings, handlers.registry) for _ in range(5)]
    async with running(*workers):
        await eventually(lambda: len(handlers.runs) == len(jobs))
        await eventually(lambda: all(free_slots(worker) == 2 for worker in workers))
        assert all(worker._running_tasks == set() for worker in workers)

    assert handlers.runs == Counter({job.id: 1 for job in jobs})
    assert sum(handlers.by_worker.values()) == 60


async def test_workers_that_lose_every_race_stay_free_for_other_work(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    """Six workers with one slot each go for the same ids at once, again and again."""
    settings.worker_concurrency = 1
    workers = [RRQWorker(settings, handlers.registry) for _ in range(6)]
    for worker in workers:
        worker._loop = asyncio.get_running_loop()
    try:
        for _ in range(5):
            handlers.gate.clear()
            job = await enqueue(client)

            started = await asyncio.gather(
                *(worker._try_process_job(job.id, "default") for worker in workers)
            )

            assert sorted(started) == [False] * 5 + [True]
            for worker, is_winner in zip(workers, started, strict=True):
                assert worker._semaphore.locked() == is_winner
                assert len(worker._running_tasks) == int(is_winner)
            handlers.gate.set()
            await asyncio.gather(*(task for worker in workers for task in worker._running_tasks))
            await eventually(lambda: not any(worker._semaphore.locked() for worker in workers))
    finally:
        for worker in workers:
            await worker._wind_down()
            await worker.close()


async def test_a_poll_that_is_cancelled_loses_no_job(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    jobs = [await enqueue(client, "quick") for _ in range(20)]
    async with by_hand(RRQWorker(settings, handlers.registry)) as worker:
        for turns in range(12):
            poll = asyncio.create_task(worker._poll_for_jobs(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            poll.cancel()
            await asyncio.wait({poll})
        await eventually(lambda: not worker._running_tasks)
    async with running(RRQWorker(settings, handlers.registry)):
        await eventually(lambda: len(handlers.runs) == len(jobs), 20)
    assert handlers.runs == Counter({job.id: 1 for job in jobs})


# _task_cleanup


async def test_cleaning_up_frees_the_slot_whatever_became_of_the_task(
    settings: RRQSettings, caplog: pytest.LogCaptureFixture
) -> None:
    worker = RRQWorker(settings, JobRegistry())
    semaphore = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    done, stranger, failed, cancelled = futures = [loop.create_future() for _ in range(4)]
    done.set_result(None)
    stranger.set_result(None)
    failed.set_exception(RuntimeError("unexpected end"))
    cancelled.cancel()
    known: Any = {done, failed, cancelled}
    worker._running_tasks |= known

    for future in futures:
        worker._task_cleanup(future, semaphore)

    assert worker._running_tasks == set()
    assert semaphore._value == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
    assert "unexpected end" in caplog.text
    await worker.close()
