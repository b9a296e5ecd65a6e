"""A job that ends its worker leaves no worker to report it: losses for no known reason are counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    SteppedWorker,
    ask,
    dead_letters,
    end_lease,
    enqueue,
    ids,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    now_ms,
    retry,
    start_worker,
)
from rrq.broker.messages import DeathCertificate
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rrq.store import JobStore


async def lose(store: JobStore, *workers: SteppedWorker) -> None:
    """Let the leases of workers end, and reap them."""
    for worker in workers:
        await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    await store.reap_workers()


async def lose_times(store: JobStore, times: int, first: int = 1) -> None:
    """Lose so many workers, each while it holds all that is queued."""
    for number in range(first, first + times):
        worker = await start_worker(store, f"worker-{number}")
        assert await worker.take(10)
        # One after the other, and not together.
        await ask(store, "HDEL", store.keys.guard, "lost_ms")
        await lose(store, worker)


async def losses_of(store: JobStore, job_id: str) -> int:
    return int((await job_fields(store, job_id)).get("losses", 0))


async def test_job_that_loses_its_worker_too_often_runs_alone_and_is_dead_lettered_if_that_is_lost_too(
    store: JobStore,
) -> None:
    store.settings.worker_lost_limit = 3
    await enqueue(store, "killer", "neighbour")
    await lose_times(store, 2)
    assert "suspect" not in await job_fields(store, "killer")
    await lose_times(store, 1, first=3)
    alone = await start_worker(store, "worker-4")
    assert ids(await alone.take(10)) == ["killer"]
    await ask(store, "HDEL", store.keys.guard, "lost_ms")
    await end_lease(store, alone.worker_id)
    await let_the_fleet_beat(store)
    report = await store.reap_workers()
    assert (report.returned, report.buried, report.workers) == (0, 1, 1)
    assert await dead_letters(store) == ["killer"]
    assert await is_queued(store, "neighbour")
    assert await ask(store, "HGET", store.keys.counters, "dead") == b"1"
    fields = await job_fields(store, "killer")
    assert fields["status"] == "FAILED"
    what, *history = fields["last_error"].splitlines()
    assert what == (
        "The worker was lost 4 times while running this job, for no known reason; the last time the job ran alone "
        "(worker_lost_limit is 3). It may need more memory than its container has."
    )
    assert [line.split()[1].rstrip(",") for line in history] == [f"worker-{number}" for number in range(1, 5)]
    assert history[0].endswith("worker-1, which held 1 other jobs; 0 other workers were lost at that time")
    assert history[-1].endswith("worker-4, which held 0 other jobs; 0 other workers were lost at that time")
    assert [loss["at"] for loss in json.loads(fields["loss_history"])] == [
        line.split()[0] for line in history
    ]


async def test_suspect_that_is_lost_together_with_other_jobs_is_not_dead_lettered(store: JobStore) -> None:
    store.settings.worker_lost_limit = 1
    await enqueue(store, "1", "2")
    for number in range(4):
        worker = await start_worker(store, f"worker-{number}")
        # As before it was found out.
        await ask(store, "HDEL", "rrq:job:1", "suspect")
        await ask(store, "HDEL", "rrq:job:2", "suspect")
        assert len(await worker.take(2)) == 2
        await lose(store, worker)
    assert await dead_letters(store) == []
    assert await losses_of(store, "1") == 4


async def test_attempt_that_fails_by_itself_restarts_the_count(store: JobStore) -> None:
    store.settings.worker_lost_limit = 2
    await enqueue(store, "1")
    await lose_times(store, 2)
    worker = await start_worker(store)
    await worker.finish(retry(await worker.take_one()))
    fields = await job_fields(store, "1")
    assert not {"losses", "loss_history", "suspect"} & set(fields)


async def test_losses_of_an_earlier_job_of_the_id_do_not_count(store: JobStore) -> None:
    await enqueue(store, "nightly")
    await lose_times(store, 2)
    assert await losses_of(store, "nightly") == 2
    # A producer of an older version, which does not know the count.
    await ask(store, "HSET", store.keys.job_key("nightly"), "enqueue_time", "2026-11-19T00:00:00Z")
    await lose_times(store, 1, first=3)
    assert await losses_of(store, "nightly") == 1


async def test_limits_of_blame_are_those_of_the_lost_worker_and_not_of_the_reaper(store: JobStore) -> None:
    theirs = {"worker_lost_limit": 1, "default_dlq_name": "shop", "default_dlq_result_ttl_seconds": 60}
    ours = {name: getattr(store.settings, name) for name in theirs}

    def use(settings: dict[str, object]) -> None:
        for name, value in settings.items():
            setattr(store.settings, name, value)

    await enqueue(store, "killer")
    for number in (1, 2):
        use(theirs)
        worker = await start_worker(store, f"worker-{number}")
        assert await worker.take(1)
        use(ours)
        await ask(store, "HDEL", store.keys.guard, "lost_ms")
        await lose(store, worker)
    assert await ask(store, "LRANGE", store.keys.dlq_key("shop"), 0, -1) == [b"killer"]
    assert 0 < await ask(store, "TTL", store.keys.job_key("killer")) <= 60


async def test_crash_suspect_stays_a_suspect_when_an_attempt_fails_by_itself(store: JobStore) -> None:
    await enqueue(store, "1")
    worker = await start_worker(store)
    await worker.take_one()
    await store.reap_workers(DeathCertificate(worker.identity, {"signal": "SIGKILL"}))
    await lose_times(store, 1)
    await worker.register()
    await worker.finish(retry(await worker.take_one()))
    assert (await job_fields(store, "1"))["suspect"] == "1"


async def test_job_that_kills_a_worker_of_a_fixed_id_each_time_is_dead_lettered(store: JobStore) -> None:
    """The container restarts the process, which registers under the same id before anyone sweeps."""
    store.settings.worker_lost_limit = 2
    await enqueue(store, "killer")
    for losses in range(3):
        worker = await start_worker(store, "mailer")
        assert await losses_of(store, "killer") == losses
        assert ids(await worker.take(10)) == ["killer"]
        await end_lease(store, "mailer")
        await let_the_fleet_beat(store)
    await start_worker(store, "mailer")
    assert await dead_letters(store) == ["killer"]
    assert await ask(store, "HGET", store.keys.counters, "dead") == b"1"
    minute = await now_ms(store) // 60_000
    counts = [await ask(store, "HGET", store.keys.stats_key(at), "|dead") for at in (minute - 1, minute)]
    assert b"1" in counts


async def test_worker_replaced_after_an_outage_of_redis_counts_against_no_job(store: JobStore) -> None:
    await enqueue(store, "1")
    worker = await start_worker(store, "mailer")
    await worker.take_one()
    await end_lease(store, "mailer")
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", await now_ms(store) - 60_000)
    await start_worker(store, "mailer")
    assert await is_queued(store, "1")
    assert await losses_of(store, "1") == 0


# Reasons that are known


async def is_announced_lost(worker: SteppedWorker) -> None:
    """The operator saw its pod or its node vanish."""
    await worker.store.shorten_leases([worker.worker_id])


async def is_drained(worker: SteppedWorker) -> None:
    await worker.store.set_drain(worker.pod_uid)


async def leaves_a_thread_behind(worker: SteppedWorker) -> None:
    assert await worker.store.deregister_worker(worker.identity) == 1


async def is_certified_without_blame(worker: SteppedWorker) -> None:
    await worker.store.reap_workers(DeathCertificate(worker.identity))


async def job_comes_back(store: JobStore) -> None:
    """Reap until the lease of the worker that has it has ended by itself."""

    async def is_back() -> bool:
        await let_the_fleet_beat(store)
        await store.reap_workers()
        return await is_queued(store, "1")

    await eventually(is_back, 20, "the job did not come back", interval_seconds=0.05)


@pytest.mark.parametrize(
    "ends", [is_announced_lost, is_drained, leaves_a_thread_behind, is_certified_without_blame]
)
async def test_worker_that_is_lost_for_a_known_reason_counts_against_no_job(
    store: JobStore, ends: Callable[[SteppedWorker], Awaitable[None]]
) -> None:
    store.settings.worker_lease_seconds = 0.6
    await enqueue(store, "1")
    worker = await start_worker(store, pod_uid="pod-1")
    await worker.take_one()
    await ends(worker)
    await job_comes_back(store)
    assert await losses_of(store, "1") == 0


async def test_renewal_voids_an_announced_end(store: JobStore) -> None:
    store.settings.worker_lease_seconds = 0.6
    await enqueue(store, "1")
    worker = await start_worker(store)
    await worker.take_one()
    await store.shorten_leases([worker.worker_id])
    await worker.beat()
    await job_comes_back(store)
    assert await losses_of(store, "1") == 1


async def test_outage_of_redis_counts_against_no_job(store: JobStore) -> None:
    await enqueue(store, "1")
    worker = await start_worker(store)
    await worker.take_one()
    await end_lease(store, worker.worker_id)
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", await now_ms(store) - 60_000)
    assert (await store.reap_workers()).put_off_until_ms is not None
    await worker.beat()
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).workers == 0
    assert await losses_of(store, "1") == 0


# Reasons that are not


async def test_container_whose_end_was_not_observed_counts_like_a_lost_worker(store: JobStore) -> None:
    await enqueue(store, "1")
    worker = await start_worker(store)
    await worker.take_one()
    await store.reap_workers(DeathCertificate(worker.identity, is_explained=False))
    fields = await job_fields(store, "1")
    assert fields["losses"] == "1"
    assert "suspect" not in fields


async def test_history_tells_a_lost_machine_from_a_lost_worker(store: JobStore) -> None:
    """Its workers renewed at different times, so that they are reaped one after the other."""
    workers = [await start_worker(store, f"worker-{number}") for number in range(3)]
    await start_worker(store, "living")
    for number, worker in enumerate(workers):
        await enqueue(store, str(number))
        await worker.take_one()
        # Healthy ones have two thirds of a lease left.
        await ask(store, "ZADD", store.keys.leases, await now_ms(store) + 5000, worker.worker_id)
    for worker in workers:
        await lose(store, worker)
    for number in range(3):
        (loss,) = json.loads((await job_fields(store, str(number)))["loss_history"])
        assert (loss["worker_id"], loss["other_jobs"], loss["other_workers"]) == (f"worker-{number}", 0, 2)


async def test_unreadable_values_keep_no_job_from_being_requeued(store: JobStore) -> None:
    store.settings.worker_lost_limit = 1
    await enqueue(store, "1")
    await ask(store, "HSET", "rrq:job:1", "losses", "many", "loss_history", "[1, {}")
    await ask(store, "HSET", store.keys.guard, "lost_ms", "today", "lost_workers", "all")
    await lose_times(store, 1)
    assert await is_queued(store, "1")
    await ask(store, "HSET", "rrq:job:1", "loss_history", '[7, {}, {"at": {}, "worker_id": []}]')
    await lose_times(store, 1, first=2)
    assert await dead_letters(store) == ["1"]
    assert "worker-2" in (await job_fields(store, "1"))["last_error"]
