"""Leases: renewed by heartbeats, given up on leaving, shortened on a hint."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    done,
    due_score,
    end_lease,
    enqueue,
    is_queued,
    job_fields,
    let_the_fleet_beat,
    now_ms,
    start_worker,
    ttl_seconds,
)
from rrq.messages import ClaimCode, DeathCertificate, LeaseState, Verdict
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


@pytest.fixture
async def own_store(own_redis: EmbeddedRedis) -> AsyncIterator[JobStore]:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    yield store
    await store.aclose()


async def lease_end(store: JobStore, worker_id: str = "worker-a") -> float | None:
    score = await ask(store, "ZSCORE", store.keys.leases, worker_id)
    return None if score is None else float(score)


# Heartbeats


async def test_leases_move_back_with_the_clock_so_that_a_dead_worker_keeps_its_jobs_no_longer(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "job")
    dead = await start_worker(store, "dead")
    assert await dead.take(1)
    living_end, dead_end = await lease_end(store), await lease_end(store, "dead")
    assert living_end is not None
    assert dead_end is not None
    # As after a clock that was set back by an hour: all that was stored lies an hour ahead.
    hour_ms = 3_600_000
    guard = store.keys.guard
    await ask(store, "HSET", guard, "last_beat_ms", await now_ms(store) + hour_ms)
    await ask(store, "HSET", guard, "claim_not_before_ms", await now_ms(store) + hour_ms + 1000)
    for worker_id, end in (("worker-a", living_end), ("dead", dead_end)):
        await ask(store, "ZADD", store.keys.leases, end + hour_ms, worker_id)
    await worker.beat()
    moved = await lease_end(store, "dead")
    assert moved is not None
    assert dead_end <= moved < dead_end + 10_000
    not_before = float(await ask(store, "HGET", guard, "claim_not_before_ms"))
    assert await now_ms(store) - 10_000 < not_before < await now_ms(store) + 10_000
    assert await due_score(store, "job") is None, "nobody was taken for dead"


async def test_registration_gives_a_lease_by_the_clock_of_redis(store: JobStore) -> None:
    store.settings.worker_lease_seconds = 20
    before = await now_ms(store)
    reply = await SteppedWorker(store).register()
    after = await now_ms(store)
    assert reply.state is LeaseState.ALIVE
    assert (reply.is_draining, reply.active_count, reply.cancel_job_ids) == (False, 0, ())
    ends = await lease_end(store)
    assert ends is not None
    assert before + 20_000 <= ends <= after + 20_000


async def test_heartbeat_moves_the_end_of_the_lease(store: JobStore, worker: SteppedWorker) -> None:
    first = await lease_end(store)
    await asyncio.sleep(0.005)
    before = await now_ms(store)
    renewal = await store.renew_leases([worker.build_beat()])
    second = await lease_end(store)
    assert first is not None
    assert second is not None
    assert second > first
    assert before <= renewal.now_ms <= await now_ms(store)


async def test_heartbeat_leaves_the_records_that_others_read(store: JobStore) -> None:
    worker = await start_worker(store, pod_uid="pod-1", queues=("emails", QUEUE))
    health, ttl = await store.get_worker_health(worker.worker_id)
    assert health == {"worker_id": worker.worker_id, "status": "polling"}
    assert ttl is not None
    assert 40 <= ttl <= 70
    record = await ask(store, "HGETALL", store.keys.worker_key(worker.worker_id))
    assert record[b"incarnation"].decode() == worker.incarnation
    assert record[b"pod_uid"] == b"pod-1"
    assert record[b"capacity"] == b"10"
    assert json.loads(record[b"queues"]) == ["emails", QUEUE]
    assert 0 < await ttl_seconds(store, store.keys.worker_key(worker.worker_id)) <= 300
    assert await store.get_active_workers() == [worker.worker_id]
    assert set(await store.get_active_queues()) == {"emails", QUEUE}
    ((_, entries),) = await store.consume_monitor_events()
    event = entries[-1][1]
    assert event[b"event_type"] == b"worker_heartbeat"
    assert event[b"worker_id"].decode() == worker.worker_id
    assert abs(float(event[b"timestamp"]) * 1000 - await now_ms(store)) < 60_000


async def test_queues_that_nobody_has_served_for_a_day_are_forgotten(
    store: JobStore, worker: SteppedWorker
) -> None:
    now = await now_ms(store) / 1000
    await ask(store, "ZADD", store.keys.active_queues, now - 90_000, "gone", now - 80_000, "rests")
    await worker.beat()
    names = set(await ask(store, "ZRANGE", store.keys.active_queues, 0, -1))
    assert b"gone" not in names
    assert b"rests" in names


async def test_heartbeat_tells_how_many_jobs_redis_has_down_for_the_worker(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2", "3")
    jobs = await worker.take(3)
    assert (await worker.beat()).active_count == 3
    await worker.finish(done(jobs[0]))
    assert (await worker.beat()).active_count == 2


async def test_heartbeat_tells_that_the_pod_drains(store: JobStore) -> None:
    worker = await start_worker(store, pod_uid="pod-1")
    await store.set_drain("pod-1")
    assert (await worker.beat()).is_draining
    await store.clear_drain("pod-1")
    assert not (await worker.beat()).is_draining


async def test_drain_that_nobody_renews_is_over_by_itself(store: JobStore) -> None:
    await store.set_drain("pod-1", ttl_seconds=30)
    assert 0 < await ttl_seconds(store, store.keys.drain_key("pod-1")) <= 30


async def test_heartbeat_brings_the_jobs_to_cancel_until_they_have_ended(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    jobs = await worker.take(2)
    await store.cancel_job("1")
    assert (await worker.beat()).cancel_job_ids == ("1",)
    assert (await worker.beat()).cancel_job_ids == ("1",)
    await worker.finish(done(jobs[0]))
    assert (await worker.beat()).cancel_job_ids == ()
    assert await ask(store, "EXISTS", store.keys.cancel_key(worker.worker_id)) == 0


async def test_one_call_beats_for_many_workers(store: JobStore, worker: SteppedWorker) -> None:
    reaped = SteppedWorker(store, "reaped")
    fresh = SteppedWorker(store, "fresh")
    twin = SteppedWorker(store, worker.worker_id)
    renewal = await store.renew_leases(
        [
            worker.build_beat(),
            reaped.build_beat(),
            fresh.build_beat(is_registration=True),
            twin.build_beat(is_registration=True),
        ]
    )
    assert [reply.state for reply in renewal.replies] == [
        LeaseState.ALIVE,
        LeaseState.REAPED,
        LeaseState.ALIVE,
        LeaseState.TAKEN,
    ]


async def test_no_workers_to_beat_for_is_no_error(store: JobStore) -> None:
    renewal = await store.renew_leases([])
    assert renewal.replies == ()
    assert renewal.next_lease_end_ms is None


async def test_renewal_tells_when_the_next_lease_ends(store: JobStore, worker: SteppedWorker) -> None:
    other = await start_worker(store, "other")
    await ask(store, "HDEL", store.keys.guard, "reap_not_before_ms")
    soon = await now_ms(store) + 10_000
    await ask(store, "ZADD", store.keys.leases, soon, worker.worker_id)
    renewal = await store.renew_leases([other.build_beat()])
    assert renewal.next_lease_end_ms == soon


async def test_renewal_names_no_time_at_which_a_sweep_would_still_be_put_off(
    store: JobStore, worker: SteppedWorker
) -> None:
    other = await start_worker(store, "other")
    until = await now_ms(store) + 60_000
    await ask(store, "HSET", store.keys.guard, "reap_not_before_ms", until)
    await end_lease(store, worker.worker_id)
    assert (await store.renew_leases([other.build_beat()])).next_lease_end_ms == until


# Reaped, replaced, taken


async def test_reaped_worker_is_told_and_not_brought_back(store: JobStore, worker: SteppedWorker) -> None:
    await store.reap_workers(DeathCertificate(worker.identity))
    assert (await worker.beat()).state is LeaseState.REAPED
    assert await lease_end(store) is None
    assert (await store.get_worker_health(worker.worker_id))[0] is None


async def test_reaped_worker_may_register_again(store: JobStore, worker: SteppedWorker) -> None:
    await store.reap_workers(DeathCertificate(worker.identity))
    assert (await worker.register()).state is LeaseState.ALIVE
    assert (await worker.beat()).state is LeaseState.ALIVE


async def test_late_heartbeat_saves_a_lease_that_nobody_has_swept_yet(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    await end_lease(store, worker.worker_id)
    assert (await worker.beat()).state is LeaseState.ALIVE
    assert await worker.in_hand() == {"1"}


@pytest.mark.parametrize("noticed_by", ["beat", "sweep", "claim"])
async def test_leases_that_a_foreign_hand_took_cost_the_living_nothing_and_the_dead_their_jobs(
    store: JobStore, worker: SteppedWorker, noticed_by: str
) -> None:
    dead = await start_worker(store, "dead")
    await enqueue(store, "1", "2")
    (kept,), _ = await worker.take(), await dead.take()
    await ask(store, "DEL", store.keys.leases)
    await ask(store, "SET", store.keys.leases, "precious")
    match noticed_by:
        case "beat":
            await (await start_worker(store, "another")).beat()
        case "sweep":
            await store.reap_workers()
        case "claim":
            assert (await worker.claim()).code is ClaimCode.LEASE_LOST
    assert (await worker.beat()).state is LeaseState.ALIVE
    ends_ms = await lease_end(store, "dead")
    assert ends_ms is not None
    lease_ms = store.settings.worker_lease_seconds * 1000
    assert 0 < ends_ms - await now_ms(store) <= lease_ms
    twin = SteppedWorker(store, "dead")
    assert (await twin.register()).state is LeaseState.TAKEN, "it may be alive as far as anybody knows"
    await end_lease(store, "dead")
    await let_the_fleet_beat(store)
    assert (await store.reap_workers()).returned == 1
    assert await is_queued(store, "2")
    assert await worker.finish(done(kept)) == [Verdict.STORED]
    assert await ask(store, "GET", f"{store.keys.leases}:unreadable") == b"precious"


async def test_a_worker_without_a_lease_but_with_its_record_gets_another(
    store: JobStore, worker: SteppedWorker
) -> None:
    other = await start_worker(store, "other")
    await ask(store, "ZREM", store.keys.leases, worker.worker_id)
    assert (await worker.beat()).state is LeaseState.ALIVE
    assert await lease_end(store) is not None
    assert (await other.beat()).state is LeaseState.ALIVE


async def test_workers_that_never_had_a_lease_are_given_none(store: JobStore) -> None:
    """Those of 0.7 are in the same book, and would have their jobs taken away when it ends."""
    await store.register_active_worker("of-07")
    await start_worker(store)
    assert await lease_end(store, "of-07") is None


async def test_id_of_a_living_worker_cannot_be_taken(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    twin = SteppedWorker(store, worker.worker_id)
    assert (await twin.register()).state is LeaseState.TAKEN
    assert (await worker.beat()).state is LeaseState.ALIVE
    assert (await twin.claim()).code is ClaimCode.LEASE_LOST
    assert (await twin.beat()).state is LeaseState.REAPED
    assert (await job_fields(store, "1"))["attempt_token"] == job.token


async def test_same_process_may_register_twice_and_keeps_its_jobs(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1")
    await worker.take_one()
    reply = await worker.register()
    assert (reply.state, reply.active_count) == (LeaseState.ALIVE, 1)


async def test_new_process_under_the_id_of_a_dead_one_gives_its_jobs_back(
    store: JobStore, worker: SteppedWorker
) -> None:
    (due_ms,) = await enqueue(store, "1")
    await worker.take_one()
    await end_lease(store, worker.worker_id)
    successor = SteppedWorker(store, worker.worker_id)
    reply = await successor.register()
    assert (reply.state, reply.active_count) == (LeaseState.ALIVE, 0)
    assert await due_score(store, "1") == due_ms
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    assert (await worker.beat()).state is LeaseState.REAPED


# Leaving


async def test_worker_that_leaves_empty_handed_leaves_nothing(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    job = await worker.take_one()
    await store.cancel_job("1")
    await worker.finish(done(job))
    assert await store.deregister_worker(worker.identity) == 0
    assert await lease_end(store) is None
    assert await store.get_active_workers() == []
    keys = store.keys
    for key in (
        keys.worker_key(worker.worker_id),
        keys.health_key(worker.worker_id),
        keys.cancel_key(worker.worker_id),
        keys.control_key(worker.worker_id),
        keys.active_jobs_key(worker.worker_id),
    ):
        assert await ask(store, "EXISTS", key) == 0, key


async def test_lease_stays_while_a_leaving_worker_still_runs_jobs(
    store: JobStore, worker: SteppedWorker
) -> None:
    await enqueue(store, "1", "2")
    await worker.take(2)
    before = await lease_end(store)
    assert await store.deregister_worker(worker.identity) == 2
    assert await lease_end(store) == before
    assert await worker.in_hand() == {"1", "2"}
    assert not await is_queued(store, "1")
    assert (await store.get_worker_health(worker.worker_id))[0] is None


async def test_earlier_process_cannot_deregister_its_successor(
    store: JobStore, worker: SteppedWorker
) -> None:
    await end_lease(store, worker.worker_id)
    successor = await start_worker(store, worker.worker_id)
    await store.deregister_worker(worker.identity)
    assert (await successor.beat()).state is LeaseState.ALIVE
    assert (await store.get_worker_health(worker.worker_id))[0] is not None


async def test_leaving_twice_is_harmless(store: JobStore, worker: SteppedWorker) -> None:
    assert await store.deregister_worker(worker.identity) == 0
    assert await store.deregister_worker(worker.identity) == 0


# Hints


async def test_hint_shortens_a_lease_to_one_renewal(store: JobStore, worker: SteppedWorker) -> None:
    store.settings.worker_lease_renewal_seconds = 2.0
    await start_worker(store, "other")
    before = await now_ms(store)
    assert await store.shorten_leases([worker.worker_id, "unknown"]) == 1
    ends = await lease_end(store)
    assert ends is not None
    assert before + 2000 <= ends <= await now_ms(store) + 2000
    assert await lease_end(store, "unknown") is None


async def test_renewal_voids_the_hint(store: JobStore, worker: SteppedWorker) -> None:
    await store.shorten_leases([worker.worker_id])
    before = await now_ms(store)
    assert (await worker.beat()).state is LeaseState.ALIVE
    ends = await lease_end(store)
    assert ends is not None
    assert ends > before + 10_000


async def test_hint_never_lengthens_a_lease(store: JobStore, worker: SteppedWorker) -> None:
    await end_lease(store, worker.worker_id)
    before = await lease_end(store)
    assert await store.shorten_leases([worker.worker_id]) == 0
    assert await lease_end(store) == before


async def test_hint_about_nobody_is_no_error(store: JobStore) -> None:
    assert await store.shorten_leases([]) == 0


async def test_shortened_lease_ends_and_its_jobs_run_elsewhere(store: JobStore) -> None:
    store.settings.worker_lease_seconds = 60
    store.settings.worker_lease_renewal_seconds = 0.2
    lost, living = await start_worker(store, "lost"), await start_worker(store, "living")
    await enqueue(store, "1")
    await lost.take_one()
    await ask(store, "HDEL", store.keys.guard, "reap_not_before_ms")
    await store.shorten_leases(["lost"])
    deadline = await now_ms(store) + 30_000
    while not (report := await store.reap_workers()).returned and await now_ms(store) < deadline:
        await living.beat()
        await asyncio.sleep(0.02)
    assert (report.returned, report.workers) == (1, 1)
    assert await is_queued(store, "1")


# A full Redis


async def test_worker_stays_alive_while_redis_is_full(own_store: JobStore) -> None:
    """Or a full Redis would stop being drained after one lease, just when it is needed most."""
    worker = await start_worker(own_store)
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    before = await lease_end(own_store)
    await asyncio.sleep(0.005)
    assert (await worker.beat()).state is LeaseState.ALIVE
    after = await lease_end(own_store)
    assert before is not None
    assert after is not None
    assert after > before


async def test_worker_can_start_while_redis_is_full(own_store: JobStore) -> None:
    await enqueue(own_store, "1")
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    worker = await start_worker(own_store)
    assert (await worker.take_one()).job_id == b"1"
    assert await own_store.deregister_worker(worker.identity) == 1
