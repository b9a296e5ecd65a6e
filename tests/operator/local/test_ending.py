"""How local mode ends: in order, killed, or because it has to give up. Nothing stays behind, nothing is lost."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from local_mode import PATIENCE_SECONDS, build_manifest
from rrq.client import JobRequest
from rrq.job import JobStatus
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_mode import LocalMode
    from rrq.client import RRQClient


async def test_sigterm_drains_and_hands_back(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    local_mode = run_local(build_manifest(worker={"drainSeconds": 4}))
    gate = tmp_path / "gate"
    short = JobRequest("wait_for_file", args=(str(gate),))
    ended, long = await producer.enqueue_many([short, JobRequest("note", args=(300,))])
    await eventually(lambda: local_mode.ledger.count("started") == 2, PATIENCE_SECONDS)
    family = local_mode.family()
    local_mode.signal(signal.SIGTERM)
    gate.touch()
    assert local_mode.wait() == 0
    await eventually(lambda: not local_mode.family(), message="something was left running")
    assert len(family) >= 3, "the guard, a supervisor, a worker"
    assert local_mode.ledger.counts("effect") == {ended.id: 1}
    kept = await producer.job_store.get_job_definition(long.id)
    assert kept is not None
    assert (kept.status, kept.current_retries) == (JobStatus.PENDING, 0)
    assert await producer.job_store.get_queued_job_ids("jobs") == [long.id]


async def test_a_replica_that_dies_is_restarted_and_a_second_ctrl_c_hurries(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    local_mode = run_local(build_manifest(scaling={"minReplicas": 1}, worker={"drainSeconds": 600}))
    await local_mode.says("1/1 ready")
    (victim,) = local_mode.replicas()
    victim.kill()
    await local_mode.says("shop-1 ended with signal 9 and is restarted")
    job = await producer.enqueue("note", 300)
    assert job is not None
    await eventually(lambda: local_mode.ledger.count("started") == 1, PATIENCE_SECONDS)
    (successor,) = await local_mode.has_replicas(1)
    assert successor.pid != victim.pid
    local_mode.signal(signal.SIGINT)
    await local_mode.says("0/0 (+1 leaving)")
    local_mode.signal(signal.SIGINT)
    assert local_mode.wait() == 0
    assert await producer.job_store.get_queued_job_ids("jobs") == [job.id]


async def test_kill_9_of_local_mode_leaves_nothing_running(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    # Longer than the short job, also in a process that does not get its turn for some seconds.
    local_mode = run_local(build_manifest(worker={"drainSeconds": 5}))
    await producer.enqueue("note", 1.5)
    long = await producer.enqueue("start_program", 300)
    assert long is not None
    await eventually(lambda: local_mode.ledger.count("program") == 1, PATIENCE_SECONDS)
    await eventually(lambda: local_mode.ledger.count("started") == 1, PATIENCE_SECONDS)
    assert len(local_mode.family()) >= 4, "the guard, a supervisor, a worker, and the program of the job"
    local_mode.signal(signal.SIGKILL)
    local_mode.wait()
    await eventually(lambda: not local_mode.family(), PATIENCE_SECONDS, "something was left running")
    assert local_mode.ledger.count("effect") == 1, "what could end in time was not let"
    assert await producer.job_store.get_queued_job_ids("jobs") == [long.id]


async def test_a_pool_that_cannot_start_says_why_and_loses_nothing(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    job = await producer.enqueue("note")
    assert job is not None
    local_mode = run_local(build_manifest(worker={"settings": "shop.nowhere.settings"}))
    assert local_mode.wait() == 1
    last_line = local_mode.output().splitlines()[-1]
    assert last_line.startswith("ERROR: Pool shop cannot run")
    assert "Could not import settings object 'shop.nowhere.settings'" in last_line
    assert "Traceback" not in local_mode.output()
    await eventually(lambda: not local_mode.family(), message="something was left running")
    assert await producer.job_store.get_queued_job_ids("jobs") == [job.id]
