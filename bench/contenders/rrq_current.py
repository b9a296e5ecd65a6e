"""This project's rrq as a contender; runs in the project's own environment."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from contest import AsyncContest, Order, emit, enqueue_all, parse_order, send_stamped

from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker
from rrq.client import JobRequest
from rrq.process import tune_garbage_collector


async def produce(order: Order) -> None:
    client = RRQClient(RRQSettings(redis_dsn=order.dsn))

    async def send_one(number: int) -> None:
        await client.enqueue("noop", number)

    async def send_many(numbers: range) -> None:
        await client.enqueue_many([JobRequest("noop", args=(number,)) for number in numbers])

    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one, send_many)
    finally:
        await client.close()


async def work(order: Order) -> None:
    contest = AsyncContest(order)

    async def noop(_context: dict[str, Any], number: int) -> None:
        await contest.handle(number)

    registry = JobRegistry()
    registry.register("noop", noop)
    worker = RRQWorker(RRQSettings(redis_dsn=order.dsn, worker_concurrency=order.concurrency), registry)
    store = worker.job_store
    # Only the section without a fixed number of jobs asks for them; counting costs a little speed.
    races = {} if order.jobs else _count_races(worker)

    async def is_recorded() -> bool:
        # A job leaves the worker's active set in the script that writes its result.
        return int(await store.redis.zcard(store.keys.active_jobs_key(worker.worker_id))) == 0

    watcher = asyncio.create_task(contest.watch(is_recorded))
    emit("ready")
    await worker.run()
    watcher.cancel()
    emit("stopped", ran=contest.ledger.distinct, duplicates=contest.ledger.duplicates, **races)


def _count_races(worker: Any) -> dict[str, int]:
    """Count claims, those that found nothing, and slots taken.

    A batch claim names no job, so it cannot lose one to another worker; its counterpart of a lost
    race is a claim that comes back empty, polls of an idle worker included.
    """
    races = {"claims": 0, "lost_races": 0, "slots_taken": 0}
    claim = worker.job_store.claim_jobs
    acquire_slot = worker._semaphore.acquire

    async def claim_jobs(*given: Any, **named: Any) -> Any:
        answer = await claim(*given, **named)
        races["claims"] += 1
        races["lost_races"] += not answer.jobs
        return answer

    async def take_slot() -> Any:
        races["slots_taken"] += 1
        return await acquire_slot()

    worker.job_store.claim_jobs = claim_jobs
    worker._semaphore.acquire = take_slot
    return races


if __name__ == "__main__":
    order = parse_order()
    # As `rrq worker run` does.
    tune_garbage_collector()
    uvloop.run(work(order) if order.command == "work" else produce(order))
