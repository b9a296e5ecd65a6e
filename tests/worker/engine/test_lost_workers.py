"""A job that ends its worker leaves no worker to report it: losses for no known reason are counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    SteppedWorker,
    ask,
    back,
    cancelled,
    dead,
    dead_letters,
    done,
    end_lease,
    enqueue,
    ids,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    now_ms,
    retry,
    start_worker,
    unknown_function,
)
from rrq.broker.messages import DeathCertificate
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rrq.broker.messages import ClaimedJob, Outcome
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


async def start_pod(store: JobStore, uid: str = "pod") -> tuple[SteppedWorker, SteppedWorker]:
    """Two processes of one pod."""
    first = await start_worker(store, f"{uid}-first", pod_uid=uid)
    return first, await start_worker(store, f"{uid}-second", pod_uid=uid)


async def certify_all(store: JobStore, *workers: SteppedWorker) -> None:
    """The kubelet reports how the container ended."""
    for worker in workers:
        cause = {"exit_code": 137, "reason": "OOMKilled"}
        await store.reap_workers(DeathCertificate(worker.identity, cause))


async def certify_unseen(store: JobStore, *workers: SteppedWorker) -> None:
    """The next container of the pod reports that the one before it has ended."""
    for worker in workers:
        await store.reap_workers(DeathCertificate(worker.identity, is_explained=False))


async def run_pods(
    store: JobStore, times: int, end_pod: Callable[..., Awaitable[None]], *, is_busy: bool = False
) -> list[str]:
    """Run so many pods, one after the other, each ended by the job "killer" if it has that; returns what was done."""
    finished: list[str] = []
    for number in range(times):
        pod = await start_pod(store, f"pod-{number}")
        if is_busy:
            await enqueue(store, f"neighbour-{number}")
        taken = [(worker, job) for worker in pod for job in await worker.take(1)]
        if "killer" in ids([job for _, job in taken]):
            # One after the other, and not together.
            await ask(store, "HDEL", store.keys.guard, "lost_ms")
            await end_pod(store, *pod)
            continue
        for worker, job in taken:
            await worker.finish(done(job))
            finished += ids([job])
    return finished


@pytest.mark.parametrize("end_pod", [lose, certify_all, certify_unseen])
async def test_job_that_ends_its_pod_takes_no_neighbour_in_another_process_to_the_dead_letters(
    store: JobStore, end_pod: Callable[..., Awaitable[None]]
) -> None:
    await enqueue(store, "killer", "innocent")
    assert await run_pods(store, 15, end_pod) == ["innocent"]
    assert await dead_letters(store) == ["killer"]


@pytest.mark.parametrize("end_pod", [lose, certify_unseen])
@pytest.mark.parametrize("innocent", ["a", "z"])
async def test_job_that_lost_its_machines_before_is_not_taken_for_the_killer_of_its_pod(
    store: JobStore, end_pod: Callable[..., Awaitable[None]], innocent: str
) -> None:
    """While the other is no suspect yet, both run in one pod."""
    await enqueue(store, innocent)
    await lose_times(store, store.settings.worker_lost_limit)
    await enqueue(store, "killer")
    assert await run_pods(store, 15, end_pod) == [innocent]
    assert await dead_letters(store) == ["killer"]


async def test_job_that_ends_pods_whose_other_processes_are_busy_is_dead_lettered_in_the_end(
    store: JobStore,
) -> None:
    store.settings.worker_lost_limit = 2
    await enqueue(store, "killer")
    await run_pods(store, 8, lose, is_busy=True)
    assert await dead_letters(store) == ["killer"]
    (what, *_) = (await job_fields(store, "killer"))["last_error"].splitlines()
    assert "was lost 5 times" in what
    assert "the last time the job ran as the only suspect of its pod" in what


async def enqueue_suspects(store: JobStore, *job_ids: str) -> None:
    await enqueue(store, *job_ids)
    for job_id in job_ids:
        await ask(store, "HSET", store.keys.job_key(job_id), "suspect", "1")


async def test_one_process_of_a_pod_runs_a_suspect_while_the_others_run_other_jobs(store: JobStore) -> None:
    await enqueue_suspects(store, "1", "2", "3")
    first, second = await start_pod(store)
    elsewhere, in_no_pod = await start_worker(store, "elsewhere", pod_uid="other"), await start_worker(store)
    assert ids(await first.take(5)) == ["1"]
    claim = await second.claim(5)
    assert (claim.jobs, claim.make_room_for) == ([], [])
    assert (await second.claim(1, job_ids=["2"])).jobs == []
    await enqueue(store, "usual")
    assert ids(await second.take(5)) == ["usual"]
    assert ids(await elsewhere.take(5)) == ["2"]
    assert ids(await in_no_pod.take(5)) == ["3"]


@pytest.mark.parametrize("outcome", [done, retry, dead, cancelled, back, unknown_function, None])
async def test_next_suspect_of_a_pod_starts_when_the_one_before_has_ended(
    store: JobStore, outcome: Callable[[ClaimedJob], Outcome] | None
) -> None:
    await enqueue_suspects(store, "1", "2")
    first, second = await start_pod(store)
    job = await first.take_one()
    assert await second.take() == []
    if outcome is None:
        await certify_all(store, first)
    else:
        await first.finish(outcome(job))
    assert len((await second.claim(1, job_ids=["2"])).jobs) == 1


async def test_suspect_that_is_lost_out_of_its_place_is_not_dead_lettered(store: JobStore) -> None:
    """Redis has forgotten who took the place, and may have given it to another suspect."""
    store.settings.worker_lost_limit = 1
    await enqueue(store, "1")
    for number in range(4):
        worker = await start_worker(store, f"worker-{number}", pod_uid="pod")
        assert len(await worker.take()) == 1
        await ask(store, "DEL", store.keys.suspect_key("pod"))
        await lose(store, worker)
    assert await dead_letters(store) == []
    assert await losses_of(store, "1") == 4


async def test_suspect_that_is_lost_in_company_is_not_dead_lettered(store: JobStore) -> None:
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


@pytest.mark.parametrize("command", ["SET", "HSET"])
async def test_what_another_program_wrote_into_the_place_for_suspects_is_no_suspect(
    store: JobStore, command: str
) -> None:
    await enqueue_suspects(store, "1")
    worker = await start_worker(store, pod_uid="pod")
    key = store.keys.suspect_key("pod")
    await ask(store, *({"SET": ("SET", key, "x"), "HSET": ("HSET", key, "attempt", "x")}[command]))
    assert ids(await worker.take()) == ["1"]
    assert (
        await ask(store, "HGET", key, "attempt")
        == f"{(await job_fields(store, '1'))['attempt_token']} 1".encode()
    )
    assert 0 < await ask(store, "TTL", key) <= 360
