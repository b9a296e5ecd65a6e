"""saq with its defaults."""

# mypy: disable-error-code="import-not-found"
# The library lives in the contender's own environment.

from __future__ import annotations

import asyncio
from typing import Any

from errand import CONCURRENCY, DSN, produce, run_errand
from saq import Queue


async def errand(_context: dict[str, Any], *, job: str) -> None:
    await run_errand(job)


queue = Queue.from_url(DSN)
settings = {"queue": queue, "functions": [errand], "concurrency": CONCURRENCY}


async def main() -> None:
    await queue.connect()
    try:
        await produce(lambda job: queue.enqueue("errand", job=job))
    finally:
        await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(main())
