"""Jobs of every kind in fixed shares, for tests that ask what is left of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rrq.client import JobRequest
from rrq.cron import CronJob
from rrq.job import JobStatus
from waiting import eventually

if TYPE_CHECKING:
    from rrq.client import RRQClient

_TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
_UNIQUE_KEYS = 50
_WATCHED_PER_BATCH = 2


def build_request(number: int) -> JobRequest:
    """The job with this number: of twenty in a row eight are special."""
    match number % 20:
        case 0:
            return JobRequest("fail_once")
        case 1:
            return JobRequest("ask_for_a_retry")
        case 2:
            return JobRequest("fail", max_retries=1)
        case 3:
            return JobRequest("succeed", defer_by=0.3)
        case 4 if number % 400 == 4:
            # Each further one with the key waits until the lock of the one before is gone.
            return JobRequest("succeed", unique_key=f"key-{number // 400 % _UNIQUE_KEYS}")
        case 5:
            return JobRequest("succeed", trace_context=_TRACE)
        case 6:
            return JobRequest("in_thread")
        case 7:
            return JobRequest("succeed", job_id=f"chosen-{number}", queue_name="other")
        case _:
            return JobRequest("succeed")


class Load:
    """Produces jobs, and cancels and watches some of them."""

    def __init__(self, client: RRQClient) -> None:
        self._client = client
        self._tick = datetime.now(UTC) - timedelta(days=30)
        self.jobs = 0

    async def produce(self, count: int) -> None:
        """Enqueue so many jobs, and a few more that are fired, watched or cancelled."""
        client = self._client
        first = self.jobs
        jobs = await client.enqueue_many(build_request(first + number) for number in range(count))
        self.jobs += count
        await self._fire_cron()
        await self._cancel()
        watched = [job.id for job in jobs[:_WATCHED_PER_BATCH]]
        await asyncio.gather(*(client.wait_for_completion(job_id) for job_id in watched))

    async def _fire_cron(self) -> None:
        """One tick of the past: the schedule itself knows only minutes."""
        self._tick += timedelta(minutes=1)
        entry = CronJob(function_name="succeed", schedule="* * * * *")
        entry.next_run_time = self._tick
        await self._client.enqueue_cron(entry)
        self.jobs += 1

    async def _cancel(self) -> None:
        """One that waits in its queue, and one that runs: only attempts are counted by how they ended."""
        client = self._client
        later = await client.enqueue("succeed", _defer_by=600)
        running = await client.enqueue("wait")
        assert later is not None
        assert running is not None
        await client.cancel(later.id)

        async def is_running() -> bool:
            job = await client.get_job_status(running.id)
            return job is not None and job.status is JobStatus.ACTIVE

        await eventually(is_running, 120, "the job to cancel never started")
        await client.cancel(running.id)
        self.jobs += 2
