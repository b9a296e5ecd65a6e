"""Redis cut off, paused, restarted and forgetful: every job ends, and no living worker loses its jobs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from fleet import all_done, assert_nothing_in_hand, running_worker
from hostile_redis import ODD_GREETINGS, HostileRedis, always
from proxy import RedisProxy
from queue_steps import ask, last_lease_end_ms, lease_end_ms
from rrq.broker.connection import is_script_failure
from rrq.broker.messages import DeathCertificate
from rrq.broker.scripts import load_script
from rrq.client import JobRequest, RRQClient
from rrq.engine import attempts
from rrq.exc import EnqueueError, RedisUnavailable
from rrq.flow import Limit
from rrq.job import JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import by_hand
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rrq.embedded import EmbeddedRedis

CUTS = 20


class Runs:
    """Handlers that remember, in this process, which job ran how often."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.waiting: set[str] = set()
        self.registry = JobRegistry()
        self.registry.register("count", self.count)
        self.registry.register("wait_at_gate", self.wait_at_gate)

    async def count(self, ctx: dict[str, Any]) -> None:
        self.effects[ctx["job_id"]] += 1

    async def wait_at_gate(self, ctx: dict[str, Any]) -> None:
        self.waiting.add(ctx["job_id"])
        await self.gate.wait()
        self.effects[ctx["job_id"]] += 1


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
async def direct(own_redis: EmbeddedRedis) -> AsyncIterator[RRQClient]:
    """A producer with a connection that is never disturbed."""
    client = RRQClient(RRQSettings(redis_dsn=own_redis.dsn))
    yield client
    await client.close()


def quick(dsn: str, **options: Any) -> RRQSettings:
    return RRQSettings(redis_dsn=dsn, redis_socket_timeout_seconds=1.0, **options)


@pytest.mark.parametrize("script", ["claim_jobs", "finish_jobs"])
async def test_jobs_end_once_although_replies_are_cut_again_and_again(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs, script: str
) -> None:
    async with RedisProxy(own_redis.port) as proxy, running_worker(quick(proxy.dsn), runs.registry):
        jobs = []
        for _ in range(CUTS):
            proxy.cut_next_reply(matching=load_script(script).sha.encode())
            jobs += await direct.enqueue_many([JobRequest("count")] * 3)
            await all_done(direct.job_store, jobs[-3:])
        assert proxy.cut_replies == CUTS
    # A claim that was never answered never ran; a finish that was sent twice counted once.
    assert runs.effects == {job.id: 1 for job in jobs}
    counters = await direct.job_store.redis.hgetall(direct.job_store.keys.counters)
    assert counters == {b"done": str(len(jobs)).encode()}
    await assert_nothing_in_hand(direct.job_store)


@pytest.mark.parametrize(
    ("script", "stray"),
    [
        ("claim_jobs", b":7\r\n"),
        ("finish_jobs", b"*1\r\n:1794873791233\r\n"),
        ("renew_leases", b"%1\r\n*1\r\n:1\r\n:2\r\n"),
        ("reap_workers", b":7\r\n"),
    ],
)
async def test_a_worker_outlives_answers_that_make_no_sense(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs, script: str, stray: bytes
) -> None:
    store = direct.job_store
    async with RedisProxy(own_redis.port) as proxy:
        settings = quick(proxy.dsn, worker_lease_seconds=1.5)
        async with running_worker(settings, runs.registry) as worker:
            jobs = await direct.enqueue_many([JobRequest("count")] * 3)
            await all_done(store, jobs)
            proxy.stray_next_reply(stray, matching=load_script(script).sha.encode())
            if script == "reap_workers":
                await store.redis.zadd(store.keys.leases, {"gone": 1})
            jobs += await direct.enqueue_many([JobRequest("count")] * 3)
            await eventually(lambda: proxy.is_undisturbed, 10, "the answer was never given")
            await all_done(store, jobs)
            ends_at = await lease_end_ms(store, worker.worker_id)

            async def is_renewed() -> bool:
                return await lease_end_ms(store, worker.worker_id) > ends_at

            await eventually(is_renewed, 10, "the lease is not renewed any more")
    assert runs.effects == {job.id: 1 for job in jobs}
    await assert_nothing_in_hand(store)


