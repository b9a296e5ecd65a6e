"""Cron entries in a fleet: each tick becomes one job, by the clock of Redis."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from rrq.cron import CronJob
from rrq.embedded import EmbeddedRedis
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import running, stays_true
from waiting import eventually

QUEUE = "rrq:queue:default"
A_MINUTE = timedelta(minutes=1)
# For entries whose next tick must not come by itself while a test runs.
YEARLY = "0 0 1 1 *"


def entry(**options: Any) -> CronJob:
    return CronJob(**{"function_name": "tick", "schedule": "* * * * *"} | options)


def past_tick(minutes_ago: int = 1) -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0) - minutes_ago * A_MINUTE


async def queued_jobs(store: JobStore, queue: str = "default") -> list[Job]:
    found = [await store.get_job_definition(job_id) for job_id in await store.get_queued_job_ids(queue)]
    return [job for job in found if job is not None]


class Fleet:
    """Workers as in several processes: each with its own copy of the cron entries."""

    def __init__(self, settings: RRQSettings, size: int, *entries: dict[str, Any]) -> None:
        self.workers = []
        for _ in range(size):
            worker = RRQWorker(settings, JobRegistry())
            worker.cron_jobs = [entry(**options) for options in entries]
            self.workers.append(worker)

    def come_due(self, tick: datetime) -> None:
        for worker in self.workers:
            for cron_job in worker.cron_jobs:
                cron_job.next_run_time = tick

    async def tick(self) -> None:
        await asyncio.gather(*(worker._maybe_enqueue_cron_jobs() for worker in self.workers))

    async def close(self) -> None:
        for worker in self.workers:
            await worker.close()


async def test_a_tick_becomes_one_job_in_the_whole_fleet(settings: RRQSettings, store: JobStore) -> None:
    fleet = Fleet(settings, 6, {"args": [1], "kwargs": {"x": 2}, "schedule": YEARLY})
    fleet.come_due(past_tick())
    before = datetime.now(UTC)

    await fleet.tick()
    await fleet.tick()

    (job,) = await queued_jobs(store)
    assert (job.function_name, job.job_args, job.job_kwargs) == ("tick", [1], {"x": 2})
    assert job.queue_name == QUEUE
    assert (job.max_retries, job.job_timeout_seconds) == (5, 300)
    for worker in fleet.workers:
        next_run = worker.cron_jobs[0].next_run_time
        assert next_run is not None
        assert next_run > before
    await fleet.close()


async def test_entries_that_differ_are_independent(settings: RRQSettings, store: JobStore) -> None:
    fleet = Fleet(
        settings,
        4,
        {},
        {"args": [1]},
        {"kwargs": {"a": 1}},
        {"queue_name": "other"},
        {"function_name": "tock"},
        {"schedule": "*/2 * * * *"},
    )
    fleet.come_due(past_tick())

    await fleet.tick()

    assert len(await queued_jobs(store)) == 5
    (elsewhere,) = await queued_jobs(store, "other")
    assert elsewhere.queue_name == "other"
    await fleet.close()


async def test_the_same_entry_written_differently_is_one_entry(
    settings: RRQSettings, store: JobStore
) -> None:
    fleet = Fleet(settings, 2)
    for worker, spelling in zip(fleet.workers, ("0 0 * JAN *", "0  0 *  jan *"), strict=True):
        worker.cron_jobs = [entry(schedule=spelling)]
    fleet.come_due(past_tick())

    await fleet.tick()

    assert len(await queued_jobs(store)) == 1
    await fleet.close()


# Gaps


@pytest.mark.parametrize(
    ("options", "minutes_ago", "fired"),
    [({}, 2, 1), ({}, 8, 0), ({"misfire_grace_seconds": 3600}, 8, 1), ({"misfire_grace_seconds": 30}, 2, 0)],
)
async def test_a_fleet_that_restarts_fires_a_recent_tick_that_it_missed_once(
    settings: RRQSettings, store: JobStore, options: dict[str, Any], minutes_ago: int, fired: int
) -> None:
    missed = past_tick(minutes_ago)
    hourly = entry(schedule=f"{missed.minute} * * * *", **options)
    settings.cron_jobs = [hourly]
    before = RRQWorker(settings, JobRegistry(), ["other"])
    hourly.next_run_time = missed - timedelta(hours=2)
    await before.client.enqueue_cron(hourly)
    await before.close()
    await store.redis.delete(QUEUE)

    for _ in range(2):
        worker = RRQWorker(settings, JobRegistry(), ["other"])
        hourly.next_run_time = None
        async with running(worker):
            await eventually(lambda: hourly.next_run_time)
        assert len(await queued_jobs(store)) == fired


async def test_the_first_deployment_of_an_entry_fires_no_earlier_tick(
    settings: RRQSettings, store: JobStore
) -> None:
    deployed = past_tick(3)
    for schedule in (f"{deployed.minute} * * * *", f"{deployed.minute} * * * 0-6"):  # a change is a new entry
        settings.cron_jobs = [entry(schedule=schedule)]
        for _ in range(2):
            settings.cron_jobs[0].next_run_time = None
            worker = RRQWorker(settings, JobRegistry(), ["other"])
            async with running(worker):
                await eventually(lambda: settings.cron_jobs[0].next_run_time)

    assert await queued_jobs(store) == []


async def test_a_tick_that_every_process_missed_is_fired_late(settings: RRQSettings, store: JobStore) -> None:
    fleet = Fleet(settings, 3, {})
    await store.note_cron_entries([fleet.workers[0].client.identify_cron(entry())], past_tick(4))

    await fleet.tick()
    await fleet.tick()

    assert len(await queued_jobs(store)) == 1, "of several missed ticks the last one"
    await fleet.close()


# Unique entries


async def test_a_unique_entry_is_skipped_while_its_job_is_unfinished(
    settings: RRQSettings, store: JobStore
) -> None:
    fleet = Fleet(settings, 3, {"unique": True, "schedule": YEARLY})
    fleet.come_due(past_tick(3))
    await fleet.tick()
    (job,) = await queued_jobs(store)
    assert job.job_unique_key == "cron:tick"
    assert await store.get_unique_lock_holder("cron:tick") == job.id

    fleet.come_due(past_tick(2))
    await fleet.tick()
    assert len(await queued_jobs(store)) == 1, "skipped, and not deferred for hours either"

    await store.release_unique_job_lock("cron:tick")
    fleet.come_due(past_tick(1))
    await fleet.tick()
    assert len(await queued_jobs(store)) == 2
    await fleet.close()


# Trouble


async def test_an_entry_that_never_fires_does_not_stop_the_others(
    settings: RRQSettings, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(settings, 1, {"schedule": "0 0 30 2 *", "function_name": "never"}, {"schedule": YEARLY})
    await fleet.workers[0]._cron.schedule()
    fleet.workers[0].cron_jobs[1].next_run_time = past_tick()

    await fleet.tick()
    await fleet.tick()

    assert [job.function_name for job in await queued_jobs(store)] == ["tick"]
    assert fleet.workers[0].cron_jobs[0].next_run_time is None
    assert any(record.levelno >= logging.ERROR for record in caplog.records)
    await fleet.close()


@pytest.mark.parametrize("problem", ["arguments", "queue"])
async def test_an_entry_that_cannot_be_enqueued_moves_on_and_does_not_stop_the_others(
    settings: RRQSettings, store: JobStore, problem: str
) -> None:
    bad: dict[str, Any] = {"args": [object()]}
    if problem == "queue":
        bad = {"queue_name": "odd"}
        await store.redis.set("rrq:queue:odd", "no queue")
    fleet = Fleet(settings, 2, bad, {})
    fleet.come_due(past_tick())
    before = datetime.now(UTC)

    await fleet.tick()

    assert len(await queued_jobs(store)) == 1
    for worker in fleet.workers:
        next_run = worker.cron_jobs[0].next_run_time
        assert next_run is not None
        assert next_run > before
    await fleet.close()


# The loop


class FiresAt(RRQWorker):
    """A worker whose entries are due at a time that the test chooses."""

    def __init__(self, tick: datetime, *args: Any) -> None:
        super().__init__(*args)
        self.tick = tick
        self.is_set = False

    async def _maybe_enqueue_cron_jobs(self) -> None:
        if not self.is_set:
            self.is_set = True
            for cron_job in self.cron_jobs:
                cron_job.next_run_time = self.tick
        await super()._maybe_enqueue_cron_jobs()


async def test_a_running_fleet_fires_a_due_tick_once_and_runs_it(
    settings: RRQSettings, store: JobStore
) -> None:
    ran: list[str] = []

    async def tick(context: dict[str, Any]) -> None:
        ran.append(context["job_id"])

    registry = JobRegistry()
    registry.register("tick", tick)

    due_at = past_tick()
    settings.cron_jobs = [entry(schedule=YEARLY)]
    workers = [FiresAt(due_at, settings, registry) for _ in range(4)]
    for worker in workers:
        worker.cron_jobs = [entry(schedule=YEARLY)]
    async with running(*workers):
        await eventually(lambda: ran)
        await eventually(lambda: all(worker.cron_jobs[0].next_run_time != due_at for worker in workers))
        await stays_true(lambda: len(ran) == 1, 0.3)
    assert all(worker._cron_task is None for worker in workers)


async def test_a_running_worker_fires_on_time(settings: RRQSettings, store: JobStore) -> None:
    tick = datetime.now(UTC) + timedelta(seconds=1.5)
    settings.cron_jobs = [entry(schedule=YEARLY)]
    async with running(FiresAt(tick, settings, JobRegistry(), ["other"])):
        await eventually(lambda: queued_jobs(store), interval_seconds=0.2)

    (job,) = await queued_jobs(store)
    # By the clock of Redis; a busy machine may take its time.
    assert timedelta(0) <= job.enqueue_time - tick < timedelta(seconds=1)


async def test_a_tick_that_comes_while_redis_is_away_fires_when_it_is_back(own_redis: EmbeddedRedis) -> None:
    await check_a_tick_survives(own_redis, own_redis.kill, own_redis.restart)


@pytest.mark.parametrize(
    ("refuse", "accept"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    ],
    ids=["out of memory", "read-only"],
)
async def test_a_tick_that_comes_while_redis_refuses_writes_fires_when_it_accepts_them(
    own_redis: EmbeddedRedis, refuse: tuple[str, ...], accept: tuple[str, ...]
) -> None:
    with redis.Redis.from_url(own_redis.dsn) as direct:
        await check_a_tick_survives(
            own_redis, lambda: direct.execute_command(*refuse), lambda: direct.execute_command(*accept)
        )


async def check_a_tick_survives(
    server: EmbeddedRedis, begin: Callable[[], object], end: Callable[[], object]
) -> None:
    """Have a tick fall due between ``begin`` and ``end``; it must fire once after that."""
    settings = RRQSettings(redis_dsn=server.dsn, cron_jobs=[entry(schedule=YEARLY)])
    settings.redis_socket_timeout_seconds = settings.redis_connect_timeout_seconds = 0.5
    tick = datetime.now(UTC) + timedelta(seconds=1.5)
    worker = FiresAt(tick, settings, JobRegistry(), ["other"])
    async with running(worker), aclosing(JobStore(settings)) as store:
        await eventually(lambda: worker.is_set)
        begin()
        # Until the worker has tried, and a little longer than the spread of a fleet over a tick.
        await eventually(lambda: datetime.now(UTC) > tick + timedelta(seconds=0.5))
        end()
        await eventually(lambda: queued_jobs(store))
        await eventually(lambda: settings.cron_jobs[0].next_run_time != tick)
        assert len(await queued_jobs(store)) == 1


async def test_the_loop_advances_the_entries_of_the_caller(settings: RRQSettings) -> None:
    cron_job = entry()
    settings.cron_jobs = [cron_job]
    worker = RRQWorker(settings, JobRegistry())
    async with running(worker):
        await eventually(lambda: cron_job.next_run_time)
        assert worker._cron_task is not None
    assert cron_job.next_run_time is not None
    assert cron_job.next_run_time > datetime.now(UTC) - timedelta(seconds=61)
