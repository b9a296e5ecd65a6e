"""Reaping: jobs of dead workers come back, jobs of living ones do not, and blame is fair."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    dead_letters,
    done,
    due_score,
    end_lease,
    enqueue,
    ids,
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
from rrq.flow import Limit
from rrq.messages import ClaimCode, DeathCertificate, LeaseState
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


async def test_job_of_a_worker_whose_lease_ended_is_due_as_before(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await ask(store, "ZADD", QUEUE, 1234.5, "1")
    job = await worker.take_one()
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    report = await store.reap_workers()
    assert (report.returned, report.buried, report.workers) == (1, 0, 1)
    assert not report.has_more
    assert report.put_off_until_ms is None
    assert await due_score(store, "1") == 1234.5
    assert await store.get_job_lock_owner("1") is None
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")
    assert worker.worker_id in fields["last_error"]
    assert fields["attempt_token"] != job.token
    assert not {"worker_id", "start_time", "claimed_score", "suspect"} & set(fields)
    counters = await ask(store, "HGETALL", store.keys.counters)
    assert counters[b"reaped"] == b"1"


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


async def test_living_workers_are_left_alone(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await let_the_fleet_beat(store)
    report = await store.reap_workers()
    assert (report.returned, report.workers) == (0, 0)
    assert await worker.in_hand() == {"1"}


async def test_lease_renewed_before_the_sweep_is_not_reaped(store: JobStore, worker: SteppedWorker) -> None:
    """The end of a lease is read in the script, not by the one who plans the sweep."""
    await enqueue(store, "1")
    await worker.take_one()
    await end_lease(store, worker.worker_id)
    await worker.beat()
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).workers == 0


async def test_expiry_never_survives_on_a_returned_job(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await ask(store, "EXPIRE", "rrq:job:1", 100)
    await crash(worker)
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_returned_job_wakes_a_waiting_worker(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await (await start_worker(store, "waiter")).claim(wait_ms=60_000)
    await crash(worker)
    assert await tokens(store) == 1


async def test_unique_lock_stays_with_a_returned_job(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", unique_key="key")
    await worker.take_one()
    await crash(worker)
    assert await store.get_unique_lock_holder("key") == "1"


async def test_returned_job_goes_to_the_queue_it_was_claimed_from(store: JobStore) -> None:
    worker = await start_worker(store, queues=("other",))
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    await store.add_job_to_queue("other", "1", 5.0)
    await worker.take_one()
    await crash(worker)
    assert await due_score(store, "1", "other") == 5.0
    assert not await is_queued(store, "1")


async def test_job_marked_for_cancellation_does_not_come_back(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", unique_key="key", result_ttl_seconds=50)
    await worker.take_one()
    await store.cancel_job("1")
    await store.reap_workers(DeathCertificate(worker.identity))
    assert (await job_fields(store, "1"))["status"] == "CANCELLED"
    assert not await is_queued(store, "1")
    assert await store.get_unique_lock_holder("key") is None
    assert 20 <= await ttl_seconds(store, "rrq:job:1") <= 50


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


async def test_id_enqueued_again_while_its_worker_died_keeps_its_new_entry(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    (due_ms,) = await enqueue(store, "1", due="+60000")
    await store.reap_workers(DeathCertificate(worker.identity))
    assert await due_score(store, "1") == due_ms
    assert await store.get_job_lock_owner("1") is None


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


async def test_sweep_is_put_off_when_nobody_has_beaten_for_a_while(
    store: JobStore, worker: SteppedWorker
) -> None:
    """After an outage all leases have ended at once; the sweep in the socket comes before any beat."""
    await enqueue(store, "1")
    await worker.take_one()
    await end_lease(store, worker.worker_id)
    current = await now_ms(store)
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", current - 8000)
    report = await store.reap_workers()
    assert (report.returned, report.workers) == (0, 0)
    assert report.put_off_until_ms is not None
    assert current + 15_000 <= report.put_off_until_ms <= await now_ms(store) + 15_000
    assert (await worker.beat()).state is LeaseState.ALIVE
    assert await worker.in_hand() == {"1"}


@pytest.mark.parametrize("last_beat", ["never", "ahead"])
async def test_sweep_is_put_off_when_time_makes_no_sense(
    store: JobStore, worker: SteppedWorker, last_beat: str
) -> None:
    await end_lease(store, worker.worker_id)
    if last_beat == "never":
        await ask(store, "DEL", store.keys.guard)
    else:
        await ask(store, "HSET", store.keys.guard, "last_beat_ms", await now_ms(store) + 60_000)
    report = await store.reap_workers()
    assert report.workers == 0
    assert report.put_off_until_ms is not None


async def test_first_beat_after_a_gap_gives_everybody_one_lease_of_time(
    store: JobStore, worker: SteppedWorker
) -> None:
    other = await start_worker(store, "other")
    await end_lease(store, other.worker_id)
    guard = store.keys.guard
    await let_the_fleet_beat(store)
    before = await now_ms(store)
    await ask(store, "HSET", guard, "last_beat_ms", before - 8000)
    await worker.beat()
    until = int(await ask(store, "HGET", guard, "reap_not_before_ms"))
    assert until >= before + 15_000
    # Beats have come back, the grace has not passed yet.
    await worker.beat()
    report = await store.reap_workers()
    assert (report.workers, report.put_off_until_ms) == (0, until)
    assert (await worker.claim()).code is ClaimCode.ANSWERED
    await ask(store, "HSET", guard, "reap_not_before_ms", await now_ms(store) - 1)
    assert (await store.reap_workers()).workers == 1


async def test_restarted_server_puts_off_sweeps_and_claims(store: JobStore, worker: SteppedWorker) -> None:
    guard = store.keys.guard
    await let_the_fleet_beat(store)
    await ask(store, "HSET", guard, "run_id", "of-the-server-before")
    before = await now_ms(store)
    await worker.beat()
    after = await now_ms(store)
    assert int(await ask(store, "HGET", guard, "reap_not_before_ms")) >= before + 15_000
    not_before = int(await ask(store, "HGET", guard, "claim_not_before_ms"))
    assert before + 10_000 <= not_before <= after + 10_000
    assert (await worker.claim()).code is ClaimCode.TOO_EARLY
    # Once seen, the new run id is the known one.
    await let_the_fleet_beat(store)
    await worker.beat()
    assert await ask(store, "HGET", guard, "claim_not_before_ms") is None


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


async def test_what_falls_due_after_a_restart_need_not_wait_for_those_who_are_missing(
    store: JobStore, worker: SteppedWorker
) -> None:
    await start_worker(store, "other")
    await enqueue(store, "due before")
    await ask(store, "HSET", store.keys.guard, "run_id", "of-the-server-before")
    await worker.beat()
    await has_come_back(worker)
    until_ms = int(await ask(store, "HGET", store.keys.guard, "claim_not_before_ms"))
    assert await now_ms(store) < until_ms
    restarted_ms = int(await ask(store, "HGET", store.keys.guard, "restarted_ms"))
    while await now_ms(store) <= restarted_ms:
        pass  # what falls due in the same millisecond may have been due before
    await enqueue(store, "due since")
    claim = await worker.claim(wait_ms=60_000)
    assert (claim.code, ids(claim.jobs)) == (ClaimCode.TOO_EARLY, ["due since"])
    assert claim.next_due_ms == until_ms
    assert not claim.more_due, "nothing else may be had now"
    assert not await ask(store, "EXISTS", store.keys.waiting_key(QUEUE)), "who polls takes no wake-up"
    await worker.finish(done(claim.jobs[0]))
    # Not by its name either.
    assert (await worker.claim(job_ids=["due before"])).jobs == []
    await ask(store, "HSET", store.keys.guard, "claim_not_before_ms", await now_ms(store) - 1)
    assert ids(await worker.take()) == ["due before"]


async def test_where_limits_hold_everything_waits_after_a_restart(
    store: JobStore, worker: SteppedWorker
) -> None:
    await start_worker(store, "other")
    await store.set_limit("function:work", Limit(concurrency=1))
    await ask(store, "HSET", store.keys.guard, "run_id", "of-the-server-before")
    await worker.beat()
    await has_come_back(worker)
    await enqueue(store, "due since")
    claim = await worker.claim()
    assert (claim.code, claim.jobs) == (ClaimCode.TOO_EARLY, []), "the other one may have the only slot"


async def test_after_a_restart_with_a_clock_set_back_everything_waits(
    store: JobStore, worker: SteppedWorker
) -> None:
    await start_worker(store, "other")
    await ask(store, "HSET", store.keys.guard, "run_id", "of-the-server-before")
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", await now_ms(store) + 60_000)
    await worker.beat()
    await enqueue(store, "due since")
    claim = await worker.claim()
    assert (claim.code, claim.jobs) == (ClaimCode.TOO_EARLY, []), "by the clock before it may have been due"


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


async def test_gap_alone_does_not_put_off_claims(store: JobStore, worker: SteppedWorker) -> None:
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", await now_ms(store) - 60_000)
    await worker.beat()
    assert await ask(store, "HGET", store.keys.guard, "claim_not_before_ms") is None


async def test_proof_of_death_is_exempt_from_the_guard(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await ask(store, "HSET", store.keys.guard, "reap_not_before_ms", await now_ms(store) + 60_000)
    report = await store.reap_workers(DeathCertificate(worker.identity))
    assert (report.returned, report.workers, report.put_off_until_ms) == (1, 1, None)


async def shorten_leases(store: JobStore, *workers: SteppedWorker) -> None:
    """Let leases be over soon, now that nothing is claimed any more for which they must not be."""
    store.settings.worker_lease_seconds = 0.6
    for worker in workers:
        await worker.beat()


async def test_frozen_redis_costs_no_living_worker_its_jobs(
    own_redis: EmbeddedRedis, own_store: JobStore
) -> None:
    worker = await start_worker(own_store)
    await enqueue(own_store, "1")
    await worker.take_one()
    await shorten_leases(own_store, worker)
    await ask(own_store, "HDEL", own_store.keys.guard, "reap_not_before_ms")
    own_redis.pause()
    # Both calls wait in the socket while time runs on: the sweep will be answered first.
    sweep = asyncio.create_task(own_store.reap_workers())
    await asyncio.sleep(0.9)  # longer than the lease of 0.6 s
    own_redis.resume()
    report = await sweep
    assert (report.returned, report.workers) == (0, 0)
    assert report.put_off_until_ms is not None
    assert (await worker.beat()).state is LeaseState.ALIVE
    assert await worker.in_hand() == {"1"}


async def test_worker_that_stays_away_after_an_outage_is_reaped_one_lease_later(
    own_redis: EmbeddedRedis, own_store: JobStore
) -> None:
    lost, living = await start_worker(own_store, "lost"), await start_worker(own_store, "living")
    await enqueue(own_store, "1")
    await lost.take_one()
    await shorten_leases(own_store, lost, living)
    own_redis.pause()
    await asyncio.sleep(0.5)  # more than half of the lease without a beat
    own_redis.resume()
    await living.beat()
    put_off = (await own_store.reap_workers()).put_off_until_ms
    assert put_off is not None

    async def is_given_back() -> bool:
        await living.beat()
        return (await own_store.reap_workers()).returned == 1

    await eventually(is_given_back, 20, interval_seconds=0.05)
    assert await now_ms(own_store) >= put_off
    assert await is_queued(own_store, "1")


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
    await asyncio.sleep(0.3)  # more than half of that lease, so that the silence is noticed


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


async def test_a_beat_does_not_put_off_again_what_sweeps_wait_for(
    store: JobStore, operator: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await fall_silent(worker)
    put_off = (await operator.reap_workers()).put_off_until_ms
    assert put_off is not None
    await start_worker(store, "successor")
    assert int(await ask(store, "HGET", store.keys.guard, "reap_not_before_ms")) == put_off


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


async def test_what_a_foreign_hand_wrote_does_not_put_off_sweeps_for_ever(
    store: JobStore, operator: JobStore, worker: SteppedWorker
) -> None:
    long_ago = await now_ms(store) - 60_000
    await ask(store, "HSET", store.keys.guard, "last_beat_ms", long_ago, "lease_ms", "1e300")
    await operator.reap_workers()
    await ask(store, "HSET", store.keys.guard, "reap_not_before_ms", "1e300")
    put_off = (await operator.reap_workers()).put_off_until_ms
    assert put_off is not None
    assert put_off <= await now_ms(store) + 15_000


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


async def test_certificate_for_another_incarnation_does_nothing(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    stranger = SteppedWorker(store, worker.worker_id)
    before = await snapshot(store)
    report = await store.reap_workers(DeathCertificate(stranger.identity, CRASH))
    assert (report.returned, report.buried, report.workers) == (0, 0, 0)
    assert await snapshot(store) == before


async def test_certificate_sent_twice_reaps_once(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    certificate = DeathCertificate(worker.identity, CRASH)
    assert (await store.reap_workers(certificate)).returned == 1
    assert (await store.reap_workers(certificate)).workers == 0
    assert len(json.loads((await job_fields(store, "1"))["crash_history"])) == 1


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


async def test_first_crash_makes_suspects_that_rerun_freely(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2")
    await worker.take(2)
    await crash(worker)
    for job_id in ("1", "2"):
        fields = await job_fields(store, job_id)
        assert fields["suspect"] == "1"
        assert "crashes" not in fields
        assert json.loads(fields["crash_history"]) == [CRASH]
        assert await is_queued(store, job_id)
    await worker.register()
    assert ids(await worker.take(2)) == ["1"]


async def test_crash_without_a_cause_makes_no_suspects(store: JobStore, worker: SteppedWorker) -> None:
    """Drain, node loss and pod deletion say nothing about the jobs."""
    await enqueue(store, "1", "2")
    await worker.take(2)
    report = await store.reap_workers(DeathCertificate(worker.identity, None))
    assert report.returned == 2
    for job_id in ("1", "2"):
        assert not {"suspect", "crashes", "crash_history"} & set(await job_fields(store, job_id))


async def test_lease_end_makes_no_suspects_at_first(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    for _ in range(4):
        await worker.register()
        await worker.take_one()
        await end_lease(store, worker.worker_id)
        await let_the_fleet_beat(store)
        assert (await store.reap_workers()).returned == 1
    assert not {"suspect", "crashes"} & set(await job_fields(store, "1"))


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


async def test_limit_of_crashes_can_be_set(store: JobStore) -> None:
    store.settings.worker_crash_limit = 1
    worker = await start_worker(store)
    await enqueue(store, "1")
    await worker.take_one()
    await crash(worker)
    assert await dead_letters(store) == ["1"]


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


async def test_crash_in_company_is_not_counted(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2")
    for _ in range(4):
        await worker.register()
        await ask(store, "HDEL", "rrq:job:1", "suspect")
        await ask(store, "HDEL", "rrq:job:2", "suspect")
        assert len(await worker.take(2)) == 2
        await crash(worker)
    assert await dead_letters(store) == []
    assert "crashes" not in await job_fields(store, "1")


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


async def test_history_keeps_the_last_ten_crashes(store: JobStore, worker: SteppedWorker) -> None:
    store.settings.worker_crash_limit = 100
    await enqueue(store, "1")
    for number in range(12):
        await worker.register()
        await worker.take_one()
        await crash(worker, {"number": number})
    history = json.loads((await job_fields(store, "1"))["crash_history"])
    assert [entry["number"] for entry in history] == list(range(2, 12))


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


async def test_history_that_cannot_be_read_starts_anew(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await ask(store, "HSET", store.keys.job_key("1"), "crash_history", "no JSON", "crashes", "no number")
    await crash(worker)
    fields = await job_fields(store, "1")
    assert (fields["crashes"], json.loads(fields["crash_history"])) == ("1", [CRASH])
    assert await is_queued(store, "1")


@pytest.mark.parametrize("is_certified", [True, False])
async def test_record_that_is_no_hash_stops_neither_the_sweep_nor_the_heartbeat_of_others(
    store: JobStore, worker: SteppedWorker, is_certified: bool
) -> None:
    other = await start_worker(store, "other")
    await enqueue(store, "1")
    await worker.take_one()
    await ask(store, "DEL", store.keys.worker_key(worker.worker_id))
    await ask(store, "SET", store.keys.worker_key(worker.worker_id), "no hash")
    assert (await other.beat()).state is LeaseState.ALIVE
    assert (await worker.beat()).state is LeaseState.REAPED
    if is_certified:
        # Nothing tells any more which incarnation it was; its lease decides.
        assert (await store.reap_workers(DeathCertificate(worker.identity))).workers == 0
    await end_lease(store, worker.worker_id)
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).returned == 1
    assert await is_queued(store, "1")
    assert (await worker.register()).state is LeaseState.ALIVE


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
