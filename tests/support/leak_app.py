"""The application of the leak tests: every way in which a job can end, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from rrq import JobRegistry, RRQSettings
from rrq.exc import RetryJob


async def succeed(ctx: dict[str, Any], seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def fail_once(ctx: dict[str, Any]) -> str:
    if ctx["job_try"] == 1:
        raise RuntimeError("only the first time")
    return "done"


async def ask_for_a_retry(ctx: dict[str, Any]) -> str:
    if ctx["job_try"] == 1:
        raise RetryJob("not yet", defer_seconds=0.05)
    return "done"


async def fail(ctx: dict[str, Any]) -> None:
    raise RuntimeError("every time")


async def wait(ctx: dict[str, Any]) -> None:
    """Go on until cancelled."""
    await asyncio.sleep(300)


def in_thread(ctx: dict[str, Any]) -> str:
    return "done"


registry = JobRegistry()
for handler in (succeed, fail_once, ask_for_a_retry, fail, wait, in_thread):
    registry.register(handler.__name__, handler)

settings = RRQSettings(job_registry=registry)
