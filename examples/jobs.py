"""An application in one file: three handlers, a registry and the settings of its workers.

`python -m examples.jobs` runs one worker for it. RRQ_REDIS_DSN names the Redis.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rrq import JobRegistry, RRQSettings, RRQWorker
from rrq.exc import RetryJob
from rrq.process import run_worker


async def send_email(ctx: dict[str, Any], address: str) -> str:
    """Sleeps for about the time that a mail server takes."""
    await asyncio.sleep(random.uniform(0.05, 0.25))
    return f"sent to {address}"


async def resize_picture(ctx: dict[str, Any], name: str, *, width: int) -> dict[str, Any]:
    """Returns a value that JSON can express, so the client reads it back unchanged."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    return {"name": name, "width": width}


async def charge_card(ctx: dict[str, Any], order: int) -> str:
    """Requests a retry at the first attempt of every tenth order, because the bank is busy."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    if order % 10 == 0 and ctx["job_try"] == 1:
        raise RetryJob("the bank is busy", defer_seconds=1.0)
    return f"order {order} paid"


registry = JobRegistry()
registry.register("send_email", send_email)
registry.register("resize_picture", resize_picture)
registry.register("charge_card", charge_card)

settings = RRQSettings(job_registry=registry, worker_concurrency=50)


if __name__ == "__main__":
    run_worker(RRQWorker(settings, registry))
