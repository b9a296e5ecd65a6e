"""What a starting worker does once, beside its first jobs: it publishes its limits and checks the settings of Redis."""

import asyncio
import logging

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.cron_table import cron_group
from rrq.broker.server_risks import describe_risks
from rrq.engine.cron_scheduler import CronScheduler
from rrq.engine.host import Host

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Startup:
    """The tasks of one starting worker."""

    def __init__(self, worker: Host, cron: CronScheduler) -> None:
        self._worker = worker
        self._cron = cron

    async def run(self) -> None:
        calls = [self._warn_about_redis(), self._publish_limits()]
        if not self._worker.cron_jobs:
            calls.append(self._cron.withdraw_table())
        await asyncio.gather(*calls)

    async def restore_limits(self) -> None:
        """Publish the limits again to a Redis that has lost them all."""
        if self._worker.settings.limits:
            await self._worker.job_store.publish_limits(
                self._name_source(), self._worker.settings.limits, only_if_lost=True
            )

    async def _publish_limits(self) -> None:
        """Publish the limits of this application for the fleet, and withdraw those that it no longer declares."""
        while True:
            try:
                await self._worker.job_store.publish_limits(self._name_source(), self._worker.settings.limits)
                return
            except REDIS_ERRORS as error:
                logger.info("limits not published yet", extra={"error": str(error)})
                await asyncio.sleep(self._worker._calculate_jittered_delay(_RETRY_SECONDS))

    def _name_source(self) -> str:
        return cron_group(map(self._worker.job_store.keys.queue_name, self._worker.queues))

    async def _warn_about_redis(self) -> None:
        try:
            facts = await self._worker.job_store.read_server_facts()
        except REDIS_ERRORS as error:
            logger.info("server settings not read", extra={"error": str(error)})
            return
        for risk in describe_risks(facts):
            logger.warning("%s", risk, extra={"worker_id": self._worker.worker_id})
