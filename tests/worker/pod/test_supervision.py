"""A pod as it runs: processes that die, hang, stand still, grow or are to be replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from fleet import all_done, assert_nothing_in_hand, enqueue_some
from queue_steps import (
    dead_letters,
    is_queued,
    job_fields,
    last_lease_end_ms,
    let_the_fleet_beat,
    now_ms,
    start_worker,
)
from rrq.client import RRQClient
from rrq.settings import RRQSettings
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pod import Pod
    from rrq.embedded import EmbeddedRedis


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_jobs_that_are_cancelled_or_whose_process_is_killed_wait_for_no_heartbeat(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    late = {"worker_lease_seconds": 180, "worker_lease_renewal_seconds": 60}
    pod = await make_pod("--num-workers", "1", worker_concurrency=5, **late).is_up()
    jobs = await enqueue_some(client, "note", 300.0, count=5)
    await pod.has_started(5)
    cancelled = jobs.pop()
    await client.cancel(cancelled.id)

    async def is_cancelled() -> bool:
        return (await job_fields(client.job_store, cancelled.id))["status"] == "CANCELLED"

    await eventually(is_cancelled, 15, "the job went on")
    # The pod is told once a second.
    await eventually(lambda: pod.metric("rrq_jobs_in_flight") == 4)
    [victim] = pod.children()
    # Its successor must not have claimed them by the time that the test looks.
    (tmp_path / "broken.hangs").touch()
    os.kill(victim, signal.SIGKILL)

    async def due_again() -> bool:
        return all([await is_queued(client.job_store, job.id) for job in jobs])

    await eventually(due_again, 15, "jobs of the dead process were not due again")
    await eventually(lambda: pod.children() not in ([], [victim]), message="it was not replaced")
    [death] = pod.logged("worker process died")
    assert (death["signal"], death["exit_code"], death["jobs_in_hand"]) == ("SIGKILL", None, 4)
    [release] = await eventually(lambda: pod.logged("jobs of a dead worker process are due again"))
    assert release["jobs"] == 4
    assert pod.metric("rrq_child_crashes_total", how="SIGKILL") == 1
    assert pod.metric("rrq_reaped_jobs_total", cause="death") == 4
    await eventually(lambda: pod.metric("rrq_child_restarts_total", reason="crash") == 1)
    for job in jobs:
        fields = await job_fields(client.job_store, job.id)
        assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")


async def test_of_a_hundred_running_jobs_only_the_one_that_kills_its_process_is_dead_lettered(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    store = client.job_store
    innocent = await enqueue_some(client, "linger_first", 60.0, count=60)
    [killer] = await enqueue_some(client, "kill_process", 100)
    innocent += await enqueue_some(client, "linger_first", 60.0, count=39)
    pod = make_pod("--num-workers", "1", worker_concurrency=100)

    async def is_dead() -> bool:
        return (await job_fields(store, killer.id)).get("status") == "FAILED"

    await eventually(is_dead, 60, "the killer was not found out")
    await all_done(store, innocent, 90)
    assert await dead_letters(store) == [killer.id]
    fields = await job_fields(store, killer.id)
    assert "ended its worker process 3 times while running alone" in fields["last_error"]
    history = json.loads(fields["crash_history"])
    assert len(history) == 4  # once in company, three times alone
    assert {crash["signal"] for crash in history} == {"SIGKILL"}
    assert all(crash["rss_bytes"] > 10_000_000 and crash["worker_id"] for crash in history)
    first_starts = {entry.pid for entry in pod.ledger.entries("started")[:100]}
    assert len(first_starts) == 1, "not all of them were in hand at the first crash"
    await assert_nothing_in_hand(store)


@pytest.mark.parametrize(("processes", "concurrency"), [(1, 5), (2, 1)])
async def test_a_job_that_kills_its_whole_pod_is_dead_lettered_and_its_neighbour_is_not(
    make_pod: Callable[..., Pod], client: RRQClient, processes: int, concurrency: int
) -> None:
    store, limit = client.job_store, 1
    [killer] = await enqueue_some(client, "kill_pod", 2)
    [neighbour] = await enqueue_some(client, "note", 3.0)

    def start_pod(number: int) -> Pod:
        return make_pod(
            *("--num-workers", str(processes)),
            environment={"RRQ_POD_UID": f"pod-{number}"},
            worker_concurrency=concurrency,
            worker_lease_seconds=1.5,
            worker_lost_limit=limit,
        )

    for number in range(limit + 1):
        pod = start_pod(number)
        await eventually(lambda: pod.process.poll() is not None, 60, "the pod was not killed")  # noqa: B023
    await start_pod(limit + 1).is_up()

    async def is_dead() -> bool:
        return (await job_fields(store, killer.id)).get("status") == "FAILED"

    await eventually(is_dead, 60, "the killer was not found out")
    await all_done(store, [neighbour])
    assert await dead_letters(store) == [killer.id]
    fields = await job_fields(store, killer.id)
    assert f"The worker was lost {limit + 1} times while running this job" in fields["last_error"]
    assert len({loss["worker_id"] for loss in json.loads(fields["loss_history"])}) == limit + 1
    await assert_nothing_in_hand(store)


async def test_an_exit_with_0_in_a_handler_is_a_crash_and_nothing_of_a_job_outlives_its_process(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    store = client.job_store
    pod = make_pod("--num-workers", "1")
    [job] = await enqueue_some(client, "exit_process", 0)

    async def is_dead() -> bool:
        return (await job_fields(store, job.id)).get("status") == "FAILED"

    await eventually(is_dead, 60, "the job was not found out")
    history = json.loads((await job_fields(store, job.id))["crash_history"])
    assert [crash["exit_code"] for crash in history] == [0, 0, 0]
    assert [death["exit_code"] for death in pod.logged("worker process died")] == [0, 0, 0]
    # Redis knows it first, then the pod.
    await eventually(lambda: pod.metric("rrq_buried_jobs_total") == 1)
    # A pod that found out a killer goes on. It adopts what its jobs leave behind:
    jobs = await enqueue_some(client, "leave_orphan", count=3)
    await all_done(store, jobs)
    results = [await client.get_job_status(job.id) for job in jobs]
    orphans = [int(str(result.result)) for result in results if result is not None]
    await eventually(lambda: not any(psutil.pid_exists(pid) for pid in orphans), 30, "a zombie is left")
    statuses = [child.status() for child in psutil.Process(pod.pid).children(recursive=True)]
    assert psutil.STATUS_ZOMBIE not in statuses
    # And with a process it ends the programs of its jobs.
    await enqueue_some(client, "start_program", 60.0)
    [entry] = await eventually(lambda: pod.ledger.entries("program"), 30, "no program was started")
    program = psutil.Process(entry.attempt)
    os.kill(entry.pid, signal.SIGKILL)
    await eventually(lambda: not program.is_running(), 30, "the program went on without its job")


async def test_children_that_only_crash_end_the_pod_with_an_error(
    make_pod: Callable[..., Pod], tmp_path: Path
) -> None:
    # It gives up after eight starts with growing pauses, a quarter of a minute in all; three show the same.
    (tmp_path / "sitecustomize.py").write_text("import rrq.pod.restarts as r\nr.GIVE_UP_AFTER = 3\n")
    pod = make_pod("--num-workers", "1", environment={"POD_BROKEN": os.devnull})
    assert pod.wait(60) == 1
    assert pod.logged("all worker processes keep crashing, the pod ends")
    assert "the database of the application is away" in pod.logged("worker failed")[0]["traceback"]


async def test_a_process_that_does_not_start_is_killed_and_liveness_is_red_until_one_stays_up(
    make_pod: Callable[..., Pod], tmp_path: Path
) -> None:
    hangs, broken = tmp_path / "broken.hangs", tmp_path / "broken"
    hangs.touch()
    # Enough for a process that does not hang to come up on a busy machine: the limit is the same for both.
    pod = make_pod("--num-workers", "1", worker_start_limit_seconds=6)
    await eventually(
        lambda: pod.logged("worker process did not start in time, killed"), 60, "it hangs for ever"
    )
    assert pod.get("/livez")[0] == 200
    # From here on each start fails at once.
    broken.touch()
    hangs.unlink()
    reason = await pod.turns("/livez", 503)
    assert "no worker process stays up" in reason
    assert pod.get("/readyz")[0] == pod.get("/startupz")[0] == 503
    broken.unlink()
    await pod.is_up()
    assert pod.get("/livez") == (200, "alive\n")
    assert pod.get("/readyz") == (200, "ready\n")


async def test_recycling_cuts_no_job_short_and_leaves_at_least_one_process_at_work(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    pod = await make_pod("--num-workers", "2", worker_recycle_jobs=5, worker_concurrency=2).is_up()
    jobs = await enqueue_some(client, "note", 0.1, count=30)
    jobs += await enqueue_some(client, "note", 2.0, count=2)

    def is_someone_up() -> bool:
        # One look at both: between two looks the one may come and the other go.
        lines = pod.get("/metrics")[1].splitlines()
        return any(f'rrq_child_up{{child="{child}"}} 1.0' in lines for child in ("0", "1"))

    watching = asyncio.create_task(stays_true(is_someone_up, 60.0, "nobody was up"))
    await all_done(client.job_store, jobs)
    # The second only goes once the first is back, however long that takes.
    await eventually(lambda: len(pod.logged("worker process is replaced")) >= 2, 60, "one was not recycled")
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    counts = {job.id: 1 for job in jobs}
    assert (pod.ledger.counts("started"), pod.ledger.counts("effect")) == (counts, counts)
    await eventually(lambda: (pod.metric("rrq_child_restarts_total", reason="recycled") or 0) >= 1)
    # Told once a second.
    await eventually(lambda: pod.metric("rrq_jobs_total", function="note", outcome="done") == 32)


async def test_a_process_that_has_outgrown_its_memory_is_recycled(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    pod = await make_pod("--num-workers", "1", worker_recycle_rss_bytes=200_000_000).is_up()
    first = pod.children()
    await all_done(client.job_store, await enqueue_some(client, "hoard_memory", 200))
    await eventually(lambda: pod.children() not in ([], first), message="it was not recycled")
    await eventually(lambda: pod.metric("rrq_child_restarts_total", reason="recycled") == 1)
    await pod.is_up()
    assert not pod.logged("worker process died")


async def test_a_process_stopped_past_its_lease_loses_its_jobs_and_its_late_results(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    pod = await make_pod("--num-workers", "2", worker_lease_seconds=1.5, worker_concurrency=2).is_up()
    gates = tmp_path / "first-gate", tmp_path / "second-gate"
    jobs = await enqueue_some(client, "wait_for_file", str(gates[0]), count=2)
    await pod.has_started(2)
    frozen = pod.runner_of(jobs[0])
    lost = [job for job in jobs if pod.runner_of(job) == frozen]
    os.kill(frozen, signal.SIGSTOP)
    try:
        gates[0].touch()
        await all_done(client.job_store, jobs)
        assert pod.get("/livez")[0] == 200
    finally:
        os.kill(frozen, signal.SIGCONT)
    for job in lost:
        assert pod.runner_of(job) != frozen
    # It is told of its loss and takes part again; its late results were refused.
    more = await enqueue_some(client, "wait_for_file", str(gates[1]), count=4)
    # The other one has room for two of them.
    await pod.has_started(len(jobs) + len(more))
    gates[1].touch()
    await all_done(client.job_store, more)
    assert frozen in {pod.runner_of(job) for job in more}
    assert not pod.logged("worker process died")
    counters = await client.job_store.redis.hgetall(client.job_store.keys.counters)
    assert int(counters[b"done"]) == 6
    await assert_nothing_in_hand(client.job_store)


async def test_a_loop_that_hangs_for_ever_costs_that_process_only(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # Not shorter: the other process, which says once a second that it lives, may not get its turn for some.
    quick = {"worker_lease_seconds": 1.5, "worker_loop_stall_limit_seconds": 5.0}
    pod = await make_pod("--num-workers", "2", worker_concurrency=1, **quick).is_up()
    before = set(pod.children())
    [job] = await enqueue_some(client, "hold_loop", 600.0, job_timeout_seconds=1)
    await pod.has_started(1)
    hung = pod.runner_of(job)
    others = asyncio.create_task(stays_true(lambda: pod.get("/livez")[0] == 200, 3.0, "the pod looked dead"))
    [death] = await eventually(lambda: pod.logged("worker process died"), 60, "the hung process lives on")
    await others
    assert (death["pid"], death["end"], death["signal"]) == (hung, "hung", "SIGKILL")
    [survivor] = before - {hung}
    assert survivor in pod.children()
    await client.cancel(job.id)


async def test_a_pod_that_was_frozen_as_a_whole_kills_no_process(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # Shorter than it stands still, and longer than a process may not get its turn afterwards.
    quick = {"worker_lease_seconds": 30, "worker_loop_stall_limit_seconds": 5.0}
    pod = await make_pod("--num-workers", "1", **quick).is_up()
    [job] = await enqueue_some(client, "note", 2.0, job_timeout_seconds=20)
    await pod.has_started(1)
    family = [pod.pid, *pod.children()]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(7)  # as a paused machine does
    for pid in family:
        os.kill(pid, signal.SIGCONT)
    await all_done(client.job_store, [job])
    assert pod.children() == family[1:]
    assert not pod.logged("worker process died")
    assert pod.ledger.counts("started")[job.id] == 1


async def test_a_frozen_supervisor_costs_its_processes_no_job(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    pod = await make_pod("--num-workers", "1", worker_lease_seconds=2.0).is_up()
    gate, store = tmp_path / "gate", client.job_store
    [job] = await enqueue_some(client, "wait_for_file", str(gate))
    await pod.has_started(1)
    os.kill(pod.pid, signal.SIGSTOP)
    stopped_ms = await now_ms(store)
    try:

        async def is_renewed() -> bool:
            await store.reap_workers()
            return await last_lease_end_ms(store) > stopped_ms + 4000

        await eventually(is_renewed, message="the lease ended although the process is well")
    finally:
        os.kill(pod.pid, signal.SIGCONT)
    gate.touch()
    await all_done(store, [job])
    assert pod.ledger.counts("started")[job.id] == 1


async def test_a_reload_to_another_redis_takes_the_whole_pod_there(
    make_pod: Callable[..., Pod], make_redis: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    first, second = make_redis(), make_redis()
    source = "from pod_app import settings\nsettings.redis_dsn = {dsn!r}\n"
    app = tmp_path / "moving_app.py"
    app.write_text(source.format(dsn=first.dsn))
    # Over long before the test looks, unless the new one answers.
    quick = {"worker_lease_seconds": 1.5, "worker_redis_patience_seconds": 6}
    pod = await make_pod("--num-workers", "2", app="moving_app.settings", dsn=first.dsn, **quick).is_up()
    app.write_text(source.format(dsn=second.dsn))
    pod.signal(signal.SIGHUP)
    await eventually(lambda: pod.metric("rrq_child_restarts_total", reason="reload") == 2, 60, "not reloaded")
    first.kill()
    client = RRQClient(RRQSettings(redis_dsn=second.dsn))
    jobs = await enqueue_some(client, "note", 3.0, count=4)
    await pod.has_started(4)
    os.kill(pod.children()[0], signal.SIGKILL)
    await all_done(client.job_store, jobs)
    await stays_true(lambda: pod.get("/readyz")[0] == 200, 4.0, "the pod looks for the Redis it left")
    await client.close()


async def test_a_handler_that_blocks_the_interpreter_past_the_lease_keeps_its_job(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # Both shorter than it is held, and longer than anybody else may not get a turn.
    quick = {"worker_lease_seconds": 5, "worker_loop_stall_limit_seconds": 5}
    pod = await make_pod("--num-workers", "1", worker_lease_renewal_seconds=0.5, **quick).is_up()
    [job] = await enqueue_some(client, "hold_interpreter", 8.0, job_timeout_seconds=60)
    await pod.has_started(1)
    await stays_true(lambda: pod.get("/livez")[0] == pod.get("/readyz")[0] == 200, 6)
    await all_done(client.job_store, [job])
    assert pod.ledger.counts("started")[job.id] == 1
    assert not pod.logged("worker process died")


async def test_children_of_a_killed_supervisor_keep_their_lease_and_end_gracefully(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # Longer than one of them may not get its turn, or the other would give its job to somebody else.
    options = {"worker_lease_seconds": 4, "worker_lease_renewal_seconds": 0.5}
    pod = await make_pod("--num-workers", "2", **options).is_up()
    jobs = await enqueue_some(client, "note", 6.0, count=2)
    await pod.has_started(2)
    orphans = [psutil.Process(pid) for pid in pod.children()]
    pod.process.kill()
    await all_done(client.job_store, jobs)
    _, alive = await asyncio.to_thread(psutil.wait_procs, orphans, 30)
    assert not alive
    assert set(pod.ledger.counts("started").values()) == {1}
    await assert_nothing_in_hand(client.job_store)


@pytest.mark.parametrize(
    ("grace", "lease", "renewal"),
    [
        # Renewed by nobody, it would have the job run elsewhere while it goes on here.
        pytest.param(5, 3, 0.5, id="a lease that is shorter than the grace period"),
        # Its jobs need not wait for the rest of it: that would be a minute.
        pytest.param(1, 60, 0.5, id="a lease that is longer than the grace period"),
    ],
)
async def test_jobs_that_a_child_of_a_killed_supervisor_cannot_end_run_elsewhere_once_it_is_dead(
    make_pod: Callable[..., Pod], client: RRQClient, grace: float, lease: float, renewal: float
) -> None:
    store = client.job_store
    store.settings.worker_lease_seconds = lease
    options = {"worker_lease_seconds": lease, "worker_lease_renewal_seconds": renewal}
    options |= {"worker_shutdown_grace_period_seconds": grace, "worker_concurrency": 1}
    pod = await make_pod("--num-workers", "2", **options).is_up()
    [careless] = await enqueue_some(client, "hold_loop", 60.0)
    [deaf] = await enqueue_some(client, "ignore_cancellation", 60.0)
    await pod.has_started(2)
    orphans = {job.id: psutil.Process(pod.runner_of(job)) for job in (careless, deaf)}
    other = await start_worker(store, "elsewhere")
    # On an empty Redis no lease is swept before a whole one is over.
    await let_the_fleet_beat(store)
    pod.process.kill()
    # Whether its process was dead when a job was given to somebody else.
    taken: dict[str, bool] = {}

    async def all_taken() -> bool:
        await other.beat()
        await store.reap_workers()
        for job in (await other.claim(2)).jobs:
            taken[job.job_id.decode()] = has_ended(orphans[job.job_id.decode()])
        return taken.keys() == orphans.keys()

    await eventually(all_taken, 30, "jobs waited for the end of the lease", interval_seconds=0.05)
    assert all(taken.values()), "given away while it ran"


async def test_a_reload_replaces_one_process_after_the_other_and_broken_code_stops_at_the_first(
    make_pod: Callable[..., Pod], client: RRQClient, tmp_path: Path
) -> None:
    app = tmp_path / "reloaded_app.py"
    app.write_text("from pod_app import registry, settings\n")
    pod = await make_pod("--num-workers", "2", app="reloaded_app.settings").is_up()

    def are_replaced(before: list[int]) -> bool:
        return len(pod.children()) == 2 and not set(before) & set(pod.children())

    before = pod.children()
    jobs = await enqueue_some(client, "note", 2.0, count=4)
    await pod.has_started(4)
    pod.signal(signal.SIGHUP)
    await eventually(lambda: are_replaced(before), 60, "not all were replaced")
    await pod.is_up()
    await all_done(client.job_store, jobs)
    assert set(pod.ledger.counts("started").values()) == {1}, "a job was cut short"
    await eventually(lambda: pod.metric("rrq_child_restarts_total", reason="reload") == 2)
    before = pod.children()
    app.write_text("this is no Python\n")
    pod.signal(signal.SIGHUP)
    await eventually(lambda: pod.logged("worker process cannot run the application"), 60, "nobody complained")
    await all_done(client.job_store, await enqueue_some(client, "note", count=5))
    assert len(set(before) & set(pod.children())) == 1
    assert pod.get("/livez")[0] == 200
    app.write_text("from pod_app import registry, settings\n")
    await eventually(lambda: are_replaced(before), 60, "the mended code was not loaded everywhere")