async def test_a_reap_in_flight_while_redis_is_paused_takes_nothing_from_living_workers(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs
) -> None:
    settings = quick(own_redis.dsn, worker_lease_seconds=1.5)
    settings.redis_socket_timeout_seconds = 10.0
    sweeper = JobStore(settings)
    async with running_worker(settings, runs.registry), running_worker(settings, runs.registry):
        jobs = await direct.enqueue_many([JobRequest("wait_at_gate")] * 15)
        await eventually(lambda: len(runs.waiting) == 15, 10, "jobs did not start")
        await sweeper.reap_workers()
        last_end_ms = await last_lease_end_ms(direct.job_store)
        own_redis.pause()
        reap = asyncio.create_task(sweeper.reap_workers())
        # When Redis goes on, every lease has ended, also one renewed just before the pause; and the reap comes first.
        all_ended_ms = last_end_ms + settings.worker_lease_seconds * 1000
        await eventually(lambda: time.time() * 1000 > all_ended_ms, 10, "the leases do not end")
        own_redis.resume()
        report = await reap
        assert report.returned == 0
        assert report.put_off_until_ms is not None
        runs.gate.set()
        await all_done(direct.job_store, jobs)
    assert set(runs.effects.values()) == {1}
    await sweeper.aclose()
    await assert_nothing_in_hand(direct.job_store)


