"""streaq 7.2 as a contender."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# The library lives in the contender's own environment, so its decorators look untyped from here.

from __future__ import annotations

import asyncio

import uvloop
from contest import AsyncContest, Order, enqueue_all, parse_order, send_stamped
from streaq import Worker


async def produce(order: Order) -> None:
    worker = Worker(redis_url=order.dsn)

    @worker.task(name="noop")
    async def noop(number: int) -> None: ...

    async def send_one(number: int) -> None:
        await noop.enqueue(number)

    async def send_many(numbers: range) -> None:
        await worker.enqueue_many([noop.enqueue(number) for number in numbers])

    async with worker:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one, send_many)


async def work(order: Order) -> None:
    contest = AsyncContest(order)
    worker = Worker(redis_url=order.dsn, concurrency=order.concurrency)

    @worker.task(name="noop", silent=True)
    async def noop(number: int) -> None:
        await contest.handle(number)

    async def is_recorded() -> bool:
        # The count of fetched messages drops only after a job's result was written.
        return bool(worker._count == 0)

    watcher = asyncio.create_task(contest.watch(is_recorded))
    await worker.run_async()
    watcher.cancel()


if __name__ == "__main__":
    order = parse_order()
    uvloop.run(work(order) if order.command == "work" else produce(order))
