"""RRQ 0.7.1 as a contender: one process, its default settings, the order's concurrency."""

# mypy: disable-error-code="import-not-found"
# The libraries live in the contender's own environment; ``rrq`` is another release here.

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from contest import (
    POLL_DELAY_SECONDS,
    AsyncContest,
    Order,
    emit,
    enqueue_all,
    parse_order,
    send_stamped,
)

from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker


async def produce(order: Order) -> None:
    client = RRQClient(RRQSettings(redis_dsn=order.dsn))

    async def send_one(number: int) -> None:
        await client.enqueue("noop", number)

    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one)
    finally:
        await client.close()


async def work(order: Order) -> None:
    contest = AsyncContest(order)

    async def noop(_context: dict[str, Any], number: int) -> None:
        await contest.handle(number)

    registry = JobRegistry()
    registry.register("noop", noop)
    settings = RRQSettings(
        redis_dsn=order.dsn,
        worker_concurrency=order.concurrency,
        default_poll_delay_seconds=POLL_DELAY_SECONDS,
    )
    worker = RRQWorker(settings, registry)
    # Only the section without a fixed number of jobs asks for them; counting costs a little speed.
    races = {} if order.jobs else _count_races(worker)

    async def is_recorded() -> bool:
        # A job's task ends after its result is stored and its lock is gone.
        return not worker._running_tasks

    watcher = asyncio.create_task(contest.watch(is_recorded))
    emit("ready")
    await worker.run()
    watcher.cancel()
    emit("stopped", ran=contest.ledger.distinct, duplicates=contest.ledger.duplicates, **races)


def _count_races(worker: Any) -> dict[str, int]:
    """Count claims, lost claims and slots taken."""
    races = {"claims": 0, "lost_races": 0, "slots_taken": 0}
    acquire_job = worker._try_acquire_job
    acquire_slot = worker._semaphore.acquire

    async def try_acquire_job(job_id: str, queue_name: str) -> Any:
        job = await acquire_job(job_id, queue_name)
        races["claims"] += 1
        races["lost_races"] += job is None
        return job

    async def take_slot() -> Any:
        races["slots_taken"] += 1
        return await acquire_slot()

    worker._try_acquire_job = try_acquire_job
    worker._semaphore.acquire = take_slot
    return races


if __name__ == "__main__":
    order = parse_order()
    uvloop.run(work(order) if order.command == "work" else produce(order))
