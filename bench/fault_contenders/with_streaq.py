"""streaq with its defaults."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# The library lives in the contender's own environment, so its decorators look untyped from here.

from __future__ import annotations

import asyncio

from errand import CONCURRENCY, DSN, produce, run_errand
from streaq import Worker

worker = Worker(redis_url=DSN, concurrency=CONCURRENCY)


@worker.task
async def errand(job: str) -> None:
    await run_errand(job)


async def send(job: str) -> None:
    await errand.enqueue(job)


async def main() -> None:
    async with worker:
        await produce(send)


if __name__ == "__main__":
    asyncio.run(main())
