"""The cron table in Redis: who may write it, how long it stays, and ticks fired without any worker."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import all_keys, ask, now_ms
from rrq.broker.connection import RedisCutOff
from rrq.broker.cron_table import PublishCode, build_cron_table, cron_group, parse_cron_table
from rrq.client import RRQClient
from rrq.cron import CronJob, cron_digest
from rrq.engine import cron_scheduler as scheduler
from rrq.engine.cron_scheduler import CronTracker, fire_due
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import run_burst, running
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rrq.embedded import EmbeddedRedis
    from rrq.job import Job

A_MINUTE = timedelta(minutes=1)
PATIENCE_SECONDS = 100
GROUP = cron_group(["default"])
# For entries whose next tick must not come by itself while a test runs.
YEARLY = "0 0 1 1 *"
NOON = datetime(2024, 5, 6, 12, 0, 20, tzinfo=UTC)


def entry(**options: Any) -> CronJob:
    return CronJob(**{"function_name": "tick", "schedule": "* * * * *"} | options)


def past_tick(minutes_ago: int = 1) -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0) - minutes_ago * A_MINUTE


async def publish(
    store: JobStore, *entries: CronJob, started_ms: int | None = None, queues: tuple[str, ...] = ("default",)
) -> PublishCode:
    table = build_cron_table(queues, entries, datetime.now(UTC))
    return (await store.publish_cron_table(table, started_ms, PATIENCE_SECONDS))[1]


async def published(store: JobStore) -> list[str]:
    """The functions of all published entries."""
    return [cron_job.function_name for table in await store.read_cron_tables() for cron_job in table.entries]


async def queued_jobs(store: JobStore, queue: str = "default") -> list[Job]:
    found = [await store.get_job_definition(job_id) for job_id in await store.get_queued_job_ids(queue)]
    return [job for job in found if job is not None]


async def was_seen(store: JobStore, *entries: CronJob, at: datetime) -> None:
    """Have Redis remember that these entries were first seen then."""
    for cron_job in entries:
        digest = cron_digest(cron_job, store.keys.queue_name(cron_job.queue_name or "default"))
        await ask(store, "HSET", store.keys.cron_last, digest, f"seen {int(at.timestamp() * 1000)}")


async def silence_publisher(store: JobStore) -> None:
    """Let the publisher have renewed its table for the last time some minutes ago."""
    await ask(store, "HSET", store.keys.cron_table_key(GROUP), "renewed_ms", await now_ms(store) - 200_000)


# Publishing


async def test_a_published_table_reads_back_as_it_was(store: JobStore) -> None:
    reports = entry(
        function_name="report",
        args=[1, {"a": None}],
        kwargs={"b": "ü"},
        queue_name="reports",
        unique=True,
        max_retries=2,
        job_timeout_seconds=7,
        result_ttl_seconds=0,
        unique_lock_ttl_seconds=90,
    )
    before_ms = await now_ms(store)

    assert await publish(store, entry(), reports, queues=("reports", "default")) is PublishCode.PUBLISHED

    (table,) = await store.read_cron_tables()
    assert table.queues == ("default", "reports")
    assert [cron_job.model_dump() for cron_job in table.entries] == [
        entry().model_dump(),
        reports.model_dump(),
    ]
    assert before_ms <= table.published_at_ms <= await now_ms(store)
    assert table.renewed_at_ms == table.published_at_ms


async def test_the_order_of_the_queues_does_not_make_another_group(store: JobStore) -> None:
    await publish(store, entry(function_name="old"), queues=("a", "b"))
    await publish(store, entry(function_name="new"), queues=("b", "a", "b"))

    assert await published(store) == ["new"]


async def test_a_process_that_started_later_replaces_the_table(store: JobStore) -> None:
    start_ms = await now_ms(store)
    await publish(store, entry(function_name="old"), started_ms=start_ms - 5000)

    assert await publish(store, entry(function_name="new"), started_ms=start_ms) is PublishCode.PUBLISHED

    assert await published(store) == ["new"]


async def test_the_renewal_of_an_old_pod_does_not_bring_its_table_back(store: JobStore) -> None:
    start_ms = await now_ms(store)
    await publish(store, entry(function_name="new"), started_ms=start_ms)

    code = await publish(store, entry(function_name="old"), started_ms=start_ms - 5000)

    assert code is PublishCode.OUTDATED
    assert await published(store) == ["new"]


async def test_old_pods_speak_again_when_the_new_one_is_gone(store: JobStore) -> None:
    """A roll-out that was taken back leaves old processes, and the table of one that no longer runs."""
    start_ms = await now_ms(store)
    await publish(store, entry(function_name="new"), started_ms=start_ms)
    await silence_publisher(store)

    assert (
        await publish(store, entry(function_name="old"), started_ms=start_ms - 5000) is PublishCode.PUBLISHED
    )

    assert await published(store) == ["old"]


async def test_a_clock_that_was_set_back_does_not_freeze_the_table(store: JobStore) -> None:
    ahead_ms = await now_ms(store) + 3_600_000
    await publish(store, entry(function_name="before"), started_ms=ahead_ms)
    await ask(store, "HSET", store.keys.cron_table_key(GROUP), "renewed_ms", ahead_ms)

    await publish(store, entry(function_name="after"))

    assert await published(store) == ["after"]


async def test_a_deployment_without_entries_withdraws_the_table_for_good(store: JobStore) -> None:
    start_ms = await now_ms(store)
    await publish(store, entry(), started_ms=start_ms - 5000)

    assert await publish(store, started_ms=start_ms) is PublishCode.PUBLISHED
    assert await publish(store, entry(), started_ms=start_ms - 5000) is PublishCode.OUTDATED

    assert await store.read_cron_tables() == ()


async def test_a_group_that_never_had_entries_leaves_no_trace(store: JobStore) -> None:
    assert await publish(store) is PublishCode.NOTHING_TO_WITHDRAW
    assert await all_keys(store) == set()


# Expiry


async def test_a_table_that_nobody_renews_expires_after_35_days(store: JobStore) -> None:
    await publish(store, entry())

    for key in (store.keys.cron_tables, store.keys.cron_table_key(GROUP)):
        assert await ask(store, "TTL", key) == pytest.approx(35 * 86_400, abs=90)


async def test_a_yearly_entry_keeps_its_table_until_its_day(store: JobStore) -> None:
    now = datetime.now(UTC)
    yesterday = now - timedelta(days=1)
    await publish(store, entry(schedule=f"0 0 {yesterday.day} {yesterday.month} *"))

    (ttl_seconds,) = {await ask(store, "TTL", store.keys.cron_table_key(GROUP))}

    assert ttl_seconds > timedelta(days=364 + 34).total_seconds()
    assert await ask(store, "TTL", store.keys.cron_tables) == pytest.approx(ttl_seconds, abs=5)


# Reading


async def test_an_entry_that_cannot_be_read_does_not_hide_its_neighbours(
    store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(store, entry())
    bad = [
        {"function_name": "f", "schedule": "every full moon", "args": ["secret"]},
        {"schedule": "* * * * *"},
        {"function_name": "f", "schedule": "* * * * *", "args": "secret"},
        [],
        7,
        "unique",
        {"function_name": "good", "schedule": "* * * * *", "a_later_version": 1, "next_run_time": "soon"},
    ]
    text = json.dumps({"queues": ["default"], "entries": bad})
    await ask(store, "HSET", store.keys.cron_table_key(GROUP), "table", text)

    assert await published(store) == ["good"]
    assert await published(store) == ["good"]

    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert all(f"entry {number}:" in record.__dict__["error"] for number in range(6))
    assert "secret" not in record.__dict__["error"]


def test_a_table_has_room_for_a_quarter_of_a_megabyte() -> None:
    table = build_cron_table(
        ["default"],
        [entry(function_name="big", args=["x" * 300_000]), entry(), entry(kwargs={"a": "x" * 100_000})],
        NOON,
    )

    assert table.left_out == ("big",)
    assert len(parse_cron_table(table.text, 0, 0)[0].entries) == 2


async def test_a_reader_takes_a_bounded_number_of_entries_whatever_lies_in_redis(
    store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        text = json.dumps(
            {
                "queues": [f"queue-{number}"],
                "entries": [{"function_name": "tick", "schedule": "* * * * *"}] * 900,
            }
        )
        await ask(
            store,
            "HSET",
            store.keys.cron_table_key(f"group-{number}"),
            "table",
            text,
            "started_ms",
            1,
            "renewed_ms",
            1,
        )
        await ask(store, "ZADD", store.keys.cron_tables, 2**50 + number, f"group-{number}")
    await ask(store, "HSET", store.keys.cron_table_key("large"), "table", "[" * 600_000)
    await ask(store, "ZADD", store.keys.cron_tables, 2**51, "large")

    tables = await store.read_cron_tables()

    assert [len(table.entries) for table in tables] == [900, 900, 200]
    told = {record.__dict__["error"] for record in caplog.records if record.levelno >= logging.ERROR}
    assert told == {
        "700 entries left out: all cron tables may have 2000 entries together",
        "it has more than 524288 bytes",
    }


# Workers


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_CRON_INTERVAL_SECONDS", 0.05)


async def test_a_starting_worker_publishes_what_its_settings_make_of_the_entries(
    redis_dsn: str, store: JobStore
) -> None:
    settings = RRQSettings(
        redis_dsn=redis_dsn,
        default_queue_name="slow",
        default_max_retries=9,
        default_job_timeout_seconds=8,
        default_result_ttl_seconds=7,
        default_unique_job_lock_ttl_seconds=6,
        cron_jobs=[entry(), entry(queue_name="own", max_retries=1, unique_lock_ttl_seconds=2)],
    )
    async with running(RRQWorker(settings, JobRegistry(), queues=["slow", "rrq:queue:own"])):
        (table,) = await eventually(store.read_cron_tables)

    assert table.queues == ("own", "slow")
    first, second = table.entries
    assert (first.queue_name, first.max_retries, first.job_timeout_seconds) == ("slow", 9, 8)
    assert (first.result_ttl_seconds, first.unique_lock_ttl_seconds) == (7, 6)
    assert (second.queue_name, second.max_retries, second.unique_lock_ttl_seconds) == ("own", 1, 2)
    assert settings.cron_jobs[0].queue_name is None, "the entry of the application stays as it is"


@pytest.mark.usefixtures("quick_rounds")
async def test_a_worker_renews_its_table(settings: RRQSettings, store: JobStore) -> None:
    settings.cron_jobs = [entry()]
    async with running(RRQWorker(settings, JobRegistry())):
        (first,) = await eventually(store.read_cron_tables)

        async def renewed() -> bool:
            (table,) = await store.read_cron_tables()
            assert table.published_at_ms == first.published_at_ms
            return table.renewed_at_ms > first.renewed_at_ms

        await eventually(renewed)

        await ask(store, "FLUSHDB")
        (again,) = await eventually(store.read_cron_tables)
        assert again.published_at_ms == first.published_at_ms


@pytest.mark.usefixtures("quick_rounds")
async def test_an_entry_whose_arguments_cannot_be_sent_is_left_out_and_told_once(
    settings: RRQSettings, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    settings.cron_jobs = [entry(function_name="odd", args=[object()]), entry()]
    async with running(RRQWorker(settings, JobRegistry())):
        (first,) = await eventually(store.read_cron_tables)

        async def renewed() -> bool:
            (table,) = await store.read_cron_tables()
            return table.renewed_at_ms > first.renewed_at_ms + 150

        await eventually(renewed)

    assert [cron_job.function_name for cron_job in first.entries] == ["tick"]
    told = [
        record for record in caplog.records if record.message == "cron entry fires only while a worker runs"
    ]
    assert len(told) == 1
    assert "'odd'" in told[0].__dict__["error"]


async def test_ticks_do_not_depend_on_the_table(settings: RRQSettings, store: JobStore) -> None:
    class Refused(JobStore):
        async def publish_cron_table(self, *_: Any, **__: Any) -> Any:
            raise OSError("no right to write this key")

    class Due(RRQWorker):
        is_set = False

        async def _maybe_enqueue_cron_jobs(self) -> None:
            if not self.is_set:
                self.is_set = True
                self.cron_jobs[0].next_run_time = past_tick()
            await super()._maybe_enqueue_cron_jobs()

    settings.cron_jobs = [entry(queue_name="elsewhere")]
    worker = Due(settings, JobRegistry())
    await worker.job_store.aclose()
    worker.job_store = Refused(settings)
    worker.client = RRQClient(settings, job_store=worker.job_store)
    async with running(worker):
        await eventually(lambda: queued_jobs(store, "elsewhere"))


# Firing without a worker


async def read_entries(store: JobStore) -> list[CronJob]:
    return [cron_job for table in await store.read_cron_tables() for cron_job in table.entries]


async def test_an_operator_fires_what_falls_due_as_the_application_would_have(
    redis_dsn: str, client: RRQClient, store: JobStore
) -> None:
    """The settings of the operator say nothing about the application."""
    of_application = RRQSettings(
        redis_dsn=redis_dsn,
        default_queue_name="slow",
        default_max_retries=9,
        default_job_timeout_seconds=8,
        default_result_ttl_seconds=7,
        default_unique_job_lock_ttl_seconds=60,
        cron_jobs=[entry(args=[1], kwargs={"a": 2}, unique=True)],
    )
    await run_burst(of_application, JobRegistry())
    tracker = CronTracker(client)

    await was_seen(store, *await read_entries(store), at=past_tick(2))
    tracker.track(await read_entries(store))
    (fired,) = await tracker.fire_due(past_tick())
    assert await tracker.fire_due(past_tick()) == []

    assert fired.function_name == "tick"
    (job,) = await queued_jobs(store, "slow")
    assert (job.function_name, job.job_args, job.job_kwargs) == ("tick", [1], {"a": 2})
    assert (job.queue_name, job.max_retries, job.job_timeout_seconds) == ("slow", 9, 8)
    assert (job.result_ttl_seconds, job.job_unique_key) == (7, "cron:tick")
    assert 50 <= await ask(store, "TTL", store.keys.unique_lock_key("cron:tick")) <= 60


@pytest.mark.parametrize(("default_queue", "prefix"), [("rrq:queue:default", "rrq:"), ("slow", "{shop}:")])
async def test_a_tick_is_fired_once_by_workers_and_operator_together(
    redis_dsn: str, default_queue: str, prefix: str
) -> None:
    of_application = RRQSettings(redis_dsn=redis_dsn, key_prefix=prefix, default_queue_name=default_queue)
    of_operator = RRQSettings(redis_dsn=redis_dsn, key_prefix=prefix)
    workers = [RRQWorker(of_application, JobRegistry()) for _ in range(3)]
    async with aclosing(RRQClient(of_operator)) as operator:
        store = operator.job_store
        for worker in workers:
            worker.cron_jobs = [
                entry(args=[{2: 0, 10: 0}], schedule=YEARLY),
                entry(queue_name=default_queue, args=[7], schedule=YEARLY),
            ]
            await worker._cron.publish_table()
        tracker = CronTracker(operator)
        tracker.track(await read_entries(store))
        tick = past_tick()
        await tracker.fire_due(tick)
        tracked = tracker._unattended.values()
        for cron_job in (*tracked, *(cron_job for worker in workers for cron_job in worker.cron_jobs)):
            cron_job.next_run_time = tick

        await asyncio.gather(
            tracker.fire_due(tick), *(worker._maybe_enqueue_cron_jobs() for worker in workers)
        )

        assert len(await queued_jobs(store, default_queue)) == 2
        for worker in workers:
            await worker.close()


async def test_applications_with_other_defaults_do_not_take_each_others_ticks(
    redis_dsn: str, store: JobStore
) -> None:
    for queue in ("a", "b"):
        async with aclosing(RRQClient(RRQSettings(redis_dsn=redis_dsn, default_queue_name=queue))) as client:
            cron_job = entry(next_run_time=past_tick())
            assert await fire_due(client, [cron_job], datetime.now(UTC)) == [cron_job]

    assert len(await queued_jobs(store, "a")) == len(await queued_jobs(store, "b")) == 1


async def test_ticks_missed_between_two_looks_fire_once(client: RRQClient, store: JobStore) -> None:
    tracker = CronTracker(client)
    tracker.track([entry()])
    await tracker.fire_due(past_tick(30))

    await tracker.fire_due(past_tick(1))

    assert len(await queued_jobs(store)) == 1


async def test_an_entry_that_is_no_longer_tracked_does_not_fire(client: RRQClient, store: JobStore) -> None:
    tracker = CronTracker(client)
    tracker.track([entry(), entry(function_name="kept")])
    await tracker.fire_due(past_tick(2))

    tracker.track([entry(function_name="kept")])

    assert [cron_job.function_name for cron_job in await tracker.fire_due(past_tick(1))] == ["kept"]
    assert len(await queued_jobs(store)) == 1


async def test_a_first_look_makes_up_for_nothing(client: RRQClient, store: JobStore) -> None:
    tracker = CronTracker(client)
    tracker.track([entry()])

    assert await tracker.fire_due(past_tick(1)) == []
    assert await queued_jobs(store) == []


@pytest.mark.parametrize(("minutes_away", "fired"), [(4, 1), (10, 0)])
async def test_an_operator_that_takes_over_fires_the_last_tick_nobody_fired(
    client: RRQClient, store: JobStore, minutes_away: int, fired: int
) -> None:
    hourly = past_tick(minutes_away)
    cron_job = entry(schedule=f"{hourly.minute} * * * *")
    await was_seen(store, cron_job, at=hourly - timedelta(minutes=150))

    for _ in range(2):
        tracker = CronTracker(client)
        tracker.track([cron_job])
        await tracker.fire_due(past_tick(0))

    assert len(await queued_jobs(store)) == fired


async def test_an_entry_that_comes_later_does_not_fire_for_a_time_before_it_came(
    client: RRQClient, store: JobStore
) -> None:
    now = past_tick() + timedelta(seconds=10)
    tracker = CronTracker(client)
    tracker.track([entry()])
    await tracker.fire_due(now)

    tracker.track([entry(), entry(function_name="new")])

    assert await tracker.fire_due(now) == []
    fired = await tracker.fire_due(now + A_MINUTE)
    assert {cron_job.function_name for cron_job in fired} == {"tick", "new"}


async def test_living_workers_get_a_head_start(client: RRQClient, store: JobStore) -> None:
    tick = past_tick(3)
    tracker = CronTracker(client)
    tracker.track([], attended=[entry()])
    await tracker.fire_due(tick - timedelta(seconds=1))

    assert await tracker.fire_due(tick + timedelta(seconds=9)) == []
    assert len(await tracker.fire_due(tick + timedelta(seconds=10))) == 1, "they had their chance"
    assert len(await tracker.fire_due(tick + timedelta(seconds=70))) == 1, "no tick is skipped"


async def test_a_worker_that_goes_before_its_round_leaves_the_tick_to_the_operator(
    client: RRQClient, store: JobStore
) -> None:
    tick = past_tick(1)
    tracker = CronTracker(client)
    tracker.track([], attended=[entry()])
    await tracker.fire_due(tick - timedelta(seconds=1))
    await tracker.fire_due(tick + timedelta(seconds=5))

    tracker.track([entry()])

    assert len(await tracker.fire_due(tick + timedelta(seconds=6))) == 1


async def test_an_entry_of_two_tables_counts_as_attended_when_one_has_workers(
    client: RRQClient, store: JobStore
) -> None:
    tracker = CronTracker(client)
    tracker.track([entry()], attended=[entry(queue_name="default")])
    tick = past_tick(2)
    await tracker.fire_due(tick - timedelta(seconds=1))

    assert await tracker.fire_due(tick + timedelta(seconds=9)) == []
    assert tracker.find_next_look() == tick + timedelta(seconds=10)
    assert len(await tracker.fire_due(tick + timedelta(seconds=10))) == 1
    assert len(await queued_jobs(store)) == 1


async def test_a_tick_for_which_redis_gave_no_answer_stays_due(own_redis: EmbeddedRedis) -> None:
    settings = RRQSettings(redis_dsn=own_redis.dsn, redis_socket_timeout_seconds=1)
    async with aclosing(RRQClient(settings)) as client:
        tracker = CronTracker(client)
        tracker.track([entry(), entry(function_name="tock")])
        await tracker.fire_due(past_tick(2))
        own_redis.kill()
        with pytest.raises(RedisCutOff):
            await tracker.fire_due(past_tick(1))
        own_redis.restart()

        assert len(await tracker.fire_due(past_tick(1))) == 2


async def test_a_published_entry_keeps_its_time_zone_and_grace(client: RRQClient, store: JobStore) -> None:
    given = entry(timezone="Europe/Berlin"), entry(misfire_grace_seconds=60)
    await publish(store, *(client.complete_cron(cron_job) for cron_job in given))

    first, second = await read_entries(store)

    assert (first.timezone, first.misfire_grace_seconds) == ("Europe/Berlin", 300)
    assert (second.timezone, second.misfire_grace_seconds) == ("UTC", 60)
    assert [client.identify_cron(cron_job) for cron_job in given] == [
        client.identify_cron(cron_job) for cron_job in (first, second)
    ]


def test_an_entry_published_before_there_were_time_zones_is_in_utc() -> None:
    old = {"function_name": "tick", "schedule": "0 3 * * *", "args": [], "queue_name": "default"}
    table, problems = parse_cron_table(json.dumps({"queues": ["default"], "entries": [old]}), 1, 1)

    assert problems == []
    assert [cron_job.timezone for cron_job in table.entries] == ["UTC"]


def test_the_words_of_an_entry_are_published_whole() -> None:
    """A field added to CronJob is published without anybody thinking of it, all but the next run."""
    table = build_cron_table(["q"], [entry(next_run_time=NOON)], NOON)

    assert set(json.loads(table.text)["entries"][0]) == set(CronJob.model_fields) - {"next_run_time"}


@pytest.fixture(autouse=True)
def _warnings_and_worse(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING):
        yield
