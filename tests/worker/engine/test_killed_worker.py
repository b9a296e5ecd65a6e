"""kill -9, SIGSTOP and their kin: jobs of a worker that is gone run again, late results are refused."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from fleet import all_done, assert_nothing_in_hand, enqueue_some
from ledger import Ledger
from rrq.client import JobRequest, RRQClient
from rrq.settings import RRQSettings
from waiting import eventually
from worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

# By the default lease of 15 s jobs are due again 20 s after a kill, 35 s where no worker is left to send heartbeats; these are a
# fifth of that, and some more for a busy machine.
SHORT_LEASE = {"worker_lease_seconds": 3.0}
BESIDE_ANOTHER_SECONDS, ALONE_SECONDS, BUSY_MACHINE_SECONDS = 4.0, 7.0, 15.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that `wait_for_file` waits for."""
    return tmp_path / "gate"


async def enqueue(client: RRQClient, count: int, seconds: float) -> list[str]:
    jobs = await client.enqueue_many(
        [JobRequest("note", kwargs={"seconds": seconds}, max_retries=3) for _ in range(count)]
    )
    return [job.id for job in jobs]


async def started(ledger: Ledger, count: int) -> None:
    await eventually(lambda: len(ledger.counts("started")) >= count, 20, "jobs did not start")


async def has_registered(client: RRQClient, process: WorkerProcess) -> bool:
    """Asked by its pid: one that was killed a moment ago is still counted."""
    worker_ids = (await client.job_store.observe([])).workers
    return any(f"_{process.pid}_" in worker_id for worker_id in worker_ids)


@pytest.mark.slow
async def test_jobs_of_a_killed_worker_are_due_soon_after_its_lease_while_another_worker_beats(
    client: RRQClient, redis_dsn: str, ledger: Ledger
) -> None:
    # The survivor has no free slot: it must sweep although it does not claim.
    with WorkerProcess(redis_dsn, ledger, worker_concurrency=5, **SHORT_LEASE) as victim:
        job_ids = await enqueue(client, 5, seconds=300)
        await started(ledger, 5)
        with WorkerProcess(redis_dsn, ledger, worker_concurrency=1, **SHORT_LEASE):
            blocker = await enqueue(client, 1, seconds=300)
            await started(ledger, 6)
            victim.kill()
            store = client.job_store

            async def due_again() -> bool:
                return await store.redis.zcard(store.keys.queue_key("default")) == 5

            await eventually(
                due_again, BESIDE_ANOTHER_SECONDS + BUSY_MACHINE_SECONDS, "jobs were not due again"
            )
            for job_id in job_ids:
                fields = await store.get_job(job_id)
                assert fields is not None
                assert fields["status"] == "PENDING"
                assert fields["current_retries"] == "0"
                assert "stopped renewing its lease" in fields["last_error"]
            assert (await store.get_job(blocker[0]) or {})["status"] == "ACTIVE"


@pytest.mark.slow
async def test_jobs_of_a_lone_killed_worker_are_due_soon_after_the_next_one_starts(
    client: RRQClient, redis_dsn: str, ledger: Ledger, gate: Path
) -> None:
    with WorkerProcess(redis_dsn, ledger, **SHORT_LEASE) as victim:
        jobs = await enqueue_some(client, "wait_for_file", str(gate), count=9)
        jobs += await enqueue_some(client, "in_thread", 2.0)  # it must not end before it is killed
        await started(ledger, 10)
        victim.kill()
    gate.touch()
    with WorkerProcess(redis_dsn, ledger, **SHORT_LEASE):
        await eventually(
            lambda: len(ledger.counts("effect")) == 10, ALONE_SECONDS + BUSY_MACHINE_SECONDS, "no second run"
        )
        await all_done(client.job_store, jobs)
    assert set(ledger.counts("effect").values()) == {1}
    await assert_nothing_in_hand(client.job_store)


async def test_no_job_is_lost_or_finished_twice_when_workers_are_killed_in_the_middle(
    client: RRQClient, redis_dsn: str, ledger: Ledger
) -> None:
    quick = {"worker_lease_seconds": 1.5, "worker_concurrency": 10}
    with WorkerProcess(redis_dsn, ledger, **quick) as survivor:
        job_ids = []
        for _ in range(2):
            with WorkerProcess(redis_dsn, ledger, **quick) as victim:

                async def victim_is_there(victim: WorkerProcess = victim) -> bool:
                    return await has_registered(client, victim)

                await eventually(victim_is_there, 20, "the victim did not register")
                # Long enough that one worker cannot have done them all before the other gets any.
                job_ids += await enqueue(client, 40, seconds=0.3)

                def victim_is_busy(pid: int = victim.pid) -> bool:
                    return any(entry.pid == pid for entry in ledger.entries("started"))

                await eventually(victim_is_busy, 20, "the victim never got a job")
                victim.kill()
        await eventually(lambda: len(ledger.counts("effect")) == 80, 60, "jobs are missing")
        jobs = [await client.job_store.get_job_definition(job_id) for job_id in job_ids]
        await all_done(client.job_store, [job for job in jobs if job is not None])
        assert survivor.pid in {entry.pid for entry in ledger.entries("effect")}
    killed_starts = ledger.counts("started")
    # A second effect needs a second start, and that only happens to an attempt that was cut.
    for job_id, effects in ledger.counts("effect").items():
        assert effects <= killed_starts[job_id]
    counters = await client.job_store.redis.hgetall(client.job_store.keys.counters)
    assert int(counters[b"done"]) == 80
    await assert_nothing_in_hand(client.job_store)


