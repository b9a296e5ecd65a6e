"""Pools of type Job on this machine: one process at a time, run when work is due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from local_mode import PATIENCE_SECONDS, build_manifest
from rrq.client import JobRequest
from rrq_operator.api.spec import parse_pool
from rrq_operator.decide.cron_entries import build_cron_jobs
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_mode import LocalMode
    from rrq.client import RRQClient


async def test_a_run_starts_when_work_is_due_and_again_when_more_is(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    local_mode = run_local(build_manifest(type="Job", job={"lingerSeconds": 0}))
    await local_mode.says("nothing is due")
    assert not local_mode.replicas()
    for run in (1, 2):
        gate = tmp_path / f"gate-{run}"
        await producer.enqueue_many([JobRequest("wait_for_file", args=(str(gate),)) for _ in range(10)])
        # By a look from before it took the last of them, local mode would start another run when this one is done.
        await knows_all_in_hand(local_mode, run)
        gate.touch()
        await local_mode.says(f"run {run} is done")
        assert len(local_mode.replicas()) == 0
    assert local_mode.ledger.count("effect") == 20
    assert local_mode.output().count("run 1 starts") == 1
    assert "run 3" not in local_mode.output()


async def knows_all_in_hand(local_mode: LocalMode, run: int) -> None:
    def is_told() -> bool:
        lines = local_mode.output().splitlines()
        return any("0 due, 0 later, 10 busy" in line and f"run {run} is" in line for line in lines)

    await eventually(is_told, PATIENCE_SECONDS, f"run {run} has not all jobs in hand")


async def test_a_pool_of_one_run_runs_once_and_its_neighbour_hands_back_at_its_deadline(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    await producer.enqueue("note")
    long = await producer.enqueue("note", 300, _queue_name="slow")
    assert long is not None
    # The clock of a run starts with its process: where that takes all of it, the job is left as it was.
    job = {"activeDeadlineSeconds": 8}
    slow = build_manifest("slow", queues=["slow"], type="Job", job=job, worker={"drainSeconds": 1})
    local_mode = run_local(build_manifest(type="Job", job={"start": "Once", "lingerSeconds": 0}), slow)
    await local_mode.says("run 1 is done")
    await producer.enqueue("note")
    await local_mode.says("the one run has been made")
    await local_mode.says("its activeDeadlineSeconds are over")
    await local_mode.says("what is left stays queued")
    assert await producer.job_store.get_queued_job_ids("slow") == [long.id]
    assert local_mode.ledger.count("effect") == 1


async def test_a_run_that_fails_is_retried_and_then_reported_as_failed(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    await producer.enqueue("note")
    pool = build_manifest(type="Job", job={"backoffLimit": 1}, worker={"settings": "shop.nowhere.settings"})
    local_mode = run_local(pool)
    line = await local_mode.says("retrying in")
    assert "Could not import settings object" in line
    await local_mode.says("the last run failed, the next starts at")
    assert local_mode.output().count("run 1 failed") == 2


async def test_a_job_without_a_function_delays_no_job_that_comes_later(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    await producer.enqueue("without_handler")
    local_mode = run_local(build_manifest(type="Job", job={"lingerSeconds": 0, "backoffLimit": 3}))
    line = await local_mode.says("run 1 lacks functions")
    assert "has no handler for 'without_handler'" in line
    await producer.enqueue("note")
    await eventually(lambda: local_mode.ledger.count("effect") == 1, PATIENCE_SECONDS)
    assert "retrying" not in local_mode.output()


async def test_a_paused_run_waits_and_goes_on_when_the_pool_is_resumed(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    store = producer.job_store
    local_mode = run_local(build_manifest(type="Job", job={"lingerSeconds": 0}, worker={"concurrency": 2}))
    gate = tmp_path / "gate"
    await producer.enqueue_many([JobRequest("wait_for_file", args=(str(gate),)) for _ in range(6)])
    await eventually(lambda: local_mode.ledger.count("started") == 2, PATIENCE_SECONDS)
    await store.set_pause("pool:default/shop", "paused", "ada")
    await local_mode.says("paused: run 1 is under way and starts nothing until the pool is resumed")
    gate.touch()
    await eventually(lambda: local_mode.ledger.count("effect") == 2, PATIENCE_SECONDS)
    await stays_true(lambda: local_mode.ledger.count("started") == 2 and len(local_mode.replicas()) == 1, 1)
    await store.set_pause("pool:default/shop", None, "ada")
    await local_mode.says("run 1 is done")
    assert local_mode.ledger.count("effect") == 6


async def test_a_tick_of_the_manifest_that_was_missed_wakes_a_pool_at_zero(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    manifest = build_manifest(cron=[{"name": "tick", "schedule": "* * * * *", "function": "note"}])
    [entry] = build_cron_jobs(parse_pool(manifest).spec)
    # As if local mode had been here before, so that the test need not wait for the next minute.
    before = await producer.job_store.read_time() - timedelta(minutes=2)
    await producer.job_store.note_cron_entries([producer.identify_cron(entry)], before)
    local_mode = run_local(manifest)
    await local_mode.says("cron: note is enqueued to jobs")
    await eventually(lambda: local_mode.ledger.count("effect") == 1, PATIENCE_SECONDS)
