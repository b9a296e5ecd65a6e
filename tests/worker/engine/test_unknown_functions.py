"""A job that meets a worker without its function waits for one that has it, as roll-outs need it."""

from __future__ import annotations

import functools
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from commandline import CommandLine
from fleet import all_done, enqueue_some, running_worker
from queue_steps import (
    SteppedWorker,
    ask,
    back,
    dead_letters,
    due_score,
    enqueue,
    job_fields,
    now_ms,
    retry,
    start_worker,
    tokens,
    unknown_function,
)
from rrq.broker.messages import Verdict
from rrq.engine.observer import Figures
from rrq.exc import BurstFailed
from rrq.inspect.missing_functions import count_workers, describe_missing
from rrq.registry import JobRegistry
from rrq.runtime.metrics import Meter
from running import run_burst
from waiting import eventually

if TYPE_CHECKING:
    from rrq.client import RRQClient
    from rrq.settings import RRQSettings
    from rrq.store import JobStore

NO_HANDLER = "No handler registered for function 'new'"


def registry_of(*names: str) -> JobRegistry:
    async def handle(ctx: dict[str, Any]) -> None: ...

    registry = JobRegistry()
    for name in names:
        registry.register(name, handle)
    return registry


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def test_job_of_a_new_function_waits_in_a_roll_out_until_a_new_worker_runs_it(
    client: RRQClient, settings: RRQSettings
) -> None:
    store = client.job_store
    async with running_worker(settings, registry_of("old")) as old:
        old.observer = figures = Figures(Meter(), old.job_registry)
        jobs = await enqueue_some(client, "new", count=20)

        async def is_put_off() -> bool:
            fields = [await job_fields(store, job.id) for job in jobs]
            return all("unknown_since_ms" in seen and seen["status"] == "PENDING" for seen in fields)

        await eventually(is_put_off, 20, "the old worker did not give the jobs back")
        fields = await job_fields(store, jobs[0].id)
        assert fields["last_error"].startswith(f"{NO_HANDLER} on worker {old.worker_id}. Put off until")
        assert figures.meter.counts["rrq_jobs_total", "(unregistered)", "unknown_function"] >= 20
        async with running_worker(settings, registry_of("old", "new")):
            await all_done(store, jobs, 90)
    assert await dead_letters(store) == []
    for job in jobs:
        assert (await job_fields(store, job.id))["current_retries"] == "0"


async def test_job_whose_function_no_worker_has_in_time_is_dead_lettered(
    client: RRQClient, settings: RRQSettings
) -> None:
    store = client.job_store
    settings.unknown_function_patience_seconds = 60
    (job,) = await enqueue_some(client, "new")
    with pytest.raises(BurstFailed):
        await run_burst(settings, registry_of("old"))
    await ask(store, "HSET", store.keys.job_key(job.id), "unknown_since_ms", await now_ms(store) - 60_000)
    await ask(store, "ZADD", store.keys.queue_key("default"), 1, job.id)
    await run_burst(settings, registry_of("old"))
    assert await dead_letters(store) == [job.id]
    fields = await job_fields(store, job.id)
    assert (fields["last_error"], fields["current_retries"]) == (NO_HANDLER, "1")


async def test_log_warns_of_each_missing_function_once_and_names_the_job(
    client: RRQClient, settings: RRQSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "rrq.engine.failures")
    jobs = [*await enqueue_some(client, "new", count=3), *await enqueue_some(client, "newer")]
    with pytest.raises(BurstFailed):
        await run_burst(settings, registry_of("old"))
    logged = [
        record
        for record in caplog.records
        if record.message == "job put off, this worker has no handler for its function"
    ]
    assert {vars(record)["job_id"] for record in logged} == {job.id for job in jobs}
    warned = [vars(record)["function"] for record in logged if record.levelno == logging.WARNING]
    assert sorted(warned) == ["new", "newer"]
    assert {record.levelno for record in logged} == {logging.WARNING, logging.DEBUG}


async def test_burst_runs_all_other_jobs_and_fails_with_the_names_of_the_missing_functions(
    client: RRQClient, settings: RRQSettings
) -> None:
    jobs = await enqueue_some(client, "old", count=3)
    (left,) = await enqueue_some(client, "new")
    with pytest.raises(BurstFailed, match="has no handler for 'new'"):
        await run_burst(settings, registry_of("old"))
    await all_done(client.job_store, jobs, 0)
    assert await due_score(client.job_store, left.id) is not None


# The delay


