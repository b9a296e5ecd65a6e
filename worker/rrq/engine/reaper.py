"""Reaps dead workers: returns their jobs to their queues.

The reap script decides which workers are dead; this module decides when to call it. Every lease keeper and every
supervisor does, each with some jitter, so that recovery depends on no single process.
"""

import logging
import random
from time import monotonic

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Renewal
from rrq.runtime.metrics import Meter
from rrq.store import JobStore

logger = logging.getLogger(__name__)

# The whole fleet notices a dead worker at once. Within this time one process comes first, and the others find nothing
# left to do.
_JITTER_SECONDS = 0.3


class Reaper:
    """Reaps when the next lease ends."""

    def __init__(self, store: JobStore, meter: Meter | None = None) -> None:
        self._store = store
        self._meter = meter or Meter()
        self._due_at: float | None = None

    def plan(self, renewal: Renewal) -> None:
        """Schedule the next reap for the end of the first lease that runs out."""
        if renewal.next_lease_end_ms is None:
            self._due_at = None
            return
        self._plan_in((renewal.next_lease_end_ms - renewal.now_ms) / 1000)

    def seconds_until_due(self) -> float | None:
        """Return how long until a reap is due; None when no lease is known to end."""
        return None if self._due_at is None else max(0.0, self._due_at - monotonic())

    async def run_once(self) -> int:
        """Reap until no dead worker is left that can be reaped now; returns the number of jobs that were requeued."""
        returned = 0
        while True:
            try:
                report = await self._store.reap_workers()
            except REDIS_ERRORS as error:
                logger.warning("reaping failed, trying again", extra={"error": str(error)})
                self._plan_in(1.0)
                return returned
            returned += report.returned
            self._meter.count("rrq_reaped_jobs_total", "lease", by=report.returned)
            self._meter.count("rrq_buried_jobs_total", by=report.buried)
            if report.workers:
                logger.warning(
                    "jobs of lost workers are due again",
                    extra={
                        "workers": report.workers,
                        "jobs": report.returned,
                        "dead_lettered": report.buried,
                    },
                )
            if not report.has_more or report.put_off_until_ms is not None:
                break
        # The next heartbeat plans the next reap.
        self._due_at = None
        return returned

    def _plan_in(self, seconds: float) -> None:
        self._due_at = monotonic() + max(0.0, seconds) + random.uniform(0.0, _JITTER_SECONDS)
