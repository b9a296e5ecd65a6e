"""A pool on this machine, with real processes and a real Redis: it grows, shrinks, and loses nothing."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from local_mode import PATIENCE_SECONDS, build_manifest
from queue_steps import ask, start_worker
from rrq.client import JobRequest
from rrq.flow import Limit
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_mode import LocalMode
    from rrq.client import RRQClient

POLL_SELDOM = """
import sys
if "local" in sys.orig_argv:
    from rrq_operator.control import pool_group
    assert pool_group._POLL_SECONDS
    pool_group._POLL_SECONDS = 600.0
"""
START_SLOWLY = """
import sys, time
if "run" in sys.orig_argv:
    time.sleep(2)
"""
QUICK = {"maxReplicas": 3, "jobsPerReplica": 10, "scaleDown": {"windowSeconds": 1}}


async def lose_worker_with_job(producer: RRQClient, queue: str) -> None:
    """Enqueue a job and leave it in the hands of a worker that never renews its lease."""
    store = producer.job_store
    store.settings.worker_lease_seconds = 1
    await producer.enqueue("note", _queue_name=queue)
    lost = await start_worker(store, f"of a lost node, for {queue}", queues=(queue,))
    await lost.take_one()


async def test_pools_at_zero_do_the_jobs_of_fleets_that_are_gone(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    fleets: dict[str, dict[str, Any]] = {
        "shop": {"scaling": QUICK},
        "once": {"type": "Job", "job": {"lingerSeconds": 0}},
    }
    for queue in fleets:
        await lose_worker_with_job(producer, queue)
    pools = [build_manifest(name, queues=[name], **kind) for name, kind in fleets.items()]
    local_mode = run_local(*pools)
    await local_mode.says("1 orphaned")
    await eventually(lambda: local_mode.ledger.count("effect") == 2, PATIENCE_SECONDS)
    assert set(local_mode.ledger.counts("effect").values()) == {1}


async def test_local_mode_gives_back_jobs_of_lost_workers_while_no_worker_runs(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    await lose_worker_with_job(producer, "jobs")
    # A paused pool starts no worker, which would sweep as well.
    await producer.job_store.set_pause("pool:default/shop", "paused", "ada")
    local_mode = run_local(build_manifest(scaling=QUICK))
    await local_mode.says("1 jobs of lost workers are due again")
    assert not local_mode.replicas()


async def test_a_pool_grows_from_zero_cuts_no_job_when_it_shrinks_and_goes_back_to_zero(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    local_mode = run_local(build_manifest(scaling=QUICK | {"scaleDown": {"windowSeconds": 0}}))
    await local_mode.says("0/0 ready")
    short, long = tmp_path / "short", tmp_path / "long"
    # Spread over three replicas, so that each replica that leaves has some of the long ones in hand.
    long_and_short = [
        JobRequest("wait_for_file", args=(str(short if number % 3 else long),)) for number in range(30)
    ]
    late = [JobRequest("wait_for_file", args=(str(short),))] * 5
    jobs = await producer.enqueue_many([*long_and_short, *late])
    await eventually(lambda: local_mode.ledger.count("started") == 30, PATIENCE_SECONDS)
    assert len(local_mode.replicas()) == 3
    assert "grows from 0 to 3" in local_mode.output()
    assert "maxReplicas allows 3" in local_mode.output()
    short.touch()
    await local_mode.says("draining")

    async def drains_while_busy() -> bool:
        seen = await producer.job_store.observe(["jobs"])
        return any(worker.is_draining and worker.busy for worker in seen.workers.values())

    await eventually(drains_while_busy, PATIENCE_SECONDS, "no draining replica had a job in hand")
    long.touch()
    await local_mode.says("shrinks from")
    await local_mode.has_replicas(0)
    counts = {job.id: 1 for job in jobs}
    assert (local_mode.ledger.counts("started"), local_mode.ledger.counts("effect")) == (counts, counts)


async def test_draining_replicas_stay_when_work_comes_back(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    local_mode = run_local(build_manifest(scaling=QUICK | {"scaleDown": {"windowSeconds": 0}}))
    await local_mode.says("0/0 ready")
    gate = tmp_path / "gate"
    first = await producer.enqueue_many([JobRequest("wait_for_file", args=(str(gate),)) for _ in range(12)])
    await eventually(lambda: local_mode.ledger.count("started") == 12, PATIENCE_SECONDS)
    await producer.job_store.cancel_job(first[0].id)
    await producer.job_store.cancel_job(first[1].id)
    await local_mode.says("draining 1 of 2 replicas")
    # Such as do not end before local mode has looked.
    await producer.enqueue_many([JobRequest("wait_for_file", args=(str(gate),)) for _ in range(8)])
    await local_mode.says("1 draining replicas stay")
    gate.touch()
    await eventually(lambda: local_mode.ledger.count("effect") == 18, PATIENCE_SECONDS)


async def test_a_job_that_is_due_later_finds_its_replica_ready(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    # The longer a start takes, the earlier it is asked for: a replica that gets no processor for some seconds is still in time.
    (tmp_path / "sitecustomize.py").write_text(START_SLOWLY)
    local_mode = run_local(build_manifest(scaling=QUICK))
    began_at = time.monotonic()
    await producer.enqueue("note")
    await eventually(lambda: local_mode.ledger.count("effect") == 1, PATIENCE_SECONDS)
    # The first start took no longer than all of this; the next is asked for half as much again ahead, and two seconds.
    ahead_seconds = 1.5 * (time.monotonic() - began_at) + 2
    await local_mode.says("shrinks from 1 to 0")
    await local_mode.has_replicas(0)
    job = await producer.enqueue("note", _defer_by=ahead_seconds + 3)
    assert job is not None
    assert job.next_scheduled_run_time is not None
    due_at = job.next_scheduled_run_time.timestamp()
    await stays_true(lambda: not local_mode.replicas(), 1, "a replica came much too early")
    [replica] = await local_mode.has_replicas(1, ahead_seconds + PATIENCE_SECONDS)
    head_start_seconds = due_at - replica.create_time()
    assert head_start_seconds > 0
    await eventually(lambda: local_mode.ledger.count("effect") == 2, PATIENCE_SECONDS)
    started_at = local_mode.ledger.entries("started")[-1].time
    # It waits for nothing, but on a machine on which nothing gets its turn; without a head start for a whole start.
    assert started_at - due_at < head_start_seconds
    await local_mode.says("due within")


async def test_jobs_of_next_week_or_over_their_limit_start_no_replica(
    run_local: Callable[..., LocalMode], producer: RRQClient
) -> None:
    await producer.job_store.set_limit("function:note", Limit(concurrency=5))
    local_mode = run_local(build_manifest(scaling=QUICK))
    await producer.enqueue_many([JobRequest("note", defer_by=7 * 86_400) for _ in range(50)])
    await local_mode.says("50 later")
    await stays_true(lambda: not local_mode.replicas(), 2, "a replica was started")
    await producer.enqueue_many([JobRequest("note", args=(0.1,)) for _ in range(40)])
    await eventually(lambda: local_mode.ledger.count("effect") == 40, PATIENCE_SECONDS)
    assert "grows from 0 to 1" in local_mode.output()
    assert "to 2" not in local_mode.output(), "five at once are work for one"


async def test_the_first_job_wakes_the_pool(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    # Local mode runs in a process of its own, and must not look unasked before the test has lost its patience.
    (tmp_path / "sitecustomize.py").write_text(POLL_SELDOM)
    local_mode = run_local(build_manifest(scaling=QUICK))
    await local_mode.says("0/0 ready")
    store = producer.job_store

    async def listens() -> bool:
        [_, count] = await ask(store, "PUBSUB", "NUMSUB", store.keys.notify_channel)
        return int(count) > 0

    await eventually(listens, PATIENCE_SECONDS)
    await producer.enqueue("note")
    await local_mode.has_replicas(1)


async def test_a_paused_pool_starts_nothing_and_ends_what_it_runs(
    run_local: Callable[..., LocalMode], producer: RRQClient, tmp_path: Path
) -> None:
    store, gate = producer.job_store, tmp_path / "gate"
    await store.set_pause("pool:default/shop", "paused", "ada")
    await producer.enqueue_many([JobRequest("wait_for_file", args=(str(gate),)) for _ in range(20)])
    local_mode = run_local(build_manifest(scaling=QUICK | {"maxReplicas": 1}))
    await local_mode.says("paused: 0 running, 20 due wait until the pool is resumed")
    await stays_true(lambda: not local_mode.replicas(), 2, "a replica was started")
    [report] = await eventually(store.read_pools)
    assert (report.pool, report.is_paused, report.reason) == ("default/shop", True, "Paused")
    assert (report.replicas, report.due, report.blocked) == (0, 20, 20)
    await store.set_pause("pool:default/shop", None, "ada")
    await eventually(lambda: local_mode.ledger.count("started") == 10, PATIENCE_SECONDS)

    async def is_told() -> bool:
        history = [decision.desired for decision in await store.read_decisions("default/shop")]
        assert history[:2] == [0, 1], history
        return True

    await eventually(is_told, PATIENCE_SECONDS, "dashboards do not draw this")
    await store.set_pause("pool:default/shop", "paused", "ada")
    gate.touch()
    await local_mode.has_replicas(0)
    assert local_mode.ledger.count("effect") == local_mode.ledger.count("started") == 10
    await store.set_pause("pool:default/shop", None, "ada")
    await eventually(lambda: local_mode.ledger.count("effect") == 20, PATIENCE_SECONDS)
    local_mode.signal(signal.SIGINT)
    assert local_mode.wait() == 0
    assert await store.read_pools() == [], "no operator looks after it any more"
