"""Workers and other tasks inside a test: started in its event loop, and always stopped in order."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rrq.worker import RRQWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings


@asynccontextmanager
async def running(*workers: RRQWorker) -> AsyncIterator[None]:
    """Run the workers for the length of the block, then shut them down and wait for their end."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker._request_shutdown()
        await asyncio.gather(*tasks)


async def run_burst(settings: RRQSettings, registry: JobRegistry, **options: Any) -> RRQWorker:
    """Run everything that is due, and return the worker that did."""
    worker = RRQWorker(settings, registry, burst=True, **options)
    await worker.run()
    return worker


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended, and raise what it failed with.

    Once is not enough on Python 3.11: `asyncio.wait_for` loses a cancellation that arrives just as its inner future
    ends, and redis-py sends with it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)
    if not task.cancelled():
        task.result()


@asynccontextmanager
async def by_hand(worker: RRQWorker) -> AsyncIterator[RRQWorker]:
    """Use the methods of a worker one at a time, without its loop; cleaned up at the end."""
    worker._loop = asyncio.get_running_loop()
    try:
        yield worker
    finally:
        await worker._drain_tasks()
        await worker._wind_down()
        await worker.close()


async def stays_true(
    predicate: Callable[[], object | Awaitable[object]], seconds: float, message: str = "it changed"
) -> None:
    """Fail as soon as `predicate` is false; return when it has been true for the whole time."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        assert value, f"{message} (within {seconds} s; last seen: {value!r})"
        await asyncio.sleep(0.02)
