"""arq with its defaults."""

# mypy: disable-error-code="import-not-found"
# The library lives in the contender's own environment.

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from arq import create_pool
from arq.connections import RedisSettings
from errand import CONCURRENCY, DSN, produce, run_errand


async def errand(_context: dict[str, Any], job: str) -> None:
    await run_errand(job)


class WorkerSettings:
    functions: ClassVar = [errand]
    redis_settings = RedisSettings.from_dsn(DSN)
    max_jobs = CONCURRENCY


async def main() -> None:
    pool = await create_pool(RedisSettings.from_dsn(DSN))
    try:
        await produce(lambda job: pool.enqueue_job("errand", job))
    finally:
        await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main())