@pytest.mark.parametrize(
    ("waited_seconds", "jitter", "delay_seconds"),
    [(None, 1.0, 1), (0, 1.25, 1.25), (8, 1.0, 2), (40, 0.75, 7.5), (3000, 1.0, 60), (-500, 1.0, 1)],
)
async def test_job_is_put_off_by_a_quarter_of_its_wait_from_a_second_to_a_minute(
    store: JobStore,
    worker: SteppedWorker,
    waited_seconds: float | None,
    jitter: float,
    delay_seconds: float,
) -> None:
    await enqueue(store, "1")
    if waited_seconds is not None:
        since_ms = await now_ms(store) - int(waited_seconds * 1000)
        enqueued = (await job_fields(store, "1"))["enqueue_time"]
        await ask(store, "HSET", "rrq:job:1", "unknown_since_ms", since_ms, "troubles_of", enqueued)
    job = await worker.take_one()
    before_ms = await now_ms(store)
    assert await worker.finish(unknown_function(job, jitter)) == [Verdict.STORED]
    due_ms = await due_score(store, "1")
    assert due_ms is not None
    # Redis decides by its own clock, a moment after this one was read.
    assert 0 <= due_ms - before_ms - delay_seconds * 1000 < 500


async def test_waiting_worker_is_woken_for_the_new_due_time(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await (await start_worker(store, "sleeper")).claim(wait_ms=60_000)
    await worker.finish(unknown_function(job))
    assert await tokens(store) == 1


async def test_history_of_a_job_says_once_that_it_was_put_off(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    for _ in range(3):
        await worker.finish(unknown_function(await worker.take_one()))
        await ask(store, "ZADD", store.keys.queue_key("default"), 1, "1")
    assert len(json.loads((await job_fields(store, "1"))["attempts"])) == 1


async def test_attempt_on_a_worker_that_has_the_function_restarts_the_wait(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.finish(unknown_function(await worker.take_one()))
    await ask(store, "ZADD", store.keys.queue_key("default"), 1, "1")
    await worker.finish(retry(await worker.take_one()))
    assert "unknown_since_ms" not in await job_fields(store, "1")
    assert await store.read_wait_for_function("1") == 0


async def test_hand_back_of_an_attempt_that_ran_restarts_the_wait(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.finish(unknown_function(await worker.take_one()))
    await ask(store, "ZADD", store.keys.queue_key("default"), 1, "1")
    await worker.finish(back(await worker.take_one()))
    assert await store.read_wait_for_function("1") == 0


async def test_wait_of_an_earlier_job_of_the_id_does_not_count(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "nightly")
    await worker.finish(unknown_function(await worker.take_one()))
    since_ms = await now_ms(store) - 7_200_000
    # A producer of an older version, which does not know the time of the first meeting.
    renewed = ("enqueue_time", "2026-11-19T00:00:00Z", "unknown_since_ms", since_ms)
    await ask(store, "HSET", store.keys.job_key("nightly"), *renewed)
    assert await store.read_wait_for_function("nightly") == 0
    await ask(store, "ZADD", store.keys.queue_key("default"), 1, "nightly")
    await worker.finish(unknown_function(await worker.take_one()))
    assert await store.read_wait_for_function("nightly") < 60


# What is known of it


async def test_check_command_names_a_function_that_no_worker_has(
    redis_dsn: str, client: RRQClient, settings: RRQSettings
) -> None:
    cli = CommandLine(redis_dsn)
    async with running_worker(settings, registry_of("old")):
        await enqueue_some(client, "new")

        async def says(start: str) -> bool:
            return any(note.startswith(start) for note in (await cli.json("check"))["notes"])

        is_missed = functools.partial(says, "No worker of queue 'default' has function 'new'.")
        await eventually(is_missed, 20, "rrq check does not name the function")
        async with running_worker(settings, registry_of("old", "new")):
            is_rolling_out = functools.partial(
                says, "1 of 2 workers of queue 'default' do not have function 'new'"
            )
            await eventually(is_rolling_out, 20, "rrq check does not count the workers")
        (missing,) = (await cli.json("check"))["missing_functions"]
    assert (missing["queue"], missing["name"], missing["workers_without"]) == ("default", "new", 1)
    async with running_worker(settings, registry_of("old", "new")):
        await eventually(lambda: _names_none(cli), 20, "a function is missed that every worker has")


async def _names_none(cli: CommandLine) -> bool:
    return not (await cli.json("check"))["missing_functions"]


async def test_a_bounded_number_of_missing_functions_is_stored(
    store: JobStore, worker: SteppedWorker
) -> None:
    missing = store.keys.missing_functions
    await ask(store, "SET", missing, "of another type")
    for name in [*(f"f{number}" for number in range(105)), "f" * 300]:
        await enqueue(store, name, function_name=name)
        # By its id: those that were put off first may be due again.
        [job] = (await worker.claim(job_ids=[name])).jobs
        await worker.finish(unknown_function(job))
    assert await ask(store, "ZCARD", missing) == 100
    assert 86_000 < await ask(store, "TTL", missing) <= 86_400
    assert await ask(store, "ZSCORE", missing, '["default","f104"]') is not None


def test_workers_of_other_queues_do_not_count_for_a_function() -> None:
    registered = [({"mail"}, {"send"}), ({"mail", "default"}, {"new"}), ({"default"}, {"old"})]
    missing = count_workers("default", "new", 5.2, registered)
    assert (missing.workers_with, missing.workers_without) == (1, 1)
    assert "A job of this function was put off 5 s ago." in describe_missing(missing)