async def test_a_finish_that_redis_forgot_is_told_again_however_long_redis_was_away(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = direct.job_store
    async with running_worker(quick(own_redis.dsn), runs.registry):
        jobs = await direct.enqueue_many([JobRequest("wait_at_gate")] * 5)
        await eventually(lambda: len(runs.waiting) == 5, 10, "jobs did not start")
        await store.redis.save()
        runs.gate.set()
        await all_done(store, jobs)
        own_redis.kill()
        # Longer than outcomes are kept for: what counts is when Redis went, not when it is back.
        monkeypatch.setattr(attempts, "monotonic", lambda: time.monotonic() + 10 * attempts.RETENTION_SECONDS)
        own_redis.restart()
        await all_done(store, jobs)
    assert set(runs.effects.values()) == {1}
    await assert_nothing_in_hand(store)


async def test_a_claim_that_a_restart_forgot_is_set_up_again(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs
) -> None:
    store = direct.job_store
    async with running_worker(quick(own_redis.dsn), runs.registry):
        await eventually(lambda: store.redis.exists(store.keys.leases), 10, "the worker did not register")
        blocked = await direct.enqueue_many([JobRequest("wait_at_gate", defer_by=0.7)] * 5)
        await store.redis.save()
        await eventually(lambda: len(runs.waiting) == 5, 10, "jobs did not start")
        own_redis.kill()
        own_redis.restart()
        # Redis came back to the moment before the claim: all five look queued while they run.
        async with running_worker(quick(own_redis.dsn), runs.registry):

            async def all_held() -> bool:
                return await store.redis.zcard(store.keys.queue_key("default")) == 0

            await eventually(all_held, 10, "the claims were not set up again")
            runs.gate.set()
            await all_done(store, blocked)
    assert set(runs.effects.values()) == {1}
    await assert_nothing_in_hand(store)


async def test_limits_are_declared_again_to_a_redis_that_came_back_empty(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs
) -> None:
    store, limits = direct.job_store, {"function:wait_at_gate": Limit(concurrency=1)}
    async with running_worker(quick(own_redis.dsn, limits=limits), runs.registry):
        await eventually(lambda: store.redis.exists(store.keys.limits), 10, "the limit was not declared")
        # Nothing was saved, so nothing comes back.
        own_redis.kill()
        own_redis.restart()
        jobs = await direct.enqueue_many([JobRequest("wait_at_gate")] * 3)
        await eventually(
            lambda: store.redis.zcard(store.keys.blocked_key("f:wait_at_gate")), 10, "nobody waits"
        )
        # The others are blocked by the claim, before the one that it took has begun.
        await eventually(lambda: runs.waiting, 10, "the one with the slot did not start")
        assert len(runs.waiting) == 1
        runs.gate.set()
        await all_done(store, jobs)


@pytest.mark.parametrize("snapshot_at", ["queued", "running"])
async def test_a_retry_and_what_followed_it_forgotten_together_do_not_run_the_job_again(
    own_redis: EmbeddedRedis, direct: RRQClient, snapshot_at: str
) -> None:
    store, tries, registry = direct.job_store, Counter[int](), JobRegistry()

    async def fail_once(ctx: dict[str, Any]) -> None:
        tries[ctx["job_try"]] += 1
        if ctx["job_try"] == 1:
            if snapshot_at == "running":
                await store.redis.save()
            raise ConnectionError("the mail server is away")

    registry.register("fail_once", fail_once)
    async with running_worker(quick(own_redis.dsn, base_retry_delay_seconds=0.1), registry):
        await eventually(lambda: store.redis.exists(store.keys.leases), 10, "the worker did not register")
        jobs = await direct.enqueue_many([JobRequest("fail_once", defer_by=0.5)])
        if snapshot_at == "queued":
            await store.redis.save()
        await all_done(store, jobs)
        own_redis.kill()
        own_redis.restart()
        await all_done(store, jobs)
    assert tries == {1: 1, 2: 1}
    await assert_nothing_in_hand(store)


async def test_the_first_thing_a_restarted_redis_hears_is_what_the_worker_has_in_hand(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs
) -> None:
    store = direct.job_store
    async with by_hand(RRQWorker(quick(own_redis.dsn), runs.registry)) as worker:
        assert await worker._poll_for_jobs(5) == 0  # registered: the snapshot knows its lease
        jobs = await direct.enqueue_many([JobRequest("count", defer_by=0.3)] * 5)
        await store.redis.save()
        await eventually(lambda: worker._poll_for_jobs(5), 20, "nothing was claimed")
        await all_done(store, jobs)
        own_redis.kill()
        own_redis.restart()
        connection = worker.job_store.connection
        await eventually(lambda: not connection.is_open, 20, "the worker did not notice")
        # Redis came back to before the claim, and the worker claims as soon as it can reach it.
        assert await worker._poll_for_jobs(5) == 0
        await all_done(store, jobs)
    assert set(runs.effects.values()) == {1}


async def test_results_made_while_redis_is_away_are_stored_when_it_is_back(
    make_redis: Callable[..., EmbeddedRedis], runs: Runs
) -> None:
    server = make_redis(appendonly=True)
    client = RRQClient(RRQSettings(redis_dsn=server.dsn))
    async with running_worker(quick(server.dsn), runs.registry):
        jobs = await client.enqueue_many([JobRequest("wait_at_gate")] * 5)
        await eventually(lambda: len(runs.waiting) == 5, 10, "jobs did not start")
        await client.job_store.redis.shutdown(nosave=True)
        runs.gate.set()
        await eventually(lambda: len(runs.effects) == 5, 10, "handlers did not end")
        server.restart()
        await all_done(client.job_store, jobs)
        more = await client.enqueue_many([JobRequest("count")] * 5)
        await all_done(client.job_store, more)
    assert set(runs.effects.values()) == {1}
    await assert_nothing_in_hand(client.job_store)
    await client.close()


@pytest.mark.parametrize("lease_seconds", [1.5, 15.0])
async def test_a_worker_in_trouble_is_back_before_others_may_claim_what_redis_forgot(
    own_redis: EmbeddedRedis, runs: Runs, lease_seconds: float
) -> None:
    settings = quick(own_redis.dsn, worker_lease_seconds=lease_seconds)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        for _ in range(10):
            # Nothing was due for a while: without the fault it would look for jobs once a second by now.
            worker._poller._empty_polls += await worker._poll_for_jobs(1) == 0
        own_redis.kill()
        waited: list[float] = []

        async def note(seconds: float) -> None:
            waited[-1] += seconds

        worker._poller.pause = note  # type: ignore[method-assign]  # only how long it would wait is of interest
        for _ in range(50):
            waited.append(0.0)
            await worker._poller.run_round()
        own_redis.restart()
    # A restarted Redis refuses claims for one renewal at least, from the first heartbeat of anybody.
    assert max(waited) < settings.lease_renewal_seconds
    assert max(waited) <= 1.5


@pytest.mark.parametrize("lease_seconds", [1.5, 15.0])
async def test_a_worker_that_loses_its_connection_while_it_waits_for_work_is_back_within_a_renewal(
    own_redis: EmbeddedRedis, runs: Runs, lease_seconds: float
) -> None:
    settings = quick(own_redis.dsn, worker_lease_seconds=lease_seconds)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        assert await worker._poll_for_jobs(1) == 0
        claim = worker.consumer.last_claim
        waited: list[float] = []

        async def note(seconds: float) -> None:
            waited.append(seconds)

        worker._poller.pause = note  # type: ignore[method-assign]  # only how long it would wait is of interest
        own_redis.kill()
        worker._poller._next_delay_seconds = 1.5
        await worker._poller.wait_for_work(claim)
        own_redis.restart()
    assert waited == [min(1.5, settings.lease_renewal_seconds / 2)]


async def test_a_worker_with_no_free_slot_survives_an_outage_like_any_other(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    settings = quick(own_redis.dsn, worker_concurrency=1)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        await direct.enqueue("wait_at_gate")
        await eventually(lambda: worker._poll_for_jobs(1), 20, "nothing was claimed")
        own_redis.kill()
        worker.registration.note_reconnect()
        assert not await worker._poller.run_round()
        own_redis.restart()
        runs.gate.set()
    assert "claim failed, trying again" in caplog.messages


@pytest.mark.parametrize(
    ("refuse", "relent"),
    [
        # A replica of nobody: port 1 has no listener, so that nothing is copied and nothing is lost.
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
    ],
    ids=["read-only", "without replicas"],
)
async def test_a_result_that_redis_refuses_for_a_while_is_stored_later_and_its_job_not_dead_lettered(
    own_redis: EmbeddedRedis,
    direct: RRQClient,
    runs: Runs,
    caplog: pytest.LogCaptureFixture,
    refuse: tuple[str, ...],
    relent: tuple[str, ...],
) -> None:
    async with running_worker(quick(own_redis.dsn), runs.registry):
        jobs = await direct.enqueue_many([JobRequest("wait_at_gate")] * 3)
        await eventually(lambda: len(runs.waiting) == 3, 10, "jobs did not start")
        await direct.job_store.connection.call(*refuse)
        runs.gate.set()
        # Whatever the worker makes of the refusal, it says so before Redis takes writes again.
        await eventually(
            lambda: [message for message in caplog.messages if message.startswith("outcome")],
            10,
            "no refusal",
        )
        await direct.job_store.connection.call(*relent)
        await all_done(direct.job_store, jobs)
    assert set(runs.effects.values()) == {1}
    assert await direct.job_store.redis.llen(direct.job_store.keys.dlq_key("default")) == 0
    await assert_nothing_in_hand(direct.job_store)


@pytest.mark.parametrize(
    "refusal",
    [
        # As Redis 7 words them, then as 6.2 does.
        ReadOnlyError("You can't write against a read only replica. script: 1f8, on @user_script:1."),
        OutOfMemoryError(
            "command not allowed when used memory > 'maxmemory'. script: 1f8, on @user_script:1."
        ),
        ResponseError("NOREPLICAS Not enough good replicas to write. script: 1f8, on @user_script:1."),
        ResponseError(
            "MISCONF Errors writing to the AOF file: No space left. script: 1f8, on @user_script:1."
        ),
        ResponseError(
            "Error running script (call to f_1f8): @user_script:1: @user_script: 1: "
            "-READONLY You can't write against a read only replica."
        ),
        ResponseError(
            "user_script:176: READONLY You can't write against a read only replica. "
            "script: 1f8, on @user_script:176."
        ),
    ],
    ids=["READONLY", "OOM", "NOREPLICAS", "MISCONF", "READONLY of 6.2", "READONLY raised by the script"],
)
def test_a_server_that_takes_no_writes_for_now_is_no_failure_of_the_script(refusal: ResponseError) -> None:
    assert not is_script_failure(refusal)


async def test_a_producer_leaves_a_server_that_became_a_replica(
    own_redis: EmbeddedRedis, make_redis: Callable[..., EmbeddedRedis]
) -> None:
    client = RRQClient(RRQSettings(redis_dsn=own_redis.dsn))
    store = client.job_store
    try:
        assert await client.enqueue("nothing") is not None
        assert store.connection.is_open
        await ask(store, "REPLICAOF", "127.0.0.1", make_redis().port)
        with pytest.raises(EnqueueError, match="READONLY"):
            await client.enqueue("nothing")
        assert not store.connection.is_open, "or the new master would never be asked for"
    finally:
        await client.close()


@pytest.mark.parametrize("greeting", ODD_GREETINGS)
async def test_a_producer_takes_a_server_that_greets_with_nonsense_for_unavailable(greeting: bytes) -> None:
    async with HostileRedis(always(b":0\r\n"), greeting=greeting) as server:
        client = RRQClient(RRQSettings(redis_dsn=server.url))
        with pytest.raises(RedisUnavailable, match="makes no sense"):
            await client.enqueue("greet")
        await client.close()


@pytest.mark.parametrize(
    "failure",
    [
        ResponseError("WRONGTYPE Operation against a key. script: 1f8, on @user_script:1."),
        ResponseError("ERR user_script:1: attempt to index a nil value script: 1f8, on @user_script:1."),
    ],
)
def test_a_script_that_stopped_half_way_is_a_failure_that_would_come_again(failure: ResponseError) -> None:
    assert is_script_failure(failure)


async def test_an_id_enqueued_again_while_it_runs_runs_once_more_and_only_then(
    client: RRQClient, settings: RRQSettings, runs: Runs
) -> None:
    store = client.job_store
    async with running_worker(settings, runs.registry), running_worker(settings, runs.registry):
        first = await client.enqueue("wait_at_gate", _job_id="order-1")
        assert first is not None
        await eventually(lambda: runs.waiting == {"order-1"}, 10, "the job did not start")
        again = await client.enqueue("count", _job_id="order-1")
        assert again is not None
        # The lock of the running attempt keeps the new one waiting.
        assert (await store.get_job("order-1") or {})["status"] == JobStatus.PENDING.value
        runs.gate.set()
        await eventually(lambda: runs.effects["order-1"] == 2, 10, "the second run did not come")
        await all_done(store, [again])
    counters = await store.redis.hgetall(store.keys.counters)
    assert counters == {b"done": b"1"}
    await assert_nothing_in_hand(store)


@pytest.mark.parametrize("is_reaped", [True, False], ids=["reaped", "still its own"])
async def test_a_job_claimed_before_a_long_stop_is_begun_only_if_it_is_still_in_hand(
    client: RRQClient, settings: RRQSettings, runs: Runs, is_reaped: bool
) -> None:
    store = client.job_store
    jobs = await client.enqueue_many([JobRequest("count")] * 3)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        attempts = await worker.consumer.claim(3, worker.queues)
        if is_reaped:
            await store.reap_workers(DeathCertificate(worker.registration.identity))
        # As after SIGCONT: long ago by the clock, and nobody has told this process anything yet.
        for attempt in attempts:
            attempt.claimed_at -= settings.worker_lease_seconds
        # A heartbeat may tell it even before the first one starts.
        await worker._poller.start_claimed(attempts)
        await eventually(lambda: not worker._running_tasks, 10, "the jobs never ended")
        assert sum(runs.effects.values()) == (0 if is_reaped else 3)
        await eventually(lambda: worker._poll_for_jobs(3) if is_reaped else True, 10, "nothing came back")
        await all_done(store, jobs)
    assert set(runs.effects.values()) == {1}
    assert len(runs.effects) == 3


async def test_jobs_that_are_lost_before_the_first_is_started_are_not_started(
    client: RRQClient, settings: RRQSettings, runs: Runs
) -> None:
    store = client.job_store
    jobs = await client.enqueue_many([JobRequest("count")] * 3)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        attempts = await worker.consumer.claim(3, worker.queues)
        await store.reap_workers(DeathCertificate(worker.registration.identity))
        worker.registration.note_reconnect()
        await worker.registration.reconcile_if_needed()
        assert await worker._poller.start_claimed(attempts) == 0
        assert not runs.effects
        await eventually(lambda: worker._poll_for_jobs(3), 10, "nothing came back")
        await all_done(store, jobs)
    assert runs.effects == {job.id: 1 for job in jobs}


async def test_a_job_that_is_lost_while_it_waits_for_a_slot_is_not_started(
    client: RRQClient, settings: RRQSettings, runs: Runs
) -> None:
    settings.worker_concurrency = 1
    store = client.job_store
    # Due in the same moment they are claimed in the order of their ids.
    requests = [JobRequest("wait_at_gate", job_id="1"), JobRequest("count", job_id="2")]
    jobs = await client.enqueue_many(requests)
    async with by_hand(RRQWorker(settings, runs.registry)) as worker:
        # As many as there are slots and outcomes on their way: the second one waits until the first is stored.
        first, second = await worker.consumer.claim(2, worker.queues)
        assert await worker._poller.start(first.job, first.queue_name, first)
        await eventually(lambda: runs.waiting == {first.job.id}, 10)
        waiting = asyncio.create_task(worker._poller.start(second.job, second.queue_name, second))
        await store.reap_workers(DeathCertificate(worker.registration.identity))
        worker.registration.needs_reconcile = True
        await worker.registration.reconcile_if_needed()
        assert await waiting is False
        await eventually(lambda: not worker._running_tasks, 10)
        assert not runs.effects
        assert [await store.redis.hget(store.keys.job_key(job.id), "status") for job in jobs] == [
            b"PENDING"
        ] * 2
        runs.gate.set()
        for _ in jobs:
            await eventually(lambda: worker._poll_for_jobs(1), 10, "nothing came back")
        await all_done(store, jobs)
    assert runs.effects == {job.id: 1 for job in jobs}


async def test_a_job_goes_back_when_redis_cannot_be_asked_whether_it_is_still_in_hand(
    own_redis: EmbeddedRedis, direct: RRQClient, runs: Runs
) -> None:
    async with by_hand(RRQWorker(quick(own_redis.dsn), runs.registry)) as worker:
        jobs = await direct.enqueue_many([JobRequest("count")])
        attempts = await eventually(lambda: worker.consumer.claim(1, worker.queues), 10)
        attempts[0].claimed_at -= 3600
        own_redis.pause()
        try:
            await worker._poller.start(attempts[0].job, attempts[0].queue_name, attempts[0])
            await eventually(lambda: not worker._running_tasks, 10, "the job never ended")
        finally:
            own_redis.resume()
        assert not runs.effects
        await eventually(lambda: worker._poll_for_jobs(1), 20, "the job never came back")
        await all_done(direct.job_store, jobs)
    assert set(runs.effects.values()) == {1}
