"""Leases: renewed by heartbeats, given up on leaving, shortened on a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    SteppedWorker,
    ask,
    done,
    end_lease,
    enqueue,
    is_queued,
    let_the_fleet_beat,
    now_ms,
    start_worker,
)
from rrq.broker.messages import ClaimCode, LeaseState, Verdict
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

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


async def test_queues_that_nobody_has_served_for_a_day_are_forgotten(
    store: JobStore, worker: SteppedWorker
) -> None:
    now = await now_ms(store) / 1000
    await ask(store, "ZADD", store.keys.active_queues, now - 90_000, "gone", now - 80_000, "rests")
    await worker.beat()
    names = set(await ask(store, "ZRANGE", store.keys.active_queues, 0, -1))
    assert b"gone" not in names
    assert b"rests" in names


async def test_heartbeat_tells_that_the_pod_drains(store: JobStore) -> None:
    worker = await start_worker(store, pod_uid="pod-1")
    await store.set_drain("pod-1")
    assert (await worker.beat()).is_draining
    await store.clear_drain("pod-1")
    assert not (await worker.beat()).is_draining


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


@pytest.mark.parametrize("noticed_by", ["beat", "sweep", "claim"])
async def test_leases_that_another_program_took_cost_the_living_nothing_and_the_dead_their_jobs(
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


async def test_workers_that_never_had_a_lease_are_given_none(store: JobStore) -> None:
    """Those of 0.7 are in the same book, and would have their jobs taken away when it ends."""
    await store.register_active_worker("of-07")
    await start_worker(store)
    assert await lease_end(store, "of-07") is None


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


# A full Redis


async def test_worker_stays_alive_while_redis_is_full(own_store: JobStore) -> None:
    """Or a full Redis would stop being drained after one lease, just when it is needed most."""
    worker = await start_worker(own_store)
    await ask(own_store, "CONFIG SET", "maxmemory", "1")
    before = await lease_end(own_store)
    began_ms = await now_ms(own_store)

    async def is_later() -> bool:
        return await now_ms(own_store) > began_ms

    await eventually(is_later, 10, "the clock of Redis stands still", interval_seconds=0.001)
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
