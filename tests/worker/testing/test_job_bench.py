"""The test kit as users use it: the test runs jobs, moves the clock and causes faults."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from rrq import App, CronJob, JobRegistry, RRQSettings
from rrq.broker.scripts import load_script
from rrq.exc import JobFailed, JobNotFound, RedisUnavailable, RetryJob, SettingsError
from rrq.job import JobStatus
from rrq.testing import BenchError, JobBench, RunOutcome
from rrq.testing.clock import Clock, decide_step_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DAY_SECONDS = 86_400


@pytest.fixture
def app() -> App:
    # No server listens there: what reaches Redis reaches that of the bench.
    return App(RRQSettings(redis_dsn="redis://127.0.0.1:1/0"))


@pytest.fixture
async def bench(app: App) -> AsyncIterator[JobBench]:
    async with JobBench(app) as bench:
        yield bench


# Running


async def test_what_is_due_runs_inside_the_test(app: App, bench: JobBench) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @app.job()
    async def double(ctx: dict[str, Any], number: int, *, times: int = 1) -> int:
        loops.append(asyncio.get_running_loop())
        return 2 * number * times

    @app.job(queue="texts")
    def shout(ctx: dict[str, Any], text: str) -> str:
        return text.upper()

    doubled = await double.enqueue(4, times=3)
    shouted = await shout.enqueue("hey")
    later = await double.with_options(defer_by=60).enqueue(1)

    runs = await bench.run_due()

    assert [(run.job_id, run.outcome, run.result) for run in runs] == [
        (doubled.id, RunOutcome.DONE, 24),
        (shouted.id, RunOutcome.DONE, "HEY"),
    ]
    first, second = runs
    assert (first.function_name, first.args, first.kwargs) == ("double", (4,), {"times": 3})
    assert (first.queue, second.queue, first.attempt) == ("default", "texts", 1)
    assert loops == [asyncio.get_running_loop()]
    assert await doubled.result() == 24
    assert await later.status() is JobStatus.PENDING
    assert await bench.run_due() == []
    assert bench.runs == runs


async def test_settings_with_a_registry_of_0_7_are_accepted() -> None:
    registry = JobRegistry()

    async def greet(context: dict[str, Any], name: str) -> str:
        return f"{context['queue_name']}: hello {name}"

    registry.register("greet", greet)
    async with JobBench(RRQSettings(job_registry=registry, key_prefix="shop:"), queues=["front"]) as bench:
        await bench.client.enqueue("greet", "eve", _queue_name="front")
        await bench.client.enqueue("greet", "adam", _queue_name="back")
        [run] = await bench.run_due()
    assert (run.queue, run.result) == ("front", "front: hello eve")


async def test_a_wrong_call_of_the_bench_is_explained(app: App, bench: JobBench) -> None:
    await bench.client.enqueue("forgotten")
    [run] = await bench.run_due()
    assert (run.outcome, run.error) == (RunOutcome.DEAD, "No handler registered for function 'forgotten'")
    with pytest.raises(SettingsError, match="no job_registry"):
        JobBench(RRQSettings())
    with pytest.raises(BenchError, match="move it back"):
        await bench.travel(-1)
    with pytest.raises(BenchError, match="answer to 'renew_leases' cannot be cut"):
        bench.cut_reply("renew_leases")  # type: ignore[arg-type]  # what mypy refuses is explained to others
    assert await bench.kill_worker() == 0


async def test_follow_ups_run_too_and_jobs_run_one_at_a_time_in_the_order_of_their_due_times(
    app: App, bench: JobBench
) -> None:
    order: list[str] = []

    @app.job()
    async def step(ctx: dict[str, Any], name: str) -> None:
        order.append(f"{name} begins")
        if name == "a":
            await step.enqueue("follow-up")
        if name == "follow-up":
            await ctx["rrq_client"].enqueue("step", "last")
        order.append(f"{name} ends")

    await step.with_options(defer_by=40).enqueue("b")
    await step.with_options(defer_by=20).enqueue("a")
    await bench.travel(41)
    await bench.run_due()

    names = ["a", "b", "follow-up", "last"]
    assert order == [f"{name} {what}" for name in names for what in ("begins", "ends")]


async def test_a_job_that_enqueues_itself_or_runs_others_is_stopped(app: App, bench: JobBench) -> None:
    @app.job(max_retries=1)
    async def nested(ctx: dict[str, Any]) -> None:
        await bench.run_due()

    @app.job()
    async def again(ctx: dict[str, Any]) -> None:
        await again.enqueue()

    await nested.enqueue()
    [run] = await bench.run_due()
    assert run.outcome is RunOutcome.DEAD
    assert "under way already" in str(run.error)
    await again.enqueue()
    with pytest.raises(BenchError, match="More than 20 jobs were due in one run_due"):
        await bench.run_due(most=20)


async def test_a_job_that_is_cancelled_while_it_runs_ends(app: App, bench: JobBench) -> None:
    started = asyncio.Event()

    @app.job()
    async def endless(ctx: dict[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await endless.enqueue()
    running = asyncio.create_task(bench.run_due())
    await started.wait()
    await handle.cancel()
    [run] = await running
    assert run.outcome is RunOutcome.CANCELLED


async def test_the_end_of_the_bench_cancels_a_running_job(app: App) -> None:
    started = asyncio.Event()
    cleaned: list[bool] = []

    @app.job()
    async def endless(ctx: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with JobBench(app) as bench:
        await endless.enqueue()
        running = asyncio.create_task(bench.run_due())
        await started.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert cleaned == [True]


# Time


async def test_a_retry_waits_for_its_time(app: App) -> None:
    @app.job(max_retries=3)
    async def flaky(ctx: dict[str, Any]) -> str:
        if ctx["job_try"] == 1:
            raise ConnectionError("busy")
        if ctx["job_try"] == 2:
            raise RetryJob("not yet", defer_seconds=3600)
        return "done"

    # Of a length that does not pass by itself while the test runs.
    app.settings.base_retry_delay_seconds = 60
    async with JobBench(app) as bench:
        handle = await flaky.enqueue()
        [first] = await bench.run_due()
        assert (first.outcome, first.error, first.attempt) == (RunOutcome.RETRY, "busy", 1)
        assert "ConnectionError: busy" in first.traceback
        assert await bench.run_due() == []
        await bench.travel(app.settings.base_retry_delay_seconds * 2)
        [second] = await bench.run_due()
        assert (second.outcome, second.error, second.attempt) == (RunOutcome.RETRY, "not yet", 2)
        await bench.travel(timedelta(minutes=50))
        assert await bench.run_due() == []
        await bench.travel(timedelta(minutes=10))
        [third] = await bench.run_due()
        assert (third.outcome, third.result, third.attempt) == (RunOutcome.DONE, "done", 3)
        assert await handle.result() == "done"


async def test_travel_moves_the_clock_of_scripts_and_of_the_store(app: App, bench: JobBench) -> None:
    @app.job(result_ttl_seconds=3600)
    async def work(ctx: dict[str, Any]) -> int:
        return 1

    before = await bench.now()
    await bench.travel(timedelta(days=400))
    handle = await work.with_options(defer_by=10).enqueue()

    job = await bench.store.get_job_definition(handle.id)
    assert job is not None
    now = await bench.now()
    assert timedelta(days=400) < now - before < timedelta(days=400, minutes=1)
    assert now - timedelta(minutes=1) < job.enqueue_time <= now
    assert await bench.run_due() == []
    await bench.travel(10)
    assert len(await bench.run_due()) == 1
    assert sum(minute.ended.get("done", 0) for minute in await bench.store.read_stats(2)) == 1

    await bench.travel(3500)
    assert await handle.result() == 1
    await bench.travel(200)
    with pytest.raises(JobNotFound):
        await handle.result(timeout_seconds=0.01)


async def test_travel_fires_every_tick_of_a_cron_entry_on_the_way(app: App) -> None:
    @app.job()
    async def tick(ctx: dict[str, Any]) -> None: ...

    entry = CronJob(function_name="tick", schedule="0 * * * *")
    app.settings.cron_jobs.append(entry)
    async with JobBench(app) as bench:
        # Half past, so that no tick comes by itself while the test runs.
        await bench.travel(timedelta(minutes=90 - (await bench.now()).minute))
        await bench.run_due()
        await bench.travel(timedelta(hours=5))
        assert len(await bench.run_due()) == 5
        await bench.travel(timedelta(hours=1))
        assert len(await bench.run_due()) == 1
    assert entry.next_run_time is None


async def test_a_job_in_hand_keeps_running_during_travel(app: App, bench: JobBench) -> None:
    @app.job()
    async def slow(ctx: dict[str, Any]) -> str:
        await bench.travel(DAY_SECONDS)
        return "still here"

    handle = await slow.enqueue()
    [run] = await bench.run_due()
    assert (run.outcome, run.result) == (RunOutcome.DONE, "still here")
    assert await handle.result() == "still here"


def test_every_script_reads_the_clock_of_the_bench() -> None:
    paths = [path.name for path in (files("rrq.broker") / "lua").iterdir() if path.name.endswith(".lua")]
    assert len(paths) > 10
    for path in paths:
        script = load_script(path.removesuffix(".lua"))
        assert Clock().shift(script) is script
        shifted = Clock(5_000_000).shift(script)
        assert "now[2] + 5000000" in shifted.source
        assert (shifted.name, shifted.sha != script.sha) == (script.name, True)


@pytest.mark.parametrize(
    ("left", "to_next_tick", "step"),
    [
        (1000, None, 970),  # far away at once, and the last two leases in steps
        (30, None, 5),
        (3, None, 3),
        (1000, 60, 60),  # up to the next tick
        (3, 60, 3),
        (30, -2, 5),  # a tick that could not be fired yet does not stop the clock
    ],
)
def test_travel_goes_in_steps(left: float, to_next_tick: float | None, step: float) -> None:
    assert decide_step_seconds(left, 15.0, to_next_tick) == step


# Faults


async def test_the_job_of_a_killed_worker_runs_again_on_another_one(app: App, bench: JobBench) -> None:
    started = asyncio.Event()
    workers: list[str] = []

    @app.job()
    async def work(ctx: dict[str, Any]) -> str:
        workers.append(ctx["worker_id"])
        if len(workers) == 1:
            started.set()
            await asyncio.Event().wait()
        return "in the end"

    handle = await work.enqueue()
    running = asyncio.create_task(bench.run_due())
    await started.wait()
    assert await bench.kill_worker() == 1
    runs = await running

    assert [(run.outcome, run.attempt) for run in runs] == [(RunOutcome.KILLED, 1), (RunOutcome.DONE, 1)]
    assert len(set(workers)) == 2
    assert await handle.result() == "in the end"


async def test_a_job_that_kills_every_worker_is_dead_lettered_and_the_others_run(
    app: App, bench: JobBench
) -> None:
    @app.job()
    async def killer(ctx: dict[str, Any]) -> None:
        await bench.kill_worker()

    @app.job()
    async def neighbour(ctx: dict[str, Any]) -> int:
        return 1

    killed, beside = await killer.enqueue(), await neighbour.enqueue()
    runs = await bench.run_due()

    assert [run.outcome for run in runs if run.job_id == killed.id] == [RunOutcome.KILLED] * 3
    with pytest.raises(JobFailed, match="ended its worker process 3 times"):
        await killed.result()
    assert await beside.result() == 1


async def test_the_jobs_of_a_lost_pod_are_due_when_its_lease_has_run_out(app: App) -> None:
    started = asyncio.Event()
    calls: list[int] = []

    @app.job()
    async def work(ctx: dict[str, Any]) -> int:
        calls.append(1)
        if len(calls) == 1:
            started.set()
            await asyncio.Event().wait()
        return len(calls)

    app.settings.worker_lease_seconds = 90
    async with JobBench(app) as bench:
        handle = await work.enqueue()
        running = asyncio.create_task(bench.run_due())
        await started.wait()
        await bench.kill_worker(with_its_pod=True)
        assert [run.outcome for run in await running] == [RunOutcome.KILLED]
        assert await handle.status() is JobStatus.ACTIVE

        await bench.travel(app.settings.worker_lease_seconds - 60)
        assert await bench.run_due() == []
        await bench.travel(61)
        assert [run.outcome for run in await bench.run_due()] == [RunOutcome.DONE]
        assert await handle.result() == 2


async def test_a_lost_answer_leaves_a_producer_with_an_error_and_a_queued_job(
    app: App, bench: JobBench
) -> None:
    @app.job()
    async def work(ctx: dict[str, Any]) -> None: ...

    bench.cut_reply("enqueue_jobs")
    with pytest.raises(RedisUnavailable, match="the test cut"):
        await work.with_options(job_id="once").enqueue()
    # As the error advises: the same id again makes no second job.
    await work.with_options(job_id="once").enqueue()
    assert [run.job_id for run in await bench.run_due()] == ["once"]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [("claim_jobs", "claim failed"), ("finish_jobs", "outcomes not stored yet")],
)
async def test_a_worker_recovers_from_a_lost_answer_and_runs_each_job_once(
    app: App, bench: JobBench, script: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    @app.job()
    async def work(ctx: dict[str, Any], number: int) -> int:
        calls.append(number)
        return number

    handles = [await work.enqueue(number) for number in range(3)]
    bench.cut_reply(script, times=2)
    runs = await bench.run_due()

    assert sum(complaint in message for message in caplog.messages) == 2
    assert [run.outcome for run in runs] == [RunOutcome.DONE] * 3
    assert sorted(calls) == [0, 1, 2]
    assert [await handle.result() for handle in handles] == [0, 1, 2]


async def test_jobs_queued_and_in_hand_survive_a_restart_of_redis(app: App, bench: JobBench) -> None:
    calls: list[str] = []

    @app.job()
    async def work(ctx: dict[str, Any], name: str) -> str:
        calls.append(name)
        if name == "in hand":
            await bench.restart_redis()
        return name

    # Two jobs of the same millisecond are taken in the order of their ids.
    in_hand = await work.with_options(job_id="1").enqueue("in hand")
    queued = await work.with_options(job_id="2").enqueue("queued")
    later = await work.with_options(defer_by=3600).enqueue("later")
    await bench.run_due()

    assert calls == ["in hand", "queued"]
    assert await in_hand.result() == "in hand"
    assert await queued.result() == "queued"
    await bench.restart_redis()
    await bench.travel(3600)
    await bench.run_due()
    assert await later.result() == "later"
