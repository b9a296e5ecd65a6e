"""Questions about a whole fleet: is every job done, once, and is nothing left behind?"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from rrq import RRQWorker
from rrq.client import JobRequest
from running import running
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rrq.client import RRQClient
    from rrq.job import Job, JobStatus
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


@contextlib.asynccontextmanager
async def running_worker(
    settings: RRQSettings, registry: JobRegistry, **options: Any
) -> AsyncIterator[RRQWorker]:
    """A worker that runs in this event loop for the length of the block."""
    worker = RRQWorker(settings, registry, **options)
    async with running(worker):
        yield worker


async def enqueue_some(
    client: RRQClient, function: str, *args: Any, count: int = 1, **options: Any
) -> list[Job]:
    """Queue `count` equal jobs; `options` are fields of JobRequest."""
    return await client.enqueue_many([JobRequest(function, args, **options)] * count)


async def all_done(store: JobStore, jobs: Sequence[Job], timeout_seconds: float = 30.0) -> None:
    """Wait until every job is COMPLETED."""

    async def statuses() -> bool:
        pipe = store.redis.pipeline(transaction=False)
        for job in jobs:
            pipe.hget(store.keys.job_key(job.id), "status")
        found = await pipe.execute()
        unfinished = {
            job.id: status for job, status in zip(jobs, found, strict=True) if status != b"COMPLETED"
        }
        assert not unfinished, (
            f"{len(unfinished)} of {len(jobs)} not done: {dict(list(unfinished.items())[:5])}"
        )
        return True

    await eventually(statuses, timeout_seconds, "jobs were not all completed")


async def assert_nothing_in_hand(store: JobStore) -> None:
    """No active set, no lock, no queue entry is left."""

    async def leftovers() -> bool:
        left = []
        for pattern in ("rrq:active:jobs:*", "rrq:lock:job:*", "rrq:queue:*"):
            left += [key async for key in store.redis.scan_iter(pattern)]
        assert not left, left
        return True

    await eventually(leftovers, 10.0, "something stayed in hand")


async def status_of(store: JobStore, job: Job) -> JobStatus | None:
    found = await store.get_job_definition(job.id)
    return None if found is None else found.status
