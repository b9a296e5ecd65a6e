"""Enqueues cron entries when they fall due, each tick once in the whole fleet.

Everybody looks, workers and operators alike; a script in Redis decides who was first. When a schedule comes
next is computed in ``cron.py``. Nothing is made up for: a tick that came while nobody was looking at all is
gone, and only one that somebody saw coming is fired late, after Redis was away for instance.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from rrq.client import RRQClient
from rrq.connection import REDIS_ERRORS
from rrq.cron import CronJob
from rrq.cron_table import PublishCode, build_cron_table
from rrq.exc import EnqueueError, RedisUnavailable, RRQError
from rrq.messages import CronVerdict
from rrq.settings import RRQSettings
from rrq.store import JobStore

__all__ = ["CronScheduler", "CronTracker", "fire_due"]

logger = logging.getLogger(__name__)

_CRON_INTERVAL_SECONDS = 30.0
# Three rounds: two that Redis did not answer do not make a living publisher a dead one.
_PUBLISHER_PATIENCE_SECONDS = 3 * _CRON_INTERVAL_SECONDS + 10
# Two rounds of a worker: until then its own settings, hooks and traces should have the tick.
_HEAD_START = timedelta(seconds=2 * _CRON_INTERVAL_SECONDS)


async def fire_due(client: RRQClient, cron_jobs: Iterable[CronJob], now: datetime) -> list[CronJob]:
    """Enqueue the entries that are due at ``now``; returns those that were fired here.

    An entry without ``next_run_time`` is scheduled from ``now``. ``now`` is by the clock of Redis, so that
    all who call this agree on what is due. Raises RedisUnavailable when Redis gives no answer; what was due
    stays due.
    """
    fired = []
    for cron_job in cron_jobs:
        if cron_job.next_run_time is None:
            _advance(cron_job, now)
        if cron_job.next_run_time is None or not cron_job.due(now):
            continue
        try:
            if await client.enqueue_cron(cron_job) is CronVerdict.FIRED:
                fired.append(cron_job)
        except RedisUnavailable:
            # Perhaps it was fired and only the answer got lost: asking again fires nothing twice.
            raise
        except (*REDIS_ERRORS, RRQError):
            logger.exception("cron entry not fired", extra={"function": cron_job.function_name})
        _advance(cron_job, now)
    return fired


def _advance(cron_job: CronJob, now: datetime) -> None:
    try:
        cron_job.schedule_next(now)
    except ValueError:
        # A date that never comes, such as 30 February, must not stop the other entries.
        cron_job.next_run_time = None
        logger.exception("cron entry never fires", extra={"function": cron_job.function_name})


class CronTracker:
    """Looks after entries of applications that may not be running: for an operator, one per Redis.

    Entries come anew from Redis or from manifests again and again; which run is next is remembered here, by
    what an entry is. An entry seen for the first time is scheduled from that moment on. Only those tracked at
    the first look are scheduled from ``lookback`` before it: a standby that takes over within that time
    misses no tick, and an entry that comes later does not fire for a time at which it did not exist.
    """

    def __init__(self, client: RRQClient, lookback: timedelta = timedelta(0)) -> None:
        self._client = client
        self._lookback = lookback
        self._unattended: dict[str, CronJob] = {}
        self._attended: dict[str, CronJob] = {}

    def track(self, unattended: Iterable[CronJob], attended: Iterable[CronJob] = ()) -> None:
        """Set the entries to look after; others are forgotten.

        Attended ones have living workers, which get a head start of a minute for each tick. They are
        tracked nevertheless: a worker may go between a tick and the round in which it would have fired it.
        """
        known = self._unattended | self._attended
        self._attended = self._keep_next_runs(attended, known)
        self._unattended = {
            name: cron_job
            for name, cron_job in self._keep_next_runs(unattended, known).items()
            if name not in self._attended
        }

    async def fire_due(self, now: datetime) -> list[CronJob]:
        """Enqueue what has fallen due since the last call; returns the entries that were fired here."""
        unattended, attended = self._schedule(self._unattended, now), self._schedule(self._attended, now)
        self._lookback = timedelta(0)
        fired = await fire_due(self._client, unattended, now)
        return fired + await fire_due(self._client, attended, now - _HEAD_START)

    def _schedule(self, tracked: dict[str, CronJob], now: datetime) -> list[CronJob]:
        """Return the entries that have a next run; those whose date never comes have none."""
        for cron_job in tracked.values():
            if cron_job.next_run_time is None:
                cron_job.next_run_time = cron_job.next_after(now - self._lookback)
        return [cron_job for cron_job in tracked.values() if cron_job.next_run_time is not None]

    def _keep_next_runs(self, cron_jobs: Iterable[CronJob], known: dict[str, CronJob]) -> dict[str, CronJob]:
        tracked = {}
        for cron_job in cron_jobs:
            name = self._client.identify_cron(cron_job)
            before = known.get(name)
            # A copy: the same entry may be shared with others, and its next run is ours.
            tracked[name] = cron_job.model_copy(
                update={"next_run_time": None if before is None else before.next_run_time}
            )
        return tracked


class CronScheduler:
    """The part of a worker that looks after its cron entries."""

    worker_id: str
    settings: RRQSettings
    queues: list[str]
    job_store: JobStore
    client: RRQClient
    cron_jobs: list[CronJob]
    # When this process published its cron table first, by the clock of Redis in ms.
    _first_published_ms: int | None = None
    _unpublished: tuple[str, ...] = ()

    async def _cron_loop(self) -> None:
        is_scheduled = False
        while True:
            try:
                # First: a burst may be over before a second round trip, and its pool at zero again.
                await self._publish_cron_table()
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
            _advance(cron_job, now)

    async def _maybe_enqueue_cron_jobs(self) -> None:
        """Enqueue the cron entries that are due, each tick once in the whole fleet."""
        # By the clock of Redis, so that all workers of a fleet agree on what is due.
        await fire_due(self.client, self.cron_jobs, await self.job_store.read_time())

    # The table in Redis

    async def _withdraw_cron_table(self) -> None:
        """Take back the table of an earlier deployment of this application, which had cron entries.

        Repeated while there is one, because processes of that deployment may still be renewing it.
        """
        while True:
            if await self._publish_cron_table() is PublishCode.NOTHING_TO_WITHDRAW:
                return
            await asyncio.sleep(_CRON_INTERVAL_SECONDS)

    async def _publish_cron_table(self) -> PublishCode | None:
        """Write down what an operator has to enqueue when no worker runs; None when Redis refused."""
        complete, refused = [], []
        for cron_job in self.cron_jobs:
            try:
                complete.append(self.client.complete_cron(cron_job))
            except EnqueueError as error:
                refused.append(str(error))
        names = [self.job_store.keys.queue_name(name) for name in self.queues]
        # Only how long the table is kept depends on this clock, by the day.
        table = build_cron_table(names, complete, datetime.now(UTC))
        no_room = (f"No room for the entry of {name!r} in the cron table." for name in table.left_out)
        self._tell_unpublished((*refused, *no_room))
        try:
            self._first_published_ms, code = await self.job_store.publish_cron_table(
                table, self._first_published_ms, _PUBLISHER_PATIENCE_SECONDS
            )
        except (*REDIS_ERRORS, RRQError) as error:
            # Ticks must not depend on it, and the next round is soon.
            logger.warning(
                "cron table not published", extra={"worker_id": self.worker_id, "error": str(error)}
            )
            return None
        return code

    def _tell_unpublished(self, reasons: tuple[str, ...]) -> None:
        for reason in reasons:
            if reason not in self._unpublished:
                logger.warning(
                    "cron entry fires only while a worker runs",
                    extra={"worker_id": self.worker_id, "error": reason},
                )
        self._unpublished = reasons
