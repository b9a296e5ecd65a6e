"""taskiq 0.13 with the list broker or the stream broker of taskiq-redis as a contender.

The broker comes from the environment variable ``TASKIQ_BROKER``. No result backend is configured:
that is taskiq's default and its fastest way, so a list job leaves no trace in Redis at all.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# The library lives in the contender's own environment, so its decorators look untyped from here.

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvloop
from contest import AsyncContest, Order, enqueue_all, parse_order, send_stamped
from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisStreamBroker

QUEUE = "taskiq"


def build_broker(order: Order) -> Any:
    kind = RedisStreamBroker if os.environ["TASKIQ_BROKER"] == "stream" else ListQueueBroker
    return kind(order.dsn, queue_name=QUEUE).with_serializer(ORJSONSerializer())


async def produce(order: Order) -> None:
    broker = build_broker(order)

    @broker.task(task_name="noop")
    async def noop(number: int) -> None: ...

    async def send_one(number: int) -> None:
        await noop.kiq(number)

    await broker.startup()
    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one)
    finally:
        await broker.shutdown()


async def work(order: Order) -> None:
    contest = AsyncContest(order)
    broker = build_broker(order)
    redis = Redis.from_url(order.dsn)

    @broker.task(task_name="noop")
    async def noop(number: int) -> None:
        await contest.handle(number)

    async def is_recorded() -> bool:
        if isinstance(broker, ListQueueBroker):
            return True  # Popped from the list: Redis hears nothing more about the job.
        pending = await redis.xpending(QUEUE, "taskiq")
        return bool(pending["pending"] == 0)

    watcher = asyncio.create_task(contest.watch(is_recorded))
    await run_receiver_task(
        broker,
        max_async_tasks=order.concurrency,
        # As many again fetched ahead, so that a free slot never waits for the network.
        max_prefetch=order.concurrency,
        run_startup=True,
    )
    watcher.cancel()


if __name__ == "__main__":
    order = parse_order()
    uvloop.run(work(order) if order.command == "work" else produce(order))
