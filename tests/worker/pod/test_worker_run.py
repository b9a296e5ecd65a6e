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
from queue_steps import is_queued
from rrq.cli import rrq as command_line
from rrq.pod.child import build_worker
from rrq.pod.plan import ChildPlan
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from pod import Pod
    from rrq.client import RRQClient
    from rrq.embedded import EmbeddedRedis
    from rrq.store import JobStore

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


async def test_one_process_runs_per_allotted_cpu_and_the_source_of_the_number_is_printed(
    make_pod: Callable[..., Pod],
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for allotted in {1, len(cpus)}:
        pod = make_pod(prefix=("taskset", "-c", ",".join(map(str, cpus[:allotted]))))
        await pod.is_up()
        assert len(pod.children()) == allotted
        pod.signal(signal.SIGTERM)
        assert pod.wait() == 0
        printed = pod.printed()
        noun = "process" if allotted == 1 else "processes"
        assert f"Starting {allotted} worker {noun} (" in printed
        assert "cpuset" in printed
        assert "Settings pod_app.settings from --settings." in printed
        assert printed.count(" serves rrq:queue:default.") == allotted


async def test_queues_and_worker_ids_are_printed_and_logged(make_pod: Callable[..., Pod]) -> None:
    pod = await make_pod("--num-workers", "1", "--queue", "mail", "--queue", "slow").is_up()
    [started] = pod.logged("worker started")
    assert started["queues"] == ["mail", "slow"]
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 0
    assert f"Worker {started['worker_id']} " in (printed := pod.printed())
    assert "serves mail, slow." in printed


async def test_worker_id_and_queues_are_on_every_line_if_asked(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    pod = await make_pod("--num-workers", "1", "--log-context").is_up()
    await client.enqueue("note", "no number", _max_retries=1)
    await eventually(lambda: pod.logged("job failed"), 30, "no job failed")
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 0
    lines = pod.log()
    for line in lines:
        assert ("worker_id" in line and "queues" in line) or "supervisor" in line, line
    [failed] = [line for line in lines if line["message"] == "job failed"]
    assert failed["queue"] == "rrq:queue:default"
    assert failed["attempt"] == 1
    assert failed["job_id"]
    # The arguments of a job are nobody's business but the handler's.
    assert "no number" not in str([line for line in lines if line["message"] != "job failed"])


def test_a_burst_of_several_processes_is_refused_before_anything_is_loaded() -> None:
    done = rrq("--burst", "--num-workers", "2", "--settings", "no_such_module.settings")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "ERROR: --burst mode is not supported with multiple workers (--num-workers > 1). "
        "Burst mode cannot coordinate across multiple processes. Leave --num-workers out, or leave --burst out and let "
        "the processes run on."
    )


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_number_of_workers_below_one_is_refused(number: str) -> None:
    done = rrq("--num-workers", number)
    assert (done.returncode, done.stderr) == (1, "ERROR: --num-workers must be a positive integer.\n")


def test_several_processes_without_settings_are_refused() -> None:
    done = rrq("--num-workers", "2")
    assert done.returncode == 1
    assert "need --settings or RRQ_SETTINGS" in done.stderr


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (None, "ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings."),
        ("no_such_module.settings", "ERROR: Could not import settings object 'no_such_module.settings'."),
        ("os.no_such_thing", "ERROR: Unexpected error processing settings object 'os.no_such_thing'"),
    ],
)
def test_what_cannot_be_run_is_told_once_and_ends_at_once(path: str | None, complaint: str) -> None:
    started_at = time.monotonic()
    options = ("--num-workers", "2", "--settings", path) if path else ("--num-workers", "1")
    done = rrq(*options)
    assert done.returncode == 1
    assert done.stderr.count(complaint) >= 1
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started_at < 40, "it was tried again and again"


def test_an_address_of_redis_that_can_never_work_is_told_without_its_password() -> None:
    app = ("--settings", "examples.jobs.settings", "--num-workers", "2")
    done = rrq(*app, RRQ_REDIS_DSN="redis://:sec/ret@host:6379/0")
    assert done.returncode == 1
    assert "ERROR: redis_dsn 'redis://***@host:6379/0' cannot be read as a URL." in done.stderr
    assert "sec" not in done.stderr.replace("seconds", "")


