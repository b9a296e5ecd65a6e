"""Jobs without a pause while something happens to Redis: none may be lost, none may run twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from fleet import running_worker
from rrq.client import RRQClient
from rrq.exc import RedisUnavailable
from rrq.registry import JobRegistry
from rrq.store import JobStore
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.settings import RRQSettings


class Runs:
    """What handlers did, kept outside Redis."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.registry = JobRegistry()
        self.registry.register("note", self.note)

    async def note(self, ctx: dict[str, Any], seconds: float = 0.0) -> None:
        self.counts[ctx["job_id"]] += 1
        await asyncio.sleep(seconds)


class Producer:
    """Enqueues without a pause, each job until Redis has taken it."""

    def __init__(self, settings: RRQSettings) -> None:
        self.client = RRQClient(settings)
        self.job_ids: list[str] = []
        self._task: asyncio.Task[None] | None = None

    async def _produce(self) -> None:
        while True:
            job_id = f"job-{len(self.job_ids)}"
            try:
                await self.client.enqueue("note", 0.005, _job_id=job_id)
            except RedisUnavailable:
                await asyncio.sleep(0.05)
                continue
            self.job_ids.append(job_id)
            await asyncio.sleep(0.002)

    async def has_made(self, count: int) -> None:
        """Wait for so many further jobs."""
        wanted = len(self.job_ids) + count

        def is_enough() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()  # raises what ended it
            return len(self.job_ids) >= wanted

        await eventually(is_enough, 60, "nothing could be enqueued any more")

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._produce())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await end(self._task)
        await self.client.close()


@asynccontextmanager
async def jobs_all_the_time(settings: RRQSettings, runs: Runs) -> AsyncIterator[Producer]:
    """A worker and a producer for the length of the block; then each job must have run once."""
    async with running_worker(settings, runs.registry):
        async with Producer(settings) as producer:
            await producer.has_made(50)
            yield producer
            await producer.has_made(50)
        await eventually(lambda: not set(producer.job_ids) - runs.counts.keys(), 60, "jobs were lost")
        async with aclosing(JobStore(settings)) as store:

            async def is_empty() -> bool:
                return not (await store.observe(["default"])).queues["default"].due

            await eventually(is_empty, 60, "jobs were left over")
    again = {job_id: count for job_id, count in runs.counts.items() if count > 1}
    assert not again, (
        f"{len(again)} of {len(producer.job_ids)} jobs ran more than once: {list(again.items())[:5]}"
    )
