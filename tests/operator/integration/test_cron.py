"""Ticks for pools that have no pod: one real minute, in which everything with a schedule has to come once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burst_runs import build_burst, holds, read_runs
from pools import build_pool
from queue_steps import ask
from rrq import RRQClient, RRQSettings
from rrq.cron import CronJob
from rrq.registry import JobRegistry
from rrq.worker import RRQWorker
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from operator_process import RunningOperator
    from pools import PoolDesk
    from rrq.store import JobStore

EVERY_MINUTE = "* * * * *"


async def test_within_a_minute_all_that_is_scheduled_comes_once(
    desk: PoolDesk,
    start_operator: Callable[..., RunningOperator],
    store: JobStore,
    redis_dsn: str,
) -> None:
    # An application that ran once and left its table behind.
    settings = RRQSettings(
        redis_dsn=redis_dsn,
        job_registry=JobRegistry(),
        cron_jobs=[CronJob(function_name="clean", schedule=EVERY_MINUTE, queue_name="published")],
    )
    worker = RRQWorker(settings, JobRegistry(), ["published"], burst=True)
    await worker.run()
    await ask(store, "DEL", store.keys.queue_key("published"))

    # Two of them, which is once too many: still each tick comes once.
    for name in ("first", "second"):
        start_operator(name, no_leader_election="")
    declared = {"name": "hello", "schedule": EVERY_MINUTE, "function": "greet", "args": [1]}
    nightly = build_burst(redis_dsn, start="OnSchedule", schedule=EVERY_MINUTE)
    nightly["metadata"]["name"] = "scheduled"
    nightly["spec"]["queues"] = ["bursts"]
    desk.apply(
        build_pool("declared", queues=["declared"], redis={"url": redis_dsn}, cron=[declared]),
        build_pool("published", queues=["published"], redis={"url": redis_dsn}),
        nightly,
    )

    for name in ("declared", "published", "scheduled"):
        await eventually(lambda: desk.condition("QueueReachable", name)[0] == "True", 60)  # noqa: B023  awaited here

    async def count() -> tuple[int, ...]:
        async with store.redis.pipeline(transaction=True) as pipe:
            for queue in ("declared", "published"):
                pipe.zcard(store.keys.queue_key(queue))
            return tuple(await pipe.execute())

    # A tick of the last half minute has come already: a standby that takes over must not miss it.
    before = await count()

    async def have_fired() -> bool:
        return await count() == tuple(number + 1 for number in before)

    await eventually(have_fired, 75, "the minute turns")
    await eventually(lambda: list(read_runs(desk)) == [1], 30)
    await eventually(lambda: (desk.replicas("declared"), desk.replicas("published")) == (1, 1), 30)
    await holds(lambda: list(read_runs(desk)) == [1], 3, "both operators have looked again")
    assert await count() == tuple(number + 1 for number in before)
    assert read_runs(desk)[1]["metadata"]["name"] == "scheduled-run-1"
    client = RRQClient(RRQSettings(redis_dsn=redis_dsn))
    job_id, *_ = await store.get_queued_job_ids("declared")
    job = await store.get_job_definition(job_id)
    await client.close()
    assert job is not None
    assert (job.function_name, job.job_args) == ("greet", [1])
