"""Reconciling: worker and Redis agree on which jobs the worker has claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError

from proxy import RedisProxy
from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    done,
    enqueue,
    is_queued,
    job_fields,
    start_worker,
    tokens,
)
from rrq.broker.messages import DeathCertificate, Verdict
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rrq.broker.messages import ClaimedJob
    from rrq.embedded import EmbeddedRedis


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def forget_the_claim(store: JobStore, job: ClaimedJob, worker: SteppedWorker) -> None:
    """Put Redis back to before the claim, as a restart does that lost the last second."""
    job_id = job.job_id.decode()
    await ask(store, "DEL", store.keys.job_lock_key(job_id))
    await ask(store, "ZREM", store.keys.active_jobs_key(worker.worker_id), job_id)
    await ask(store, "HDEL", store.keys.job_key(job_id), "worker_id", "claimed_queue", "claimed_score")
    fields = ["status", "PENDING", "attempt_token", job.token_before]
    await ask(store, "HSET", store.keys.job_key(job_id), *fields)
    await ask(store, "ZADD", job.queue_key, job.due_score, job_id)


async def test_claim_whose_answer_was_cut_is_given_back_uncounted(redis_dsn: str, store: JobStore) -> None:
    async with RedisProxy(int(parse_url(redis_dsn)["port"])) as proxy:
        behind_proxy = JobStore(RRQSettings(redis_dsn=proxy.dsn))
        try:
            worker = await start_worker(behind_proxy)
            await enqueue(store, "1", "2", "3")
            await ask(store, "ZADD", QUEUE, 1.5, "1")
            known = await worker.take_one()
            proxy.cut_next_reply()
            with pytest.raises(RedisConnectionError):
                await worker.claim(2)
            assert await worker.in_hand() == {"1", "2", "3"}
            await (await start_worker(store, "waiter")).claim(wait_ms=60_000)
            result = await behind_proxy.reconcile_worker(worker.identity, [known])
            assert (result.given_back, result.set_up_again, result.lost) == (2, 0, frozenset())
            assert await worker.in_hand() == {"1"}
            assert await tokens(store) == 1
            for job_id in ("2", "3"):
                fields = await job_fields(store, job_id)
                assert (fields["status"], fields["current_retries"]) == ("PENDING", "0")
                assert await is_queued(store, job_id)
                assert await store.get_job_lock_owner(job_id) is None
            assert await worker.finish(done(known)) == [Verdict.STORED]
        finally:
            await behind_proxy.aclose()


async def test_forgotten_claim_of_an_07_job_is_set_up_again(store: JobStore, worker: SteppedWorker) -> None:
    """Such a job had no token before it was claimed."""
    await enqueue(store, "1")
    await ask(store, "HDEL", "rrq:job:1", "attempt_token")
    job = await worker.take_one()
    await forget_the_claim(store, job, worker)
    await ask(store, "HDEL", "rrq:job:1", "attempt_token")
    assert (await store.reconcile_worker(worker.identity, [job])).set_up_again == 1
    assert await worker.finish(done(job)) == [Verdict.STORED]


async def test_an_id_that_07_enqueued_anew_is_not_given_the_outcome_of_its_earlier_life(
    store: JobStore, worker: SteppedWorker
) -> None:
    """The hash of the first life has expired with its token, and a producer of 0.7 writes none."""
    await enqueue(store, "nightly")
    await ask(store, "HDEL", "rrq:job:nightly", "attempt_token")
    yesterday = await worker.take_one()
    await worker.finish(done(yesterday, "old"))
    await ask(store, "DEL", "rrq:job:nightly")
    (due_ms,) = await enqueue(store, "nightly")
    await ask(store, "ZADD", QUEUE, due_ms + 86_400_000, "nightly")
    await ask(store, "HDEL", "rrq:job:nightly", "attempt_token")
    result = await store.reconcile_worker(worker.identity, [yesterday])
    assert (result.set_up_again, result.lost) == (0, frozenset({0}))
    assert await worker.finish(done(yesterday, "old")) == [Verdict.FENCED]
    assert await is_queued(store, "nightly")
    assert (await job_fields(store, "nightly"))["status"] == "PENDING"


async def test_forgotten_claim_is_lost_when_07_has_tried_it_meanwhile(
    store: JobStore, worker: SteppedWorker
) -> None:
    """A retry of 0.7 changes no token, only the due time."""
    await enqueue(store, "1")
    job = await worker.take_one()
    await forget_the_claim(store, job, worker)
    await ask(store, "ZINCRBY", QUEUE, 5000, "1")
    result = await store.reconcile_worker(worker.identity, [job])
    assert (result.set_up_again, result.lost) == (0, frozenset({0}))
    assert await is_queued(store, "1")


async def test_an_active_set_that_was_lost_is_built_up_anew(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1", "2", "3")
    running, ended, taken_back = await worker.take(3)
    await worker.finish(done(ended))
    await enqueue(store, "3")
    await ask(store, "SET", store.keys.active_jobs_key(worker.worker_id), "precious")
    result = await store.reconcile_worker(worker.identity, [running, ended, taken_back])
    assert (result.given_back, result.set_up_again, result.lost) == (0, 0, frozenset({2}))
    assert await worker.in_hand() == {"1"}
    await store.reap_workers(DeathCertificate(worker.identity))
    assert await is_queued(store, "1")


async def test_many_jobs_are_reconciled_in_one_call(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, *(f"job-{number:04}" for number in range(1200)))
    jobs = await worker.take(1200)
    result = await store.reconcile_worker(worker.identity, jobs[:200])
    assert result.given_back == 1000
    assert await ask(store, "ZCARD", QUEUE) == 1000


async def test_worker_and_a_full_redis_can_agree(own_redis: EmbeddedRedis) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    try:
        worker = await start_worker(store)
        await enqueue(store, "1", "2")
        forgotten, _ = await worker.take(2)
        await forget_the_claim(store, forgotten, worker)
        await ask(store, "CONFIG SET", "maxmemory", "1")
        result = await store.reconcile_worker(worker.identity, [forgotten])
        assert (result.given_back, result.set_up_again, result.lost) == (1, 1, frozenset())
    finally:
        await store.aclose()
