"""Ticks for pools that have no pod: one that was missed by everything with a schedule has to come once."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from burst_runs import build_burst, holds, read_runs
from pools import build_pool
from queue_steps import ask
from rrq import RRQSettings
from rrq.cron import CronJob, cron_digest
from rrq.registry import JobRegistry
from rrq.worker import RRQWorker
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from operator_process import RunningOperator
    from pools import PoolDesk
    from rrq.store import JobStore


async def test_a_tick_that_all_that_is_scheduled_has_missed_comes_once(
    desk: PoolDesk, start_operator: Callable[..., RunningOperator], store: JobStore, redis_dsn: str
) -> None:
    # A minute ago, and next in an hour: within the test no other tick comes.
    tick = (await store.read_time()).replace(second=0, microsecond=0) - timedelta(minutes=1)
    schedule, before = f"{tick.minute} * * * *", tick - timedelta(hours=1)
    # An application that ran once and left its table behind.
    published = CronJob(function_name="clean", schedule=schedule, queue_name="published")
    settings = RRQSettings(redis_dsn=redis_dsn, job_registry=JobRegistry(), cron_jobs=[published])
    await RRQWorker(settings, JobRegistry(), ["published"], burst=True).run()
    declared = {"name": "hello", "schedule": schedule, "function": "greet", "args": [1]}
    scheduled = build_burst(redis_dsn, start="OnSchedule", schedule=schedule)
    scheduled["metadata"]["name"] = "scheduled"
    scheduled["spec"]["queues"] = ["bursts"]
    desk.apply(
        build_pool("declared", queues=["declared"], redis={"url": redis_dsn}, cron=[declared]),
        build_pool("published", queues=["published"], redis={"url": redis_dsn}),
        scheduled,
    )
    # All of them were seen to an hour ago.
    of_pool = CronJob(function_name="greet", schedule=schedule, args=[1], queue_name="declared")
    for entry in (published, of_pool):
        await ask(store, "HSET", store.keys.cron_last, cron_digest(entry), int(before.timestamp() * 1000))
    last = before.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = f'--patch={{"status": {{"job": {{"runs": 0, "lastScheduleTime": "{last}"}}}}}}'
    desk.kubectl("patch", "rrqpool", "scheduled", "--subresource=status", "--type=merge", patch)

    # Two of them, which is once too many: still the tick comes once.
    for name in ("first", "second"):
        start_operator(name, no_leader_election="")

    async def count() -> list[int]:
        return [
            int(await ask(store, "ZCARD", store.keys.queue_key(queue))) for queue in ("declared", "published")
        ]

    async def have_fired() -> bool:
        return await count() == [1, 1]

    await eventually(have_fired, 60, "the tick was not made up for")
    await eventually(lambda: list(read_runs(desk)) == [1], 30)
    await eventually(lambda: (desk.replicas("declared"), desk.replicas("published")) == (1, 1), 30)
    await holds(lambda: list(read_runs(desk)) == [1], 3, "both operators have looked again")
    assert await count() == [1, 1]
    assert read_runs(desk)[1]["metadata"]["name"] == "scheduled-run-1"
    job_id, *_ = await store.get_queued_job_ids("declared")
    job = await store.get_job_definition(job_id)
    assert job is not None
    assert (job.function_name, job.job_args) == ("greet", [1])
