"""arq 0.28 as a contender."""

# mypy: disable-error-code="import-not-found"
# The library lives in the contender's own environment.

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from contest import (
    POLL_DELAY_SECONDS,
    AsyncContest,
    Order,
    enqueue_all,
    parse_order,
    send_stamped,
)


async def produce(order: Order) -> None:
    pool = await create_pool(RedisSettings.from_dsn(order.dsn))

    async def send_one(number: int) -> None:
        await pool.enqueue_job("noop", number)

    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one)
    finally:
        await pool.aclose()


async def work(order: Order) -> None:
    contest = AsyncContest(order)

    async def noop(_context: dict[str, Any], number: int) -> None:
        await contest.handle(number)

    worker = Worker(
        [func(noop, name="noop")],
        redis_settings=RedisSettings.from_dsn(order.dsn),
        max_jobs=order.concurrency,
        poll_delay=POLL_DELAY_SECONDS,
        handle_signals=False,
    )

    async def is_recorded() -> bool:
        return bool(worker.job_counter == 0)

    watcher = asyncio.create_task(contest.watch(is_recorded))
    await worker.async_run()
    watcher.cancel()


if __name__ == "__main__":
    order = parse_order()
    uvloop.run(work(order) if order.command == "work" else produce(order))
