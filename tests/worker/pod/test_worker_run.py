"""`rrq worker run` as a user types it: how many processes, which settings, bursts, and clear refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from click.testing import CliRunner

from fleet import all_done, enqueue_some
from queue_steps import is_queued, job_fields, start_worker
from rrq.cli import rrq as command_line
from rrq.pod.child import build_worker
from rrq.pod.plan import ChildPlan
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from pod import Pod
    from rrq.client import RRQClient
    from rrq.embedded import EmbeddedRedis

ROOT = Path(__file__).parents[3]


def rrq(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `rrq worker run OPTIONS` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rrq", "worker", "run", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_pod_prints_its_settings_and_every_log_line_has_its_context(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    options = ("--queue", "mail", "--queue", "slow", "--log-context")
    pod = await make_pod(*options, prefix=("taskset", "-c", cpu)).is_up()
    assert len(pod.children()) == 1
    await client.enqueue("note", "no number", _queue_name="mail", _max_retries=1)
    await eventually(lambda: pod.logged("job failed"), 30, "no job failed")
    told_at = time.monotonic()
    pod.signal(signal.SIGTERM)
    assert await asyncio.to_thread(pod.wait) == 0
    # Nothing was left to wait for, other than the next turn of a busy machine.
    assert time.monotonic() - told_at < 10
    [started] = pod.logged("worker started")
    assert started["queues"] == ["mail", "slow"]
    printed = pod.printed()
    assert "Starting 1 worker process (" in printed
    assert "cpuset" in printed
    assert "Settings pod_app.settings from --settings." in printed
    assert f"Worker {started['worker_id']} " in printed
    assert printed.count(" serves mail, slow.") == 1
    lines = pod.log()
    for line in lines:
        assert ("worker_id" in line and "queues" in line) or "supervisor" in line, line
    [failed] = [line for line in lines if line["message"] == "job failed"]
    assert (failed["queue"], failed["attempt"]) == ("mail", 1)
    assert failed["job_id"]
    # The arguments of a job are nobody's business but the handler's.
    assert "no number" not in str([line for line in lines if line["message"] != "job failed"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--burst", "--num-workers", "2", "--settings", "no_such_module.settings"),
            "ERROR: --burst mode is not supported with multiple workers (--num-workers > 1).",
        ),
        (("--num-workers", "0"), "ERROR: --num-workers must be a positive integer."),
        (("--num-workers", "-3"), "ERROR: --num-workers must be a positive integer."),
        (("--num-workers", "2"), "need --settings or RRQ_SETTINGS"),
        (
            ("--queue", "rrq:queue:high", "--weights", "high=6,low=1"),
            "ERROR: --weights names low, which --queue does not.",
        ),
    ],
)
def test_options_that_make_no_sense_together_are_refused_before_anything_is_loaded(
    options: tuple[str, ...], complaint: str
) -> None:
    result = CliRunner().invoke(command_line, ["worker", "run", *options])
    assert result.exit_code == 1
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--num-workers", "1"),
            "ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings.",
        ),
        (
            ("--num-workers", "2", "--settings", "no_such_module.settings"),
            "ERROR: Could not import settings object 'no_such_module.settings'.",
        ),
        (("--num-workers", "1", "--http", "no-port"), "ERROR: 'no-port' is not an address to listen on."),
        (("--num-workers", "1", "--http", "203.0.113.1:80"), "Cannot listen on 203.0.113.1:80"),
    ],
)
def test_a_pod_that_cannot_run_says_why_and_ends_at_once(options: tuple[str, ...], complaint: str) -> None:
    started_at = time.monotonic()
    done = rrq(*options)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started_at < 40, "it was tried again and again"


async def test_a_burst_runs_what_is_due_in_one_process_and_exits_with_0(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    jobs = await enqueue_some(client, "note", 0.1, count=20, queue_name="low")
    jobs += await enqueue_some(client, "note", count=5, queue_name="high")
    [later] = await enqueue_some(client, "note", defer_by=3600, queue_name="low")
    # One that goes on after its timeout holds nothing up.
    await enqueue_some(client, "ignore_cancellation", 300.0, job_timeout_seconds=1, queue_name="low")
    pod = make_pod("--burst", "--weights", "high=6, low=1.5")
    assert await asyncio.to_thread(pod.wait) == 0
    await all_done(client.job_store, jobs, 1)
    assert await is_queued(client.job_store, later.id, "low")
    assert len({entry.pid for entry in pod.ledger.entries("effect")}) == 1
    printed = pod.printed()
    assert "Starting 1 worker process (--burst)." in printed
    assert " serves high, low." in printed


async def test_a_burst_takes_jobs_of_lost_pods_and_exits_with_69_when_it_has_no_handler_for_others(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    store = client.job_store
    store.settings.worker_lease_seconds = 0.5
    jobs = await enqueue_some(client, "note")
    lost = await start_worker(store, "of a lost node")
    await lost.take_one()

    async def has_lapsed() -> bool:
        return (await store.observe([])).ended_leases == 1

    await eventually(has_lapsed, 20, "the lease did not end")
    jobs += await enqueue_some(client, "note", count=3)
    [left] = await enqueue_some(client, "nobody_has_this")
    pod = make_pod("--burst", worker_lease_seconds=2.0)
    assert await asyncio.to_thread(pod.wait) == 69
    await all_done(store, jobs, 1)
    assert await is_queued(store, left.id)
    [failure] = pod.logged("burst failed")
    assert "has no handler for 'nobody_has_this'" in failure["error"]


async def test_a_lingering_burst_outlives_a_job_that_kills_its_process_and_waits_for_retries(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    [killer] = await enqueue_some(client, "kill_process")
    # Queued before the pod comes, which waits for nothing but the retry.
    [failing] = await enqueue_some(client, "note", "no number", max_retries=2)
    jobs = await enqueue_some(client, "note", count=5)
    pod = make_pod("--burst", "--burst-linger", "4", base_retry_delay_seconds=0.5)
    assert await asyncio.to_thread(pod.wait) == 0
    await all_done(client.job_store, jobs, 1)
    for job in (killer, failing):
        assert (await job_fields(client.job_store, job.id))["status"] == "FAILED"


@pytest.mark.parametrize("told", ["the pod", "its process"])
async def test_a_burst_that_was_stopped_before_it_was_done_says_so(
    make_pod: Callable[..., Pod], client: RRQClient, told: str
) -> None:
    jobs = await enqueue_some(client, "note", 60.0, count=4)
    pod = make_pod("--burst", worker_concurrency=2, worker_shutdown_grace_period_seconds=0.5)
    await pod.has_started(2)
    os.kill(pod.pid if told == "the pod" else pod.children()[0], signal.SIGTERM)
    assert await asyncio.to_thread(pod.wait) == 75
    assert all([await is_queued(client.job_store, job.id) for job in jobs])


async def test_a_burst_without_redis_is_not_done(
    make_pod: Callable[..., Pod], own_redis: EmbeddedRedis
) -> None:
    own_redis.kill()
    pod = make_pod("--burst", dsn=own_redis.dsn, worker_burst_redis_patience_seconds=1)
    assert await asyncio.to_thread(pod.wait) == 1
    assert pod.logged("burst failed")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "raise RuntimeError('cannot reach redis://:sec/ret@host:6379/0')",
            "cannot reach redis://***@host:6379/0",
        ),
        (
            "from examples.jobs import settings; settings.redis_dsn = 'redis://:sec/ret@host:6379/0'",
            "ERROR: redis_dsn 'redis://***@host:6379/0' cannot be read as a URL.",
        ),
    ],
)
def test_errors_of_an_application_are_shown_without_its_passwords(
    tmp_path: Path, line: str, complaint: str
) -> None:
    (tmp_path / "telltale.py").write_text(line)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = rrq("--settings", "telltale.settings", "--num-workers", "1", PYTHONPATH=path)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "sec" not in (done.stderr + done.stdout).replace("seconds", "")


# A pid namespace is what makes a container's first process number 1, and kills all others with it.
IN_CONTAINER: tuple[str, ...] = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
if os.geteuid() != 0:
    # Whoever is not root makes one in a namespace of users, where the machine allows that.
    IN_CONTAINER = ("unshare", "--user", "--map-root-user", *IN_CONTAINER[1:])


@pytest.fixture
def container() -> tuple[str, ...]:
    if subprocess.run([*IN_CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip(
            "making a pid namespace needs root or namespaces of users; run the tests as root for this one"
        )
    return IN_CONTAINER


@pytest.mark.parametrize(("options", "exit_code"), [(["--num-workers", "1"], 0), (["--burst"], 75)])
async def test_process_1_ends_with_a_signal_that_arrives_while_it_loads(
    make_pod: Callable[..., Pod], container: tuple[str, ...], options: list[str], exit_code: int
) -> None:
    # Coverage has a handler of its own, which ends in a signal that the kernel drops for process 1.
    unmeasured = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}
    pod = make_pod(*options, prefix=container, environment=unmeasured)

    def first_process_that_heeds() -> int | None:
        for child in psutil.Process(pod.pid).children():
            caught = Path(f"/proc/{child.pid}/status").read_text().partition("SigCgt:\t")[2][:16]
            if "python" in child.name() and int(caught, 16) >> (signal.SIGTERM - 1) & 1:
                return child.pid
        return None

    pid = await eventually(first_process_that_heeds, 60, "no handler", interval_seconds=0.001)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    assert pod.wait() == exit_code


async def test_process_1_of_a_container_certifies_the_workers_of_the_previous_container(
    make_pod: Callable[..., Pod], client: RRQClient, container: tuple[str, ...]
) -> None:
    sole = {"RRQ_POD_UID": "uid-1", "RRQ_POD_SOLE_WORKER": "1"}
    pod = make_pod("--num-workers", "1", prefix=container, environment=sole, worker_lease_seconds=100)
    await pod.is_up()
    orphans = await enqueue_some(client, "leave_orphan", count=2)
    await all_done(client.job_store, orphans)
    jobs = await enqueue_some(client, "linger_first", 60.0, count=3)
    await pod.has_started(3)
    pod.process.kill()
    pod.wait()
    started_at = time.monotonic()
    other = make_pod("--num-workers", "1", prefix=container, environment=sole)
    await all_done(client.job_store, jobs, 50)
    # Without the certificates of its predecessors it would have waited for their lease of 100 s.
    assert time.monotonic() - started_at < 50
    for job in jobs:
        fields = await client.job_store.get_job(job.id) or {}
        # Why that container ended is not known: a loss for each of its jobs, and no proof against any.
        assert (fields["losses"], "suspect" in fields) == ("1", False)
    other.process.kill()
    other.wait()


# Weights


def test_weights_reach_the_worker_process(
    redis_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "weighted_app.py").write_text(
        "from rrq import JobRegistry, RRQSettings\n"
        "settings = RRQSettings(job_registry=JobRegistry(), worker_queue_weights={'old': 2})"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RRQ_REDIS_DSN", redis_dsn)
    plan = ChildPlan(-1, "weighted_app.settings", ("high", "low"), weights={"high": 6.0, "low": 1.0})
    worker = build_worker(ChildPlan.parse(plan.to_argument()))
    assert worker.queues == ["high", "low"]
    assert worker.settings.worker_queue_weights == {"high": 6.0, "low": 1.0}
    monkeypatch.delitem(sys.modules, "weighted_app")
    unsaid = build_worker(ChildPlan(-1, "weighted_app.settings"))
    assert unsaid.settings.worker_queue_weights == {"old": 2}


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ("high", "'high' is not QUEUE=NUMBER; write high=6,default=3,low=1."),
        ("high=6,", "'' is not QUEUE=NUMBER"),
        ("=6", "'=6' is not QUEUE=NUMBER"),
        ("high=much", "the weight of queue 'high' must be a number, not 'much'."),
        ("high=0", "the weight of queue 'high' must be 0.001 to 1,000,000."),
        ("high=nan", "the weight of queue 'high' must be 0.001 to 1,000,000."),
        ("high=6,high=3", "queue 'high' has two weights."),
    ],
)
def test_invalid_weights_are_refused(weights: str, complaint: str) -> None:
    result = CliRunner().invoke(command_line, ["worker", "run", "--weights", weights])
    assert result.exit_code == 2
    assert complaint in result.stderr
