"""taskiq with the list broker or the stream broker of taskiq-redis, named by ``TASKIQ_BROKER``."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# The library lives in the contender's own environment, so its decorators look untyped from here.

from __future__ import annotations

import asyncio
import os

from errand import DSN, produce, run_errand
from taskiq_redis import ListQueueBroker, RedisStreamBroker

broker = (RedisStreamBroker if os.environ["TASKIQ_BROKER"] == "stream" else ListQueueBroker)(DSN)


# Named, because the default name is made of the module's path, which differs between worker and script.
@broker.task(task_name="errand")
async def errand(job: str) -> None:
    await run_errand(job)


async def main() -> None:
    await broker.startup()
    try:
        await produce(errand.kiq)
    finally:
        await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
