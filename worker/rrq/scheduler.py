"""Enqueues cron entries when they fall due, each tick once in the whole fleet.

Every worker looks; a script in Redis decides who was first. When a schedule comes next is computed in
``cron.py``.
"""

import asyncio
import logging
from datetime import datetime

from rrq.client import RRQClient
from rrq.connection import REDIS_ERRORS
from rrq.cron import CronJob
from rrq.exc import RRQError
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_CRON_INTERVAL_SECONDS = 30.0


class CronScheduler:
    """The part of a worker that looks after its cron entries."""

    worker_id: str
    job_store: JobStore
    client: RRQClient
    cron_jobs: list[CronJob]

    async def _cron_loop(self) -> None:
        is_scheduled = False
        while True:
            try:
                if not is_scheduled:
                    await self._schedule_cron_jobs()
                    is_scheduled = True
                await self._maybe_enqueue_cron_jobs()
            except (*REDIS_ERRORS, RRQError):
                logger.exception("cron round failed", extra={"worker_id": self.worker_id})
            await asyncio.sleep(_CRON_INTERVAL_SECONDS)

    async def _schedule_cron_jobs(self) -> None:
        now = await self.job_store.read_time()
        for cron_job in self.cron_jobs:
            self._advance(cron_job, now)

    async def _maybe_enqueue_cron_jobs(self) -> None:
        """Enqueue the cron entries that are due, each tick once in the whole fleet."""
        # By the clock of Redis, so that all workers of a fleet agree on what is due.
        now = await self.job_store.read_time()
        for cron_job in self.cron_jobs:
            if cron_job.next_run_time is None:
                self._advance(cron_job, now)
            if cron_job.next_run_time is None or not cron_job.due(now):
                continue
            try:
                await self.client.enqueue_cron(cron_job)
            except (*REDIS_ERRORS, RRQError):
                logger.exception("cron entry not fired", extra={"function": cron_job.function_name})
            self._advance(cron_job, now)

    def _advance(self, cron_job: CronJob, now: datetime) -> None:
        try:
            cron_job.schedule_next(now)
        except ValueError:
            # A date that never comes, such as 30 February, must not stop the other entries.
            cron_job.next_run_time = None
            logger.exception("cron entry never fires", extra={"function": cron_job.function_name})
