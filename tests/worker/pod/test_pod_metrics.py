"""What a running pod exports."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from fleet import all_done, enqueue_some
from rrq.runtime.metrics import UNREGISTERED
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pod import Pod
    from rrq.client import RRQClient


def count_connections(pid: int, client: RRQClient) -> int:
    """How many connections a process has to the Redis of the client."""
    port = urlsplit(client.settings.redis_dsn).port
    links = psutil.Process(pid).net_connections()
    return sum(bool(link.raddr) and link.raddr.port == port for link in links)


async def test_metrics_of_all_processes_are_added_up_and_outlive_them(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    pod = await make_pod("--num-workers", "2", worker_concurrency=5).is_up()
    gate = tmp_path / "gate"
    # As many as both can hold, so that none is left for one of them alone.
    jobs = await enqueue_some(client, "wait_for_file", str(gate), count=10)
    await pod.has_started(10)
    gate.touch()
    jobs += await enqueue_some(client, "wait_for_file", str(gate), count=30)
    await all_done(client.job_store, jobs)
    assert len({entry.pid for entry in pod.ledger.entries("effect")}) == 2

    def counted(number: int) -> bool:
        return pod.metric("rrq_jobs_total", function="wait_for_file", outcome="done") == number

    await eventually(lambda: counted(40), message="jobs are missing")
    assert pod.metric("rrq_job_duration_seconds_count", function="wait_for_file") == 40
    assert pod.metric("rrq_queue_wait_seconds_count", queue="rrq:queue:default") == 40
    assert (pod.metric("rrq_claim_size_jobs_sum") or 0) == 40
    assert pod.metric("rrq_capacity_jobs") == 10
    assert (pod.metric("rrq_redis_call_seconds_count", call="claim_jobs") or 0) > 0
    await eventually(lambda: (pod.metric("rrq_loop_lag_seconds_count") or 0) > 0)
    for child in ("0", "1"):
        assert (pod.metric("rrq_child_cpu_seconds", child=child) or 0) > 0
        assert (pod.metric("rrq_child_resident_memory_bytes", child=child) or 0) > 10_000_000
        assert (pod.metric("rrq_child_open_fds", child=child) or 0) > 3
        assert 1 <= (pod.metric("rrq_child_tasks", child=child) or 0) < 50
    assert 1 <= (pod.metric("rrq_supervisor_tasks") or 0) < 50
    assert count_connections(pod.pid, client) <= 1
    assert max(count_connections(pid, client) for pid in pod.children()) <= 3
    for pid in pod.children():
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: pod.metric("rrq_child_restarts_total", reason="crash") == 2)
    await all_done(client.job_store, await enqueue_some(client, "wait_for_file", str(gate), count=2))
    await eventually(lambda: counted(42), message="the dead took their figures along")


async def test_retries_queue_depth_running_jobs_and_unknown_functions_are_exported(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # The retry is far away: once due, it would be counted with the others.
    options = {"worker_lease_renewal_seconds": 0.5, "base_retry_delay_seconds": 3600}
    options |= {"worker_concurrency": 2, "unknown_function_patience_seconds": 0}
    pod = await make_pod("--num-workers", "1", **options).is_up()
    for number in range(20):
        await client.enqueue(f"made_up_{number}")
    await client.enqueue("note", "not a number")
    await eventually(
        lambda: pod.metric("rrq_jobs_total", function=UNREGISTERED, outcome="dead") == 20,
        message="they were not counted",
    )
    assert "made_up" not in pod.get("/metrics")[1], "a label for each"
    await eventually(
        lambda: pod.metric("rrq_job_retries_total", function="note") == 1, message="no retry counted"
    )
    await enqueue_some(client, "note", 300.0, count=5)
    await pod.has_started(3)
    await eventually(lambda: pod.metric("rrq_jobs_in_flight") == 2)
    queue = "rrq:queue:default"
    await eventually(lambda: pod.metric("rrq_queue_jobs", queue=queue, state="due") == 3)
    await eventually(lambda: (pod.metric("rrq_queue_oldest_due_age_seconds", queue=queue) or 0) > 0)
