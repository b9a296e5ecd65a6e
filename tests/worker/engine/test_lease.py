"""Signs of life: the health record, the registries it feeds, and the lease behind it."""

import asyncio
import time
from contextlib import aclosing
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import redis

from queue_steps import lease_end_ms, start_worker
from rrq.broker.messages import Beat, Claim, ClaimRequest, WorkerIdentity
from rrq.client import RRQClient
from rrq.embedded import EmbeddedRedis
from rrq.engine.lease import LeaseKeeper
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import running, stays_true
from waiting import eventually

LEASES = "rrq:workers:lease"


async def health_of(store: JobStore, worker: RRQWorker) -> dict[str, Any] | None:
    record, _ = await store.get_worker_health(worker.worker_id)
    return record


async def test_the_health_record_describes_the_worker_and_its_work(
    settings: RRQSettings, store: JobStore
) -> None:
    settings.worker_concurrency = 7
    worker = RRQWorker(settings, JobRegistry(), queues=["emails", "rrq:queue:slow"])
    async with running(worker):
        record: Any = await eventually(lambda: health_of(store, worker))

        assert record == {
            "worker_id": worker.worker_id,
            "timestamp": record["timestamp"],
            "status": record["status"],
            "active_jobs": 0,
            "concurrency_limit": 7,
            "queues": ["emails", "rrq:queue:slow"],
        }
        assert record["status"] in ("running", "polling")
        moment = datetime.fromisoformat(record["timestamp"])
        assert moment.utcoffset() == timedelta(0)
        assert abs(moment - datetime.now(UTC)) < timedelta(seconds=60)


@pytest.mark.parametrize(("interval_seconds", "ttl_seconds"), [(60, 70), (2.5, 12)])
async def test_the_record_lives_ten_seconds_longer_than_its_interval(
    settings: RRQSettings, store: JobStore, interval_seconds: float, ttl_seconds: int
) -> None:
    settings.worker_health_check_interval_seconds = interval_seconds
    worker = RRQWorker(settings, JobRegistry())
    async with running(worker):
        await eventually(lambda: health_of(store, worker))
        _, remaining = await store.get_worker_health(worker.worker_id)
    assert remaining is not None
    # Less than the ten seconds late: without them it would live no longer than its interval.
    assert ttl_seconds - 9 <= remaining <= ttl_seconds


async def test_the_record_follows_the_work(settings: RRQSettings, store: JobStore, client: RRQClient) -> None:
    settings.worker_lease_renewal_seconds = 0.3
    settings.worker_concurrency = 1
    gate = asyncio.Event()

    async def work(context: dict[str, Any]) -> None:
        await gate.wait()

    registry = JobRegistry()
    registry.register("work", work)
    worker = RRQWorker(settings, registry)

    async def shows(status: str, active_jobs: int) -> bool:
        record = await health_of(store, worker)
        return record is not None and (record["status"], record["active_jobs"]) == (status, active_jobs)

    async with running(worker):
        await client.enqueue("work")
        await eventually(lambda: shows("idle (concurrency limit)", 1))
        gate.set()
        await eventually(lambda: shows("polling", 0))


async def test_a_lone_worker_that_renews_as_rarely_as_it_may_recovers_jobs(
    settings: RRQSettings, store: JobStore, client: RRQClient
) -> None:
    settings.worker_lease_seconds, settings.worker_lease_renewal_seconds = 1.5, 0.6
    dead = await start_worker(store, "dead")
    ran = asyncio.Event()

    async def work(context: dict[str, Any]) -> None:
        ran.set()

    registry = JobRegistry()
    registry.register("work", work)
    await client.enqueue("work")
    await dead.take_one()
    async with running(RRQWorker(settings, registry)):
        await asyncio.wait_for(ran.wait(), 20)


async def test_a_heartbeat_feeds_the_registries_and_the_event_stream(
    settings: RRQSettings, store: JobStore
) -> None:
    worker = RRQWorker(settings, JobRegistry(), queues=["emails", "slow"])
    async with running(worker):
        await eventually(lambda: health_of(store, worker))

        assert await store.get_active_workers() == [worker.worker_id]
        assert sorted(await store.get_active_queues()) == ["emails", "slow"]
        score = await store.redis.zscore("rrq:active:workers", worker.worker_id)
        assert score == pytest.approx(time.time(), abs=10)
        ((_, entries),) = await store.consume_monitor_events()
        fields = entries[0][1]
        assert fields[b"event_type"] == b"worker_heartbeat"
        assert fields[b"worker_id"] == worker.worker_id.encode()
        assert float(fields[b"timestamp"]) == pytest.approx(time.time(), abs=10)


