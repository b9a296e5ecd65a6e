"""dramatiq with its defaults: threads instead of an event loop."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# The library lives in the contender's own environment, so its decorators look untyped from here.

from __future__ import annotations

import asyncio

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from errand import DSN, produce, run_errand_in_thread

dramatiq.set_broker(RedisBroker(url=DSN))


@dramatiq.actor
def errand(job: str) -> None:
    run_errand_in_thread(job)


async def send(job: str) -> None:
    # Its producer blocks; one after the other is all it offers in one thread.
    errand.send(job)


if __name__ == "__main__":
    asyncio.run(produce(send))
