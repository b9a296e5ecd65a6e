"""What is done for a Redis once a second beside the size of its pools.

It reports and reaps dead workers, publishes how the pools stand for dashboards, and fires the cron entries that no worker
fires. ``pool_group.py`` calls it after its observations.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from rrq.broker.messages import Observation
from rrq.cron import CronJob
from rrq.runtime.masking import mask_secrets
from rrq_operator.api.spec import Pool
from rrq_operator.decide.cron_entries import build_cron_jobs, split_tables
from rrq_operator.decide.deaths import Deaths
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.publishing import Publisher
from rrq_operator.decide.status import Fault
from rrq_operator.redis.complaints import Complaint
from rrq_operator.redis.queues import QueueTrouble, RedisQueues

if TYPE_CHECKING:
    from rrq.broker.cron_table import CronTable
    from rrq.flow import PoolReport

logger = logging.getLogger(__name__)

#: How often Redis is searched for reports on pools that no operator looks after any more.
_STRANGERS_SECONDS = 600.0
#: A worker that renews after a hint is alive, and is not bothered again within this time.
_HINT_SECONDS = 60.0
#: Half of what the election gives the work of a leader to end.
_CLOSE_SECONDS = 0.5
#: Connections that are being closed after their group has ended; kept, or Python would collect them on the way.
_closing: set[asyncio.Task[None]] = set()


class KnownPool(Protocol):
    """A pool of the group, as far as it matters here."""

    pool: Pool | None
    queue_names: tuple[str, ...]

    def build_report(self, now_ms: int) -> "PoolReport | None": ...


class GroupListener:
    """Gets what happens in a group beside the size of its pools: the operator counts and logs it, local mode prints it."""

    def find_deaths(self, seen: Observation) -> Deaths:
        """Return which of these workers are dead for certain, and which perhaps."""
        return Deaths()

    def redis_failed(self, fault: Fault, *, is_new: bool) -> None:
        """Redis could not be read in a round."""

    def redis_answered(self) -> None:
        """Redis can be read again."""

    def write_failed(self, trouble: QueueTrouble) -> None:
        """Something could not be done in Redis; the next round retries."""

    def jobs_not_set_aside(self, trouble: QueueTrouble) -> None:
        """Blocked jobs could not be put aside: sizing goes on, and may ask for more pods than are needed."""

    def jobs_returned(self, count: int, *, is_container_dead: bool) -> None:
        """Jobs of dead workers are queued again."""

    def cron_fired(self, entry: CronJob) -> None:
        """The job of a cron entry was enqueued."""


class Housekeeping:
    """The work beside sizing for one Redis; failures are reported, and never stop a round."""

    def __init__(self, queues: RedisQueues, listener: GroupListener) -> None:
        self._queues = queues
        self._listener = listener
        self._publisher = Publisher()
        self._publishing: asyncio.Task[None] | None = None
        self._unpublished, self._unswept, self._unreported = Complaint(), Complaint(), Complaint()
        self._strangers_at = 0.0
        self._hinted: dict[str, float] = {}
        #: How often the cron entries that workers publish are read.
        self.cron_tables_seconds = 20.0
        self._tables: tuple[CronTable, ...] = ()
        self._tables_at = 0.0
        self._entries: dict[PoolKey, tuple[Pool, list[CronJob]]] = {}

    async def reap(self, seen: Observation) -> None:
        """Return the jobs of dead workers to their queues: with its pools at zero, no worker does."""
        await self._report_deaths(self._listener.find_deaths(seen))
        if not seen.ended_leases:
            return
        try:
            returned = await self._queues.sweep()
        except QueueTrouble as trouble:
            self._listener.write_failed(trouble)
            if self._unswept.is_news(str(trouble)):
                logger.warning("jobs of lost workers not requeued", extra={"error": str(trouble)})
        else:
            self._unswept.said = ""
            self._listener.jobs_returned(returned, is_container_dead=False)

    async def publish_and_fire(self, seen: Observation, pools: Mapping[PoolKey, KnownPool]) -> float:
        """Publish the reports and fire cron entries; returns when the next entry is due, by the monotonic clock."""
        for controller in pools.values():
            if (report := controller.build_report(seen.now_ms)) is not None:
                self._publisher.note(report)
        # Beside the rounds: the size of a pool does not wait for dashboards.
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(self._publish(seen.now_ms), name="rrq-publishing")
        return await self.fire_cron(seen, pools.values())

    def forget(self, key: PoolKey) -> None:
        """Have a pool forgotten that is gone or has left this Redis."""
        self._publisher.forget("/".join(key))
        self._entries.pop(key, None)

    async def fire_cron(self, seen: Observation, pools: Iterable[KnownPool]) -> float:
        """Enqueue what is due by the schedules of the pools, and of applications that are not running."""
        try:
            if monotonic() >= self._tables_at:
                self._tables_at = monotonic() + self.cron_tables_seconds
                self._tables = await self._queues.read_cron_tables()
            known = [controller for controller in pools if controller.pool is not None]
            declared = [entry for one in known if one.pool for entry in self._entries_of(one.pool)]
            unattended, attended = self._split_tables(seen, known) if self._tables else ([], [])
            self._queues.track_cron([*declared, *unattended], attended)
            for entry in await self._queues.fire_cron(seen.now_ms):
                self._listener.cron_fired(entry)
        except QueueTrouble as trouble:
            self._listener.write_failed(trouble)
        look_at_ms = self._queues.next_cron_look_ms()
        if look_at_ms is None or look_at_ms <= seen.now_ms:
            return float("inf")
        return monotonic() + (look_at_ms - seen.now_ms) / 1000

    async def close(self, listening: asyncio.Task[None], *, is_last: bool) -> None:
        """Close the connections, and wait for that only briefly: a dead Redis must not hold up the end of a term."""
        closing = asyncio.create_task(self._close(listening, is_last=is_last), name="rrq-closing")
        _closing.add(closing)
        closing.add_done_callback(_note_closed)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)

    async def _close(self, listening: asyncio.Task[None], *, is_last: bool) -> None:
        await end_task(listening)
        if self._publishing is not None:
            await end_task(self._publishing)
        if is_last:
            await self._publish(0)
        await self._queues.aclose()

    async def _report_deaths(self, deaths: Deaths) -> None:
        now = monotonic()
        self._hinted = {name: at for name, at in self._hinted.items() if now - at < _HINT_SECONDS}
        fresh = tuple(name for name in deaths.hints if name not in self._hinted)
        if not (deaths.certificates or fresh):
            return
        try:
            returned = await self._queues.report(replace(deaths, hints=fresh))
        except QueueTrouble as trouble:
            self._listener.write_failed(trouble)
            if self._unreported.is_news(str(trouble)):
                logger.warning("deaths not reported", extra={"error": str(trouble)})
        else:
            self._unreported.said = ""
            self._listener.jobs_returned(returned, is_container_dead=True)
            self._hinted |= dict.fromkeys(fresh, now)

    async def _publish(self, now_ms: int) -> None:
        """Publish what is new for dashboards; the next round retries what failed."""
        try:
            if now_ms and monotonic() >= self._strangers_at:
                self._strangers_at = monotonic() + _STRANGERS_SECONDS
                self._publisher.note_strangers(await self._queues.read_published(), now_ms)
            if publication := self._publisher.take(monotonic()):
                await self._queues.publish(publication)
                self._publisher.confirm(publication, monotonic())
            self._unpublished.said = ""
        except QueueTrouble as trouble:
            if self._unpublished.is_news(str(trouble)):
                logger.warning("pools not published", extra={"error": str(trouble)})
        # Any client may have stored anything there, and sizes do not depend on dashboards.
        except Exception as error:
            if self._unpublished.is_news(repr(error)):
                logger.exception("pools not published", extra={"redis": repr(self._queues.identity)})

    def _split_tables(
        self, seen: Observation, pools: Iterable[KnownPool]
    ) -> tuple[list[CronJob], list[CronJob]]:
        short = self._queues.short_name
        served = [[short(name) for name in worker.queues] for worker in seen.workers.values()]
        return split_tables(self._tables, [pool.queue_names for pool in pools], served)

    def _entries_of(self, pool: Pool) -> list[CronJob]:
        """Return the cron entries of a spec, built once for each."""
        if not pool.spec.cron:
            return []
        known = self._entries.get(pool.key)
        if known is None or known[0] is not pool:
            known = self._entries[pool.key] = pool, build_cron_jobs(pool.spec)
        return known[1]


def _note_closed(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("Redis connection not closed cleanly", extra={"error": mask_secrets(str(error))})


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: libraries may swallow a cancellation that comes at the wrong moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)