@pytest.mark.slow
async def test_a_worker_suspended_past_its_lease_loses_its_jobs_and_its_late_results(
    client: RRQClient, redis_dsn: str, ledger: Ledger, gate: Path
) -> None:
    quick = {"worker_lease_seconds": 1.5, "worker_concurrency": 4}
    with WorkerProcess(redis_dsn, ledger, **quick) as stopped:
        job_ids = [job.id for job in await enqueue_some(client, "wait_for_file", str(gate), count=4)]
        await started(ledger, 4)
        stopped.signal(signal.SIGSTOP)
        gate.touch()
        with WorkerProcess(redis_dsn, ledger, **quick) as other:
            jobs = [await client.job_store.get_job_definition(job_id) for job_id in job_ids]
            await all_done(client.job_store, [job for job in jobs if job is not None])
            results = {job_id: await client.get_job_status(job_id) for job_id in job_ids}
            stopped.signal(signal.SIGCONT)
            # It learns of its loss and takes part again.
            more = await enqueue(client, 40, seconds=0.05)
            jobs = [await client.job_store.get_job_definition(job_id) for job_id in more]
            await all_done(client.job_store, [job for job in jobs if job is not None])
            for job_id, result in results.items():
                assert result is not None
                assert result.result == other.pid
                assert await client.get_job_status(job_id) == result
    counters = await client.job_store.redis.hgetall(client.job_store.keys.counters)
    assert int(counters[b"done"]) == 44
    await assert_nothing_in_hand(client.job_store)


@pytest.mark.slow
async def test_a_resumed_worker_that_claims_its_own_job_again_cannot_store_the_old_result(
    client: RRQClient, redis_dsn: str, ledger: Ledger, gate: Path
) -> None:
    quick = {"worker_lease_seconds": 1.5, "worker_concurrency": 4}
    store = client.job_store
    with WorkerProcess(redis_dsn, ledger, **quick) as lone:
        [job] = await enqueue_some(client, "wait_for_file", str(gate))
        job_id = job.id
        await started(ledger, 1)
        lone.signal(signal.SIGSTOP)
        gate.touch()
        # Only a reap: the job goes back to the queue and no other worker claims it.
        settings = RRQSettings(redis_dsn=redis_dsn, worker_lease_seconds=1.5)
        sweeper = RRQClient(settings)

        async def swept() -> bool:
            # The sweeper stands for other beating workers, hence its own beats below.
            await sweeper.job_store.redis.hset(
                store.keys.guard, "last_beat_ms", int((await store.read_time()).timestamp() * 1000)
            )
            return (await sweeper.job_store.reap_workers()).returned == 1

        await eventually(swept, 20, "the job was not reaped")
        await sweeper.close()
        lone.signal(signal.SIGCONT)
        await all_done(store, [job])
    # More often if it stood still for the length of a lease by itself.
    assert ledger.counts("started")[job_id] >= 2
    counters = await store.redis.hgetall(store.keys.counters)
    assert int(counters[b"done"]) == 1
    await assert_nothing_in_hand(store)


@pytest.mark.slow
async def test_a_handler_that_holds_the_event_loop_past_the_lease_keeps_its_job(
    client: RRQClient, redis_dsn: str, ledger: Ledger
) -> None:
    # Renewed often, so that only a process that stands still for all of it loses its lease.
    often = {"worker_lease_seconds": 3.0, "worker_lease_renewal_seconds": 0.3}
    with WorkerProcess(redis_dsn, ledger, **often) as holder:
        job = await client.enqueue("hold_loop", 4.5)
        assert job is not None
        await started(ledger, 1)
        with WorkerProcess(redis_dsn, ledger, **often):
            await all_done(client.job_store, [job])
        assert [entry.pid for entry in ledger.entries("started")] == [holder.pid]


@pytest.mark.slow
async def test_a_loop_that_hangs_beyond_all_deadlines_does_not_keep_its_jobs(
    client: RRQClient, redis_dsn: str, ledger: Ledger
) -> None:
    hung = {"worker_lease_seconds": 1.0, "worker_loop_stall_limit_seconds": 1.0}
    with WorkerProcess(redis_dsn, ledger, **hung) as holder:
        job = await client.enqueue("hold_loop", 60.0, _job_timeout_seconds=1)
        assert job is not None
        await started(ledger, 1)
        with WorkerProcess(redis_dsn, ledger, **hung) as other:
            await eventually(lambda: ledger.count("started") == 2, 40, "the job stayed with the hung worker")
            for hanging in (holder, other):
                hanging.kill()
