"""A process that logs as the command line does; run as a script: what to do, and DSNs of Redis."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback

from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker
from rrq.runtime.logs import configure_logging

logger = logging.getLogger("logging_process")


def hello() -> None:
    logger.info("hello\nworld", extra={"job_id": "j 1", "attempt": 2})
    try:
        raise ValueError("first line\nsecond line")
    except ValueError:
        logger.exception("failed")


def burst(dsn: str) -> None:
    """Work until it is certain that Redis cannot be had."""
    settings = RRQSettings(redis_dsn=dsn, worker_burst_redis_patience_seconds=0.1)
    logger.info("settings are %s", settings, extra={"dsn": dsn, "settings": settings})
    asyncio.run(RRQWorker(settings, JobRegistry(), burst=True).run())


def produce(dsn: str) -> None:
    async def enqueue() -> None:
        client = RRQClient(RRQSettings(redis_dsn=dsn))
        try:
            await client.enqueue("anything")
        finally:
            await client.close()

    asyncio.run(enqueue())


def contradict(dsn: str) -> None:
    """Give settings that cannot be."""
    RRQSettings(redis_dsn=dsn, worker_lease_seconds=1, worker_lease_renewal_seconds=2)


def get_into_trouble(*dsns: str) -> None:
    for number, dsn in enumerate(dsns):
        for task in (contradict, produce, burst):
            try:
                task(dsn)
            except Exception:
                logger.exception("ended by an error", extra={"task": task.__name__, "number": number})
                # What the interpreter prints of an error that nobody catches.
                traceback.print_exc()


if __name__ == "__main__":
    configure_logging(level="DEBUG", context={"pod": "a"})
    {"hello": hello, "get_into_trouble": get_into_trouble}[sys.argv[1]](*sys.argv[2:])