def test_an_address_that_cannot_be_used_for_http_is_told() -> None:
    app = ("--settings", "examples.jobs.settings", "--num-workers", "1")
    done = rrq(*app, "--http", "no-port")
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: 'no-port' is no address to listen on.")
    done = rrq(*app, "--http", "203.0.113.1:80")
    assert done.returncode == 1
    assert "Cannot listen on 203.0.113.1:80" in done.stderr


async def test_a_burst_runs_what_is_due_in_one_process_and_exits_with_0(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    jobs = await enqueue_some(client, "note", 0.1, count=25)
    later = await enqueue_some(client, "note", defer_by=3600)
    pod = make_pod("--burst")
    assert pod.wait() == 0
    await all_done(client.job_store, jobs, 1)
    assert await is_queued(client.job_store, later[0].id)
    assert len({entry.pid for entry in pod.ledger.entries("effect")}) == 1
    assert "Starting 1 worker process (--burst)." in pod.printed()


async def test_a_burst_that_leaves_jobs_of_an_unknown_function_behind_exits_with_1(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    jobs = await enqueue_some(client, "note", count=3)
    [left] = await enqueue_some(client, "nobody_has_this")
    pod = make_pod("--burst")
    assert pod.wait() == 1
    await all_done(client.job_store, jobs, 1)
    assert await is_queued(client.job_store, left.id)
    [failure] = pod.logged("burst failed")
    assert "has no handler for 'nobody_has_this'" in failure["error"]


async def test_a_burst_outlives_a_job_that_kills_its_process(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    [killer] = await enqueue_some(client, "kill_process")
    jobs = await enqueue_some(client, "note", count=5)
    pod = make_pod("--burst")
    assert pod.wait() == 0
    await all_done(client.job_store, jobs, 1)
    result = await client.get_job_status(killer.id)
    assert result is not None
    assert result.status.value == "FAILED"


async def test_a_lingering_burst_waits_for_retries(make_pod: Callable[..., Pod], client: RRQClient) -> None:
    # Queued before the pod comes, which waits for nothing but the retry.
    job = await client.enqueue("note", "no number", _max_retries=2)
    assert job is not None
    pod = make_pod("--burst", "--burst-linger", "6", base_retry_delay_seconds=1)
    assert pod.wait() == 0
    result = await client.get_job_status(job.id)
    assert result is not None
    assert result.status.value == "FAILED"  # both attempts were made


async def test_a_burst_that_was_stopped_before_it_was_done_says_so(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    [job] = await enqueue_some(client, "note", 60.0)
    pod = make_pod("--burst", worker_shutdown_grace_period_seconds=0.5)
    await pod.has_started(1)
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 75
    assert await is_queued(client.job_store, job.id)


async def test_a_burst_whose_process_alone_was_told_to_end_is_not_done_either(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    await enqueue_some(client, "note", 1.0, count=30)
    pod = make_pod("--burst", worker_concurrency=2)
    await pod.has_started(1)
    os.kill(pod.children()[0], signal.SIGTERM)
    assert pod.wait() == 75


async def test_a_burst_ends_although_a_handler_ignores_its_timeout(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    await enqueue_some(client, "ignore_cancellation", 300.0, job_timeout_seconds=1)
    pod = make_pod("--burst")
    assert pod.wait() == 0


async def test_a_burst_takes_the_jobs_of_a_pod_whose_lease_has_ended(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    quick = {"worker_lease_seconds": 2.0}
    lost = make_pod("--burst", **quick)
    [orphan] = await enqueue_some(client, "note", 3.0)
    await lost.has_started(1)
    kill_whole(lost)
    await has_lapsed(client.job_store)
    [own] = await enqueue_some(client, "note")
    assert make_pod("--burst", **quick).wait() == 0
    await all_done(client.job_store, [own, orphan], 1)


def kill_whole(pod: Pod) -> None:
    """Lose a pod with its node: the supervisor cannot tell of the death of its process any more."""
    pod.signal(signal.SIGSTOP)
    for pid in (*pod.children(), pod.pid):
        os.kill(pid, signal.SIGKILL)


async def has_lapsed(store: JobStore) -> None:
    """Wait until the lease of a dead worker has ended."""

    async def is_over() -> bool:
        return (await store.observe([])).ended_leases == 1

    await eventually(is_over, 20, "the lease did not end")


async def test_a_burst_without_redis_is_not_done(
    make_pod: Callable[..., Pod], own_redis: EmbeddedRedis
) -> None:
    own_redis.kill()
    pod = make_pod("--burst", dsn=own_redis.dsn, worker_burst_redis_patience_seconds=1)
    assert pod.wait() == 1
    assert pod.logged("burst failed")


async def test_no_password_gets_into_the_log_or_the_output(
    make_pod: Callable[..., Pod], make_redis: Callable[..., EmbeddedRedis]
) -> None:
    server = make_redis(extra_args=("--requirepass", "sesame-47"))
    dsn = server.dsn.replace("redis://", "redis://:sesame-47@")
    pod = make_pod("--num-workers", "1", "--log-level", "DEBUG", dsn=dsn)
    await pod.is_up()
    server.kill()
    await eventually(lambda: pod.logged("heartbeat failed, trying again"), 60, "Redis was not missed")
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 0
    assert "sesame-47" not in pod.log_path.read_text() + pod.printed()


def test_what_an_application_raises_is_told_without_its_passwords(tmp_path: Path) -> None:
    app = tmp_path / "telltale.py"
    app.write_text("raise RuntimeError('cannot reach redis://:hunter2@host:6379/0')\n")
    done = rrq("--settings", "telltale.settings", "--num-workers", "1", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "cannot reach redis://***@host:6379/0" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


# A pid namespace is what makes a container's first process number 1, and kills all others with it.
IN_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def container() -> tuple[str, ...]:
    if subprocess.run([*IN_CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip(
            "making a pid namespace needs root or user namespaces; run the tests as root for this one"
        )
    return IN_CONTAINER


@pytest.mark.parametrize(("options", "exit_code"), [(["--num-workers", "1"], 0), (["--burst"], 75)])
async def test_process_1_heeds_a_signal_that_comes_while_it_still_loads(
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


@pytest.mark.slow
async def test_process_1_of_a_container_buries_what_the_container_before_it_left(
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
        assert "suspect" not in (await client.job_store.get_job(job.id) or {})
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


async def test_without_queue_those_with_a_weight_are_served(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    jobs = await enqueue_some(client, "note", count=3, queue_name="low")
    jobs += await enqueue_some(client, "note", count=3, queue_name="high")
    pod = make_pod("--burst", "--weights", "high=6, low=1.5")
    assert await asyncio.to_thread(pod.wait) == 0
    await all_done(client.job_store, jobs)
    assert " serves high, low." in pod.printed()


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ("high", "'high' is no QUEUE=NUMBER; write high=6,default=3,low=1."),
        ("high=6,", "'' is no QUEUE=NUMBER"),
        ("=6", "'=6' is no QUEUE=NUMBER"),
        ("high=much", "the weight of queue 'high' must be a number, not 'much'."),
        ("high=0", "the weight of queue 'high' must be 0.001 to 1,000,000."),
        ("high=nan", "the weight of queue 'high' must be 0.001 to 1,000,000."),
        ("high=6,high=3", "queue 'high' has two weights."),
    ],
)
def test_weights_that_make_no_sense_are_named(weights: str, complaint: str) -> None:
    result = CliRunner().invoke(command_line, ["worker", "run", "--weights", weights])
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_weight_of_a_queue_that_is_not_served_is_named() -> None:
    result = CliRunner().invoke(
        command_line, ["worker", "run", "--queue", "rrq:queue:high", "--weights", "high=6,low=1"]
    )
    assert result.exit_code == 1
    assert "ERROR: --weights names low, which --queue does not." in result.stderr
