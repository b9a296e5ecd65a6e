"""SIGTERM: stop claiming, let jobs end, hand back the rest, be gone in time."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from fleet import all_done, assert_nothing_in_hand, enqueue_some
from queue_steps import ask, due_score, is_queued, job_fields, last_lease_end_ms, now_ms
from rrq.client import RRQClient
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pod import Pod
    from rrq.embedded import EmbeddedRedis


# Two are promised; the others are for what runs beside the test. The jobs of these tests would take longer, so that
# a pod that waited for them is noticed.
BEYOND_GRACE_SECONDS = 10


async def ended(pod: Pod, timeout_seconds: float = 30.0) -> int:
    return await asyncio.to_thread(pod.wait, timeout_seconds)


async def test_short_jobs_end_long_jobs_are_returned_and_the_pod_ends_in_time(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    # Long enough for the short jobs in a process that does not get its turn for some seconds.
    store, grace = client.job_store, 5.0
    pod = make_pod("--num-workers", "2", worker_shutdown_grace_period_seconds=grace, worker_concurrency=4)
    await pod.is_up()
    gate = tmp_path / "gate"
    short = await enqueue_some(client, "wait_for_file", str(gate), count=4)
    long = await enqueue_some(client, "note", 60.0, count=4)
    due_before = {
        job.id: int(job.next_scheduled_run_time.timestamp() * 1000)
        for job in long
        if job.next_scheduled_run_time
    }
    await pod.has_started(8)
    told_at = time.monotonic()
    pod.signal(signal.SIGTERM)
    await eventually(lambda: len(pod.logged("shutdown requested")) == 2, 30, "not all were told")
    late = await enqueue_some(client, "note", count=3)
    gate.touch()
    assert await ended(pod) == 0
    assert grace <= time.monotonic() - told_at < grace + BEYOND_GRACE_SECONDS
    await all_done(store, short, 1)
    # A process that got no turn for the second that it has was killed, and could not say so itself.
    was_killed = bool(pod.logged("worker process did not end in time, killed"))
    for job in long:
        fields = await job_fields(store, job.id)
        assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")
        handed_back = fields["last_error"] == "Job execution interrupted by worker shutdown. Re-queued."
        assert handed_back or (was_killed and "died while running this job" in fields["last_error"])
        assert await due_score(store, job.id) == due_before[job.id]
        assert "suspect" not in fields
    # What came after the signal was not even started.
    assert all([await is_queued(store, job.id) for job in late])
    assert not pod.ledger.counts("started").keys() & {job.id for job in late}
    assert not [key async for key in store.redis.scan_iter("rrq:lock:job:*")]
    assert not [key async for key in store.redis.scan_iter("rrq:health:worker:*")]
    assert await ask(store, "ZCARD", store.keys.leases) == 0


async def test_a_pod_that_gets_sigterm_while_it_starts_ends_with_0(make_pod: Callable[..., Pod]) -> None:
    pod = make_pod("--num-workers", "2")
    await eventually(lambda: len(pod.children()) == 2, 60, "no children", interval_seconds=0.001)
    pod.signal(signal.SIGTERM)
    assert await ended(pod) == 0


async def test_a_draining_pod_keeps_its_lease_until_a_second_signal(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    store = client.job_store
    options = {"worker_lease_seconds": 1.0, "worker_shutdown_grace_period_seconds": 60}
    pod = await make_pod("--num-workers", "1", **options).is_up()
    [job] = await enqueue_some(client, "note", 60.0)
    await pod.has_started(1)
    pod.signal(signal.SIGTERM)
    await eventually(lambda: pod.logged("draining"), 30, "it does not drain")
    assert pod.get("/readyz") == (503, "the pod is stopping\n")
    assert pod.get("/livez") == (200, "alive\n")
    drains_since_ms = await now_ms(store)

    async def is_renewed() -> bool:
        return await last_lease_end_ms(store) > drains_since_ms + 2000

    await eventually(is_renewed, message="the draining worker lost its lease")
    told_at = time.monotonic()
    pod.signal(signal.SIGTERM)
    assert await ended(pod) == 0
    assert time.monotonic() - told_at < BEYOND_GRACE_SECONDS
    assert (await job_fields(store, job.id))["status"] == "PENDING"
    assert await is_queued(store, job.id)


async def test_jobs_that_cannot_be_cancelled_are_returned_once_their_processes_are_dead(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    store, grace = client.job_store, 0.5
    options = {"worker_concurrency": 1, "worker_shutdown_grace_period_seconds": grace}
    pod = await make_pod("--num-workers", "3", **options).is_up()
    handlers = ("in_thread", "ignore_cancellation", "hold_interpreter")
    jobs = [(await enqueue_some(client, handler, 60.0))[0] for handler in handlers]
    await pod.has_started(3)
    in_thread = jobs[0]
    child = pod.runner_of(in_thread)
    told_at = time.monotonic()
    pod.signal(signal.SIGTERM)

    async def queued_while_alive() -> str | None:
        was_alive = child in pod.children()
        if await is_queued(store, in_thread.id):
            return "too early" if was_alive and child in pod.children() else "in time"
        return None

    assert await eventually(queued_while_alive, 30, "never handed back", interval_seconds=0.002) == "in time"
    assert await ended(pod) == 0
    assert time.monotonic() - told_at < grace + BEYOND_GRACE_SECONDS
    # One of them cannot even answer.
    assert pod.logged("worker process did not end in time, killed")
    for job in jobs:
        fields = await job_fields(store, job.id)
        assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")
        assert await is_queued(store, job.id)
        assert "suspect" not in fields
    assert pod.ledger.count("effect") == 0
    await ask(store, "DEL", store.keys.queue_key("default"))
    await assert_nothing_in_hand(store)


async def test_a_pod_ends_in_time_without_redis(
    make_pod: Callable[..., Pod], own_redis: EmbeddedRedis
) -> None:
    client = RRQClient(RRQSettings(redis_dsn=own_redis.dsn))
    # Whoever waited for an answer of Redis would be noticed.
    patient = {"redis_socket_timeout_seconds": 60}
    pod = make_pod("--num-workers", "1", dsn=own_redis.dsn, worker_shutdown_grace_period_seconds=2, **patient)
    await pod.is_up()
    await enqueue_some(client, "note", 1.0)
    await client.close()
    await pod.has_started(1)
    own_redis.pause()
    told_at = time.monotonic()
    pod.signal(signal.SIGTERM)
    assert await ended(pod) == 0
    assert time.monotonic() - told_at < 2 + BEYOND_GRACE_SECONDS
    own_redis.resume()
