"""Reaping: jobs of dead workers come back, jobs of living ones do not, and blame is fair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    dead_letters,
    end_lease,
    enqueue,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    new_job,
    now_ms,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.broker.messages import ClaimCode, DeathCertificate, LeaseState
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from rrq.embedded import EmbeddedRedis

CRASH = {"signal": 9, "exit_code": None, "rss_bytes": 123_456}


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def open_store(server: EmbeddedRedis, lease_seconds: float) -> JobStore:
    return JobStore(
        RRQSettings(
            redis_dsn=server.dsn,
            worker_lease_seconds=lease_seconds,
            redis_socket_timeout_seconds=5,
        )
    )


@pytest.fixture
async def own_store(own_redis: EmbeddedRedis) -> AsyncIterator[JobStore]:
    store = await open_store(own_redis, 15)
    yield store
    await store.aclose()


async def crash(worker: SteppedWorker, cause: dict[str, Any] | None = None) -> None:
    """The worker died and somebody who knows has said so."""
    await worker.store.reap_workers(DeathCertificate(worker.identity, CRASH if cause is None else cause))


# Lease end


async def test_nothing_of_a_reaped_worker_remains(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await store.cancel_job("1")
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    await store.reap_workers()
    left = [key for key in await snapshot(store) if worker.worker_id in key]
    assert left == []
    assert await ask(store, "ZCARD", store.keys.leases) == 0
    assert await store.get_active_workers() == []


async def test_returned_job_wakes_a_waiting_worker(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await (await start_worker(store, "waiter")).claim(wait_ms=60_000)
    await crash(worker)
    assert await tokens(store) == 1


async def test_active_entries_that_are_no_longer_true_bring_nothing_back(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "mine", "of-another", "ended", "no-hash", "bad")
    await worker.take(5)
    await ask(store, "HSET", "rrq:job:of-another", "worker_id", "another")
    await ask(store, "SET", "rrq:lock:job:of-another", "another")
    await ask(store, "HSET", "rrq:job:ended", "status", "COMPLETED")
    await ask(store, "DEL", "rrq:job:no-hash", "rrq:job:bad")
    await ask(store, "SET", "rrq:job:bad", "precious")
    report = await store.reap_workers(DeathCertificate(worker.identity))
    assert (report.returned, report.workers) == (1, 1)
    assert await store.get_queued_job_ids(QUEUE) == ["mine"]
    assert await store.get_job_lock_owner("of-another") == "another"
    assert await ask(store, "GET", "rrq:job:bad") == b"precious"


async def test_sweep_pauses_after_so_many_jobs_and_goes_on(store: JobStore, worker: SteppedWorker) -> None:
    other = await start_worker(store, "worker-b")
    await enqueue(store, *(f"job-{number:04}" for number in range(700)))
    assert len(await worker.take(400)) == 400
    assert len(await other.take(300)) == 300
    await end_lease(store, worker.worker_id)
    await end_lease(store, other.worker_id)
    await let_the_fleet_beat(store)
    first = await store.reap_workers()
    assert (first.returned, first.workers, first.has_more) == (500, 1, True)
    await let_the_fleet_beat(store)
    second = await store.reap_workers()
    assert (second.returned, second.workers, second.has_more) == (200, 1, False)
    assert await ask(store, "ZCARD", QUEUE) == 700


# The outage guard (rule 7)


async def has_come_back(worker: SteppedWorker) -> None:
    await worker.store.reconcile_worker(worker.identity, [])


async def goes(worker: SteppedWorker) -> None:
    await worker.store.deregister_worker(worker.identity)


async def dies(worker: SteppedWorker) -> None:
    await worker.store.reap_workers(DeathCertificate(worker.identity))


@pytest.mark.parametrize("ends", [has_come_back, goes, dies])
async def test_claims_are_answered_after_a_restart_when_nobody_is_missing(
    store: JobStore, worker: SteppedWorker, ends: Callable[[SteppedWorker], Awaitable[None]]
) -> None:
    other = await start_worker(store, "other")
    await enqueue(store, "1")
    await ask(store, "HSET", store.keys.guard, "run_id", "of-the-server-before")
    await worker.beat()
    await has_come_back(worker)
    assert (await worker.claim()).code is ClaimCode.TOO_EARLY, "the other one may hold the job"
    await ends(other)
    claim = await worker.claim()
    assert claim.code is ClaimCode.ANSWERED
    assert len(claim.jobs) == 1
    assert not await ask(store, "EXISTS", store.keys.awaited)


@pytest.mark.parametrize(
    ("waited_for_ms", "code"), [(5000, ClaimCode.TOO_EARLY), (-5000, ClaimCode.ANSWERED)]
)
async def test_a_wait_after_a_restart_in_whose_middle_all_fell_silent_begins_anew(
    store: JobStore, worker: SteppedWorker, waited_for_ms: int, code: ClaimCode
) -> None:
    other = await start_worker(store, "other")
    await enqueue(store, "1")
    await ask(store, "HSET", store.keys.guard, "run_id", "of-the-server-before")
    await worker.beat()
    # So long ago, with the other one still missing and so much of the wait to go, or none since then.
    fell_silent_ms = await now_ms(store) - 60_000
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", fell_silent_ms)
    await ask(store, "HSET", store.keys.guard, "claim_not_before_ms", fell_silent_ms + waited_for_ms)
    await ask(store, "DEL", store.keys.awaited)
    await worker.beat()
    await has_come_back(worker)
    assert (await worker.claim()).code is code
    await has_come_back(other)
    # A claim leaves nothing for the next one, but is answered.
    assert (await worker.claim()).code is ClaimCode.ANSWERED


@pytest.fixture
async def operator(store: JobStore) -> AsyncIterator[JobStore]:
    """A store with other settings than those of the workers, as an operator has it."""
    operator = JobStore(RRQSettings(redis_dsn=store.settings.redis_dsn))
    yield operator
    await operator.aclose()


async def fall_silent(worker: SteppedWorker) -> None:
    """Beat for the last time, with a lease of half a second, and die."""
    worker.store.settings.worker_lease_seconds = 0.5
    await worker.beat()
    last_beat_ms = int(await ask(worker.store, "HGET", worker.store.keys.guard, "last_beat_ms"))

    async def is_noticeable() -> bool:
        """Whether the silence is longer than half of that lease."""
        return await now_ms(worker.store) - last_beat_ms > 250

    await eventually(is_noticeable, 10, "the clock of Redis stands still")


async def test_jobs_come_back_one_lease_later_when_nobody_is_left_to_beat(
    store: JobStore, operator: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await fall_silent(worker)
    first = await now_ms(store)

    async def is_given_back() -> bool:
        return (await operator.reap_workers()).returned == 1

    await eventually(is_given_back, 10, "each sweep put off the next one", interval_seconds=0.1)
    assert await now_ms(store) >= first + 500, "a living worker had no time to renew"
    assert await is_queued(store, "1")


async def test_sweeps_that_stopped_in_a_silence_tell_of_one_more_outage(
    store: JobStore, operator: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await fall_silent(worker)
    await operator.reap_workers()
    # Redis was away once more, for longer than living workers were given.
    current = await now_ms(store)
    put_off_before = {"reap_not_before_ms": current - 1, "last_sweep_ms": current - 10_000}
    await ask(store, "HSET", store.keys.guard, *(part for pair in put_off_before.items() for part in pair))
    report = await operator.reap_workers()
    assert (report.returned, report.workers) == (0, 0)
    assert report.put_off_until_ms is not None
    assert (await worker.beat()).state is LeaseState.ALIVE


async def test_restart_of_redis_costs_no_living_worker_its_jobs(
    make_redis: Callable[..., EmbeddedRedis],
) -> None:
    server = make_redis(appendonly=True)
    store = await open_store(server, lease_seconds=15)
    try:
        worker = await start_worker(store)
        await enqueue(store, "1")
        await worker.take_one()
        await store.aclose()
        server.restart()
        await end_lease(store, worker.worker_id)
        await let_the_fleet_beat(store)  # as fast as could be: no gap, only another run id
        assert (await worker.beat()).state is LeaseState.ALIVE
        assert (await worker.claim()).code is ClaimCode.TOO_EARLY
        await end_lease(store, worker.worker_id)
        report = await store.reap_workers()
        assert report.workers == 0
        assert report.put_off_until_ms is not None
        assert await worker.in_hand() == {"1"}
    finally:
        await store.aclose()


# Death certificates (rule 6)


async def test_certificate_for_very_many_jobs_says_that_there_is_more(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, *(f"job-{number:04}" for number in range(600)))
    await worker.take(600)
    certificate = DeathCertificate(worker.identity)
    first = await store.reap_workers(certificate)
    assert (first.returned, first.workers, first.has_more) == (500, 0, True)
    second = await store.reap_workers(certificate)
    assert (second.returned, second.workers, second.has_more) == (100, 1, False)


# Fair blame (rule 8)


async def test_job_that_crashes_alone_three_times_is_dead_lettered(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", unique_key="key")
    await store.watch_job("1", wants_event=True)
    for number in range(1, 4):
        await worker.register()
        await worker.take_one()
        report = await store.reap_workers(DeathCertificate(worker.identity, CRASH | {"number": number}))
        assert (report.returned, report.buried, report.workers) == ((1, 0, 1) if number < 3 else (0, 1, 1))
        assert (await job_fields(store, "1"))["crashes"] == str(number)
    assert await dead_letters(store) == ["1"]
    assert not await is_queued(store, "1")
    fields = await job_fields(store, "1")
    assert fields["status"] == "FAILED"
    assert "3 times" in fields["last_error"]
    assert '"signal": 9' in fields["last_error"]
    assert [entry["number"] for entry in json.loads(fields["crash_history"])] == [1, 2, 3]
    assert 0 < await ttl_seconds(store, "rrq:job:1") <= 604_800
    assert await store.get_unique_lock_holder("key") is None
    assert await store.get_job_lock_owner("1") is None
    assert await ask(store, "XLEN", store.keys.events_key("1")) == 1
    assert await ask(store, "HGET", store.keys.counters, "dead") == b"1"


async def test_innocent_job_beside_a_killer_is_never_dead_lettered(store: JobStore) -> None:
    """The killer ends every worker that runs it; its neighbour only ever happened to be there."""
    await enqueue(store, "killer", "neighbour")
    first = await start_worker(store, "first")
    await first.take(2)
    await crash(first)
    for number in range(3):
        worker = await start_worker(store, f"worker-{number}")
        (job,) = await worker.take(2)
        if job.job_id == b"killer":
            await crash(worker)
    assert await dead_letters(store) == ["killer"]
    assert "crashes" not in await job_fields(store, "neighbour")


async def test_last_of_very_many_jobs_in_hand_is_not_blamed_as_if_alone(
    store: JobStore, worker: SteppedWorker
) -> None:
    """Giving back goes in portions; that one job remains for the last portion proves nothing."""
    await store.enqueue_jobs([new_job(f"job-{number:04}") for number in range(501)], "e.1")
    assert len(await worker.take(501)) == 501
    certificate = DeathCertificate(worker.identity, CRASH)
    while (await store.reap_workers(certificate)).has_more:
        pass
    blamed = [
        job_id
        for job_id in await store.get_queued_job_ids(QUEUE)
        if "crashes" in await job_fields(store, job_id)
    ]
    assert blamed == []


# Keys that hold something else


async def test_job_whose_queue_key_holds_something_else_is_dead_lettered_and_not_lost(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    await worker.take(2)
    await ask(store, "SET", QUEUE, "no queue")
    report = await store.reap_workers(DeathCertificate(worker.identity))
    assert (report.returned, report.workers) == (0, 1)
    assert set(await dead_letters(store)) == {"1", "2"}
    fields = await job_fields(store, "1")
    assert fields["status"] == "FAILED"
    assert "holds a string, not a queue" in fields["last_error"]


# A full Redis


async def test_jobs_of_a_dead_worker_come_back_while_redis_is_full(own_store: JobStore) -> None:
    worker, other = await start_worker(own_store), await start_worker(own_store, "other")
    await enqueue(own_store, "1", "2")
    await worker.take_one()
    await other.take_one()
    await end_lease(own_store, other.worker_id)
    await let_the_fleet_beat(own_store)
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    assert (await own_store.reap_workers(DeathCertificate(worker.identity, CRASH))).returned == 1
    assert (await own_store.reap_workers()).returned == 1
    assert await own_store.get_queued_job_ids(QUEUE) == ["1", "2"]
