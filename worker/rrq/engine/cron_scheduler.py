"""Enqueues cron entries when they fall due, each tick once in the whole fleet.

Workers, operators and local mode follow the same rule: ``cron.py`` decides which tick is due, and a script in Redis
decides which process fires it. Redis stores up to when the ticks of each entry are settled, so that a process that
starts finds the ticks that were missed; the last one fires late unless it is older than ``misfire_grace_seconds``.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic

from rrq.broker.connection import REDIS_ERRORS, is_refused_for_now
from rrq.broker.cron_table import PublishCode, build_cron_table
from rrq.broker.messages import CronVerdict
from rrq.client import RRQClient
from rrq.cron import CronJob, decide_tick
from rrq.engine.host import Host
from rrq.exc import EnqueueError, RedisUnavailable, RRQError

__all__ = ["CronScheduler", "CronTracker", "fire_due", "schedule_entries"]

logger = logging.getLogger(__name__)

# How often a table is renewed, and the longest time between two looks at the clock of Redis.
_CRON_INTERVAL_SECONDS = 30.0
# Three rounds: two that Redis did not answer do not make a living publisher a dead one.
_PUBLISHER_PATIENCE_SECONDS = 3 * _CRON_INTERVAL_SECONDS + 10
_RETRY_SECONDS = 2.0
# The clocks here and in Redis differ a little: a process that wakes up early sleeps again, for this long at least.
_SHORTEST_SLEEP_SECONDS = 0.01
# One process fires a tick. The others ask as well, but not all of them in the same millisecond.
_TICK_SPREAD_SECONDS = 0.2
# Workers fire on time, so their own settings, hooks and traces nearly always have the tick.
_HEAD_START = timedelta(seconds=10)


async def schedule_entries(client: RRQClient, cron_jobs: Sequence[CronJob], now: datetime) -> None:
    """Set the next run of each entry: its first tick that is not settled, which may have come already.

    An entry that is new to the fleet has no such tick in the past.
    """
    digests = [client.identify_cron(entry) for entry in cron_jobs]
    settled = await client.job_store.note_cron_entries(digests, now)
    for cron_job, settled_at in zip(cron_jobs, settled, strict=True):
        cron_job.next_run_time = cron_job.next_after(settled_at)


async def fire_due(
    client: RRQClient, cron_jobs: Iterable[CronJob], now: datetime, head_start: timedelta = timedelta(0)
) -> list[CronJob]:
    """Enqueue the entries that are due at ``now``; returns those that were fired here.

    An entry without ``next_run_time`` is scheduled first; one whose date never comes is passed over. ``now`` is by
    the clock of Redis, so that all who call this agree on what is due. Raises RedisUnavailable when Redis gives no
    answer; what was due stays due.
    """
    cron_jobs = list(cron_jobs)
    unscheduled = [entry for entry in cron_jobs if entry.next_run_time is None and entry.next_after(now)]
    if unscheduled:
        await schedule_entries(client, unscheduled, now)
    fired = []
    for cron_job in cron_jobs:
        due = decide_tick(cron_job, now, client.settings.misfire_grace_seconds, head_start)
        if due is None:
            continue
        if due.is_too_late:
            logger.warning(
                # Another process may have fired it, for instance while this one stood still.
                "cron tick skipped by this process, because it is older than misfire_grace_seconds",
                extra={"function": cron_job.function_name, "tick": due.at.isoformat()},
            )
        else:
            cron_job.next_run_time = due.at
            verdict = await _fire(client, cron_job)
            if verdict is CronVerdict.FIRED:
                fired.append(cron_job)
            elif verdict is CronVerdict.AHEAD:
                continue  # the clock of Redis was set back, after a fail-over for instance
        cron_job.next_run_time = cron_job.next_after(now - head_start)
    return fired


async def _fire(client: RRQClient, cron_job: CronJob) -> CronVerdict | None:
    """Enqueue the tick at ``next_run_time``; None when the job of the entry cannot be enqueued."""
    try:
        return await client.enqueue_cron(cron_job)
    except RedisUnavailable:
        # Perhaps only the answer got lost: a second call never fires the tick twice.
        raise
    except (*REDIS_ERRORS, RRQError) as error:
        if is_refused_for_now(error):
            # The tick stays due: a fail-over or a full Redis must not cost the nightly job.
            raise
        logger.exception("cron entry not fired", extra={"function": cron_job.function_name})
        return None


class CronTracker:
    """Fires entries of applications that may have no running worker: for an operator, one per Redis.

    Entries are read anew from Redis or from manifests in each round. The tracker keeps the next run of each one, under
    the name by which Redis counts its ticks.
    """

    def __init__(self, client: RRQClient) -> None:
        self._client = client
        self._unattended: dict[str, CronJob] = {}
        self._attended: dict[str, CronJob] = {}

    def track(self, unattended: Iterable[CronJob], attended: Iterable[CronJob] = ()) -> None:
        """Set the entries to fire; others are forgotten.

        Attended entries have living workers, which get a head start of seconds for each tick. They are tracked as
        well, because a worker may end between a tick and the moment in which it would have fired it.
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
        fired = await fire_due(self._client, self._unattended.values(), now)
        return fired + await fire_due(self._client, self._attended.values(), now, _HEAD_START)

    def find_next_look(self) -> datetime | None:
        """Return when the next entry falls due here; None without entries."""
        looks = [entry.next_run_time for entry in self._unattended.values() if entry.next_run_time]
        looks += [
            entry.next_run_time + _HEAD_START for entry in self._attended.values() if entry.next_run_time
        ]
        return min(looks, default=None)

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
    """Fires the cron entries of one worker and publishes them, for operators that fire them when no worker runs."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        # When this process published its cron table first, by the clock of Redis in ms.
        self._first_published_ms: int | None = None
        self._unpublished: tuple[str, ...] = ()

    async def run(self) -> None:
        """Fire each tick when it falls due, until cancelled."""
        worker = self._worker
        is_scheduled = has_failed = False
        publish_at = monotonic()
        while True:
            sleep_seconds = _RETRY_SECONDS
            try:
                if monotonic() >= publish_at:
                    publish_at = monotonic() + _CRON_INTERVAL_SECONDS
                    # First: a burst may be over before a second round trip, and its pool at zero again.
                    await self.publish_table()
                if not is_scheduled:
                    await self.schedule()
                    is_scheduled = True
                await worker._maybe_enqueue_cron_jobs()
                sleep_seconds = self._seconds_to_next_tick(await worker.job_store.read_time())
                sleep_seconds += random.uniform(0.0, _TICK_SPREAD_SECONDS)
                has_failed = False
            except (*REDIS_ERRORS, RRQError):
                # Tried again every two seconds while Redis is away: once is enough.
                if not has_failed:
                    logger.exception("cron round failed", extra={"worker_id": worker.worker_id})
                has_failed = True
            await asyncio.sleep(max(_SHORTEST_SLEEP_SECONDS, min(sleep_seconds, publish_at - monotonic())))

    async def fire_due(self) -> None:
        """Enqueue the cron entries that are due, each tick once in the whole fleet."""
        # By the clock of Redis, so that all workers of a fleet agree on what is due.
        worker = self._worker
        await fire_due(worker.client, worker.cron_jobs, await worker.job_store.read_time())

    async def withdraw_table(self) -> None:
        """Withdraw the table of an earlier deployment of this application, which had cron entries.

        Repeated while there is one, because processes of that deployment may still be renewing it.
        """
        while True:
            if await self.publish_table() is PublishCode.NOTHING_TO_WITHDRAW:
                return
            await asyncio.sleep(_CRON_INTERVAL_SECONDS)

    async def schedule(self) -> None:
        worker = self._worker
        await schedule_entries(worker.client, worker.cron_jobs, await worker.job_store.read_time())
        for cron_job in worker.cron_jobs:
            if cron_job.next_run_time is None:
                # A date that never comes, such as 30 February, must not stop the other entries.
                logger.error("cron entry never fires", extra={"function": cron_job.function_name})

    def _seconds_to_next_tick(self, now: datetime) -> float:
        next_runs = (entry.next_run_time for entry in self._worker.cron_jobs if entry.next_run_time)
        return min(
            ((next_run - now).total_seconds() for next_run in next_runs), default=_CRON_INTERVAL_SECONDS
        )

    async def publish_table(self) -> PublishCode | None:
        """Publish what an operator has to enqueue when no worker runs; None when Redis refused."""
        worker = self._worker
        complete, refused = [], []
        for cron_job in worker.cron_jobs:
            try:
                complete.append(worker.client.complete_cron(cron_job))
            except EnqueueError as error:
                refused.append(str(error))
        names = [worker.job_store.keys.queue_name(name) for name in worker.queues]
        # Only how long the table is kept depends on this clock, by the day.
        table = build_cron_table(names, complete, datetime.now(UTC))
        no_room = (f"No room for the entry of {name!r} in the cron table." for name in table.left_out)
        self._warn_about_unpublished((*refused, *no_room))
        try:
            self._first_published_ms, code = await worker.job_store.publish_cron_table(
                table, self._first_published_ms, _PUBLISHER_PATIENCE_SECONDS
            )
        except (*REDIS_ERRORS, RRQError) as error:
            # Ticks must not depend on it, and the next round is soon.
            logger.warning(
                "cron table not published", extra={"worker_id": worker.worker_id, "error": str(error)}
            )
            return None
        return code

    def _warn_about_unpublished(self, reasons: tuple[str, ...]) -> None:
        for reason in reasons:
            if reason not in self._unpublished:
                logger.warning(
                    "cron entry fires only while a worker runs",
                    extra={"worker_id": self._worker.worker_id, "error": reason},
                )
        self._unpublished = reasons
