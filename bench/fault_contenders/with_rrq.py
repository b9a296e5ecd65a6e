"""rrq, this project's and RRQ 0.7.1: the same application runs on both."""

from __future__ import annotations

import asyncio
from typing import Any

from errand import CONCURRENCY, DSN, produce, run_errand

from rrq import JobRegistry, RRQClient, RRQSettings


async def errand(_context: dict[str, Any], job: str) -> None:
    await run_errand(job)


registry = JobRegistry()
registry.register("errand", errand)
settings = RRQSettings(redis_dsn=DSN, job_registry=registry, worker_concurrency=CONCURRENCY)


async def main() -> None:
    client = RRQClient(settings)
    try:
        await produce(lambda job: client.enqueue("errand", job))
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
