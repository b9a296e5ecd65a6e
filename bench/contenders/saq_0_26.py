"""saq 0.26 as a contender."""

# mypy: disable-error-code="import-not-found"
# The library lives in the contender's own environment.

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from contest import AsyncContest, Order, enqueue_all, parse_order, send_stamped
from saq import Queue, Worker


async def produce(order: Order) -> None:
    queue = Queue.from_url(order.dsn)
    await queue.connect()

    async def send_one(number: int) -> None:
        await queue.enqueue("noop", number=number)

    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one)
    finally:
        await queue.disconnect()


async def work(order: Order) -> None:
    contest = AsyncContest(order)
    recorded_jobs = 0

    async def noop(_context: dict[str, Any], *, number: int) -> None:
        await contest.handle(number)

    async def count_recorded(_context: dict[str, Any]) -> None:
        nonlocal recorded_jobs
        recorded_jobs += 1

    queue = Queue.from_url(order.dsn)
    await queue.connect()
    worker = Worker(
        queue,
        [("noop", noop)],
        concurrency=order.concurrency,
        # saq calls this after the result is in Redis.
        after_process=count_recorded,
    )

    async def is_recorded() -> bool:
        return recorded_jobs >= order.jobs

    watcher = asyncio.create_task(contest.watch(is_recorded))
    await worker.start()
    watcher.cancel()


if __name__ == "__main__":
    order = parse_order()
    uvloop.run(work(order) if order.command == "work" else produce(order))