async def test_a_graceful_stop_removes_all_keys_of_the_worker(settings: RRQSettings, store: JobStore) -> None:
    worker = RRQWorker(settings, JobRegistry())
    async with running(worker):
        await eventually(lambda: health_of(store, worker))

    assert await health_of(store, worker) is None
    assert await store.get_active_workers() == []
    assert await store.redis.zcard(LEASES) == 0
    assert await store.redis.keys(f"*{worker.worker_id}*") == []


async def test_the_record_stays_while_the_worker_drains(
    settings: RRQSettings, store: JobStore, client: RRQClient
) -> None:
    gate = asyncio.Event()

    async def work(context: dict[str, Any]) -> None:
        await gate.wait()

    registry = JobRegistry()
    registry.register("work", work)
    settings.worker_lease_renewal_seconds = 0.2
    worker = RRQWorker(settings, registry)
    task = asyncio.create_task(worker.run())
    await client.enqueue("work")
    await eventually(lambda: worker._running_tasks)

    worker._request_shutdown()

    ends_at = await lease_end_ms(store, worker.worker_id)
    await stays_true(lambda: health_of(store, worker), 0.4, "the record was gone before the jobs")

    async def is_renewed() -> bool:
        return await lease_end_ms(store, worker.worker_id) > ends_at

    await eventually(is_renewed, 8, "the lease is not renewed any more")
    gate.set()
    await task
    assert await health_of(store, worker) is None


async def test_the_worker_registers_its_lease_before_the_first_claim(settings: RRQSettings) -> None:
    seen: list[tuple[bool, bool]] = []

    class Watching(JobStore):
        async def claim_jobs(self, request: ClaimRequest) -> Claim:
            worker_id = request.worker.worker_id
            seen.append(
                (
                    await self.redis.zscore(LEASES, worker_id) is not None,
                    bool(await self.redis.exists(f"rrq:health:worker:{worker_id}")),
                )
            )
            return await super().claim_jobs(request)

    worker = RRQWorker(settings, JobRegistry())
    await worker.job_store.aclose()
    worker.job_store = Watching(settings)
    async with running(worker):
        await eventually(lambda: seen)
    assert seen[0] == (True, True)


async def test_the_lease_is_renewed_however_long_a_handler_holds_the_event_loop(
    settings: RRQSettings, client: RRQClient
) -> None:
    settings.worker_lease_renewal_seconds = 0.2
    lease_ends: set[float] = set()

    async def blocking(context: dict[str, Any]) -> None:
        # The event loop of the worker stands still; only its thread can renew.
        ends_at = time.monotonic() + 20
        with redis.Redis.from_url(settings.redis_dsn) as connection:
            while len(lease_ends) < 5 and time.monotonic() < ends_at:
                score = connection.zscore(LEASES, worker.worker_id)
                assert isinstance(score, float)
                lease_ends.add(score)
                time.sleep(0.05)  # noqa: ASYNC251

    registry = JobRegistry()
    registry.register("blocking", blocking)
    worker = RRQWorker(settings, registry)
    async with running(worker):
        job = await client.enqueue("blocking")
        assert job is not None
        assert await client.wait_for_completion(job.id, timeout_seconds=60)
    assert len(lease_ends) == 5


async def test_a_lease_keeper_can_be_stopped_at_any_moment_of_its_start(
    settings: RRQSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.engine.lease._JOIN_SECONDS", 60.0)  # how long one takes that does not hear of it
    slow_stops: list[float] = []
    for step in range(25):
        beat = Beat(WorkerIdentity(f"w{step}", "incarnation"), 1, ["q"], {}, 60, is_registration=True)
        keeper = LeaseKeeper(lambda: settings, partial(copy, beat), lambda _beat, _renewal: None)
        keeper.start()
        # Through all that happens in the first ten milliseconds: connecting, beating, listening.
        start_seconds = step / 2_500
        await asyncio.sleep(start_seconds)
        before = time.monotonic()
        await keeper.stop()
        if time.monotonic() - before > 20:
            slow_stops.append(start_seconds)

    assert slow_stops == []


async def test_a_heartbeat_that_fails_is_tried_again(own_redis: EmbeddedRedis) -> None:
    settings = RRQSettings(redis_dsn=own_redis.dsn, worker_lease_seconds=1.5)
    async with aclosing(JobStore(settings)) as store:
        worker = RRQWorker(settings, JobRegistry())
        async with running(worker):
            await eventually(lambda: health_of(store, worker))
            own_redis.kill()
            own_redis.start()
            await eventually(lambda: health_of(store, worker), 20, "no health record after the restart")
