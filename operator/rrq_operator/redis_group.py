"""All pools of one Redis: one observation a round, however many there are.

A round comes when a producer announces a queue (then only for the pools of that queue), when a child of a pool has
changed, and every second for all of them, because producers of RRQ 0.7 announce nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from rrq.cron import CronJob
from rrq.messages import Observation, WorkerObservation
from rrq_operator.burst_pool import BurstPool
from rrq_operator.deaths import find_deaths
from rrq_operator.queues import QueueTrouble, RedisQueues
from rrq_operator.redis_sources import RedisIdentity
from rrq_operator.replica_pool import ReplicaPool
from rrq_operator.shell import Round, Shell
from rrq_operator.spec import Pool
from rrq_operator.status import Fault
from rrq_operator.views import PodView, PoolKey

if TYPE_CHECKING:
    from rrq.cron_table import CronTable

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
#: A queue is announced at most every 50 ms: what came right after an announcement is seen by looking once more.
_SECOND_LOOK_SECONDS = 0.06
_CHILD_CHANGED_SECONDS = 0.1
_SHORTEST_GAP_SECONDS = 0.01
#: Rounds may take this share of the time at most; the rest of the operator wants to live too.
_MOST_SHARE = 0.25
_CRON_TABLES_SECONDS = 20.0
_ACTIONS_AT_ONCE = 20

Controller = ReplicaPool | BurstPool


class Member:
    """One pool in a group."""

    def __init__(self, pool: Pool, controller: Controller, secret_version: str, queues: RedisQueues) -> None:
        self.pool = pool
        self.controller = controller
        self.secret_version = secret_version
        self.queue_names = tuple(queues.short_name(name) for name in pool.spec.queues)
        self.cron_entries = _declared_entries(pool)
        self.acting: asyncio.Task[None] | None = None


class RedisGroup:
    """One Redis identity and the pools that use it. ``run`` is its loop."""

    def __init__(self, identity: RedisIdentity, shell: Shell) -> None:
        self.identity = identity
        self._shell = shell
        self._queues = RedisQueues(identity)
        self._members: dict[PoolKey, Member] = {}
        self._by_queue: dict[str, set[PoolKey]] = {}
        self._dirty: set[PoolKey] = set()
        self._heard_at: float | None = None
        self._next_at = 0.0
        self._next_full_at = 0.0
        self._wake = asyncio.Event()
        self._actions = asyncio.Semaphore(_ACTIONS_AT_ONCE)
        self._tables: tuple[CronTable, ...] = ()
        self._tables_at = 0.0
        self._hinted: dict[str, float] = {}
        #: Set when Redis refuses the credentials: the Secret may have a newer password.
        self.is_refused = False
        #: When a round ended last, for the watchdog.
        self.ticked_at = monotonic()

    @property
    def redis_calls(self) -> int:
        return self._queues.calls

    def set_members(self, members: Mapping[PoolKey, tuple[Pool, Controller, str]]) -> None:
        """Take in which pools belong here; those that are new or changed get a round at once."""
        for key in self._members.keys() - members.keys():
            del self._members[key]
        for key, (pool, controller, version) in members.items():
            known = self._members.get(key)
            if known is not None and known.pool is pool and known.secret_version == version:
                continue
            member = Member(pool, controller, version, self._queues)
            member.acting = None if known is None else known.acting
            self._members[key] = member
            self.touch(key)
        self._by_queue = {}
        for key, member in self._members.items():
            for name in member.queue_names:
                self._by_queue.setdefault(name, set()).add(key)

    def touch(self, key: PoolKey, delay_seconds: float = 0.0) -> None:
        """Have a pool looked at soon."""
        if key in self._members:
            self._dirty.add(key)
            self._plan(monotonic() + delay_seconds)

    async def run(self) -> None:
        """Go round until cancelled."""
        listener = asyncio.create_task(self._queues.listen(self._hear), name="rrq-listener")
        try:
            while True:
                await self._wait()
                started_at = monotonic()
                try:
                    await self._tick()
                except Exception:
                    # A loop for many tenants must survive what one of them provokes.
                    logger.exception("round failed", extra={"redis": repr(self.identity)})
                self.ticked_at = monotonic()
                took = self.ticked_at - started_at
                self._shell.metrics.tick_seconds.observe(took)
                self._plan_after(took)
        finally:
            listener.cancel()
            acting = [member.acting for member in self._members.values() if member.acting is not None]
            for task in acting:
                task.cancel()
            await asyncio.gather(listener, *acting, return_exceptions=True)
            await self._queues.aclose()

    # When

    def _hear(self, queue: str) -> None:
        keys = self._by_queue.get(queue)
        if keys:
            now = monotonic()
            self._heard_at = self._heard_at or now
            self._dirty |= keys
            self._plan(now)

    def _plan(self, at: float) -> None:
        if at < self._next_at:
            self._next_at = at
            self._wake.set()

    async def _wait(self) -> None:
        while (left := self._next_at - monotonic()) > 0:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return

    def _plan_after(self, took_seconds: float) -> None:
        """Plan the next round: not before others had their share of the time, not after the poll is due."""
        now = monotonic()
        gap = max(_SHORTEST_GAP_SECONDS, took_seconds * (1 / _MOST_SHARE - 1))
        wanted = self._next_full_at if not self._dirty else now
        self._next_at = max(now + gap, min(wanted, self._next_full_at))

    # What

    async def _tick(self) -> None:
        is_full = monotonic() >= self._next_full_at
        heard_at, self._heard_at = self._heard_at, None
        keys = set(self._members) if is_full else self._dirty & self._members.keys()
        self._dirty = set()
        if is_full:
            self._next_full_at = monotonic() + _POLL_SECONDS
        self._next_at = self._next_full_at
        seen, fault = await self._observe(keys)
        if is_full and seen is not None:
            await self._report_deaths(seen)
        workers = self._sort_workers(seen)
        for key in keys:
            member = self._members.get(key)
            if member is not None:
                self._step(key, member, seen, workers.get(key, {}), fault, heard_at)
        if heard_at is not None:
            for key in keys:
                self.touch(key, _SECOND_LOOK_SECONDS)
        if is_full and seen is not None:
            await self._tend_cron(seen)

    async def _observe(self, keys: Iterable[PoolKey]) -> tuple[Observation | None, Fault | None]:
        horizons: dict[str, float] = {}
        for key in keys:
            member = self._members[key]
            for name in member.queue_names:
                horizons[name] = max(horizons.get(name, 0.0), member.controller.horizon_seconds)
        try:
            seen = await self._queues.observe(horizons)
        except QueueTrouble as trouble:
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()
            self.is_refused = trouble.reason == "AuthenticationFailed"
            return None, Fault(trouble.reason, str(trouble))
        self.is_refused = False
        return seen, None

    def _sort_workers(self, seen: Observation | None) -> dict[PoolKey, dict[str, WorkerObservation]]:
        found: dict[PoolKey, dict[str, WorkerObservation]] = {}
        pool_of_pod = self._shell.world.pool_of_pod
        for worker in seen.workers.values() if seen is not None else ():
            key = pool_of_pod.get(worker.pod_uid)
            if key is not None:
                found.setdefault(key, {})[worker.worker_id] = worker
        return found

    def _step(
        self,
        key: PoolKey,
        member: Member,
        seen: Observation | None,
        workers: dict[str, WorkerObservation],
        fault: Fault | None,
        heard_at: float | None,
    ) -> None:
        """Decide for one pool, and act beside the others if there is something to do."""
        record = self._shell.world.pools.get(key)
        if record is None or record.pool is not member.pool or record.is_going:
            return
        # Still at it: an API server that is slow for one pool must not hold up the rest.
        if member.acting is not None and not member.acting.done():
            self.touch(key, _CHILD_CHANGED_SECONDS)
            return
        own = (
            None
            if seen is None
            else Observation(
                seen.now_ms,
                {name: seen.queues[name] for name in member.queue_names if name in seen.queues},
                workers,
            )
        )
        this_round = Round(
            record, member.queue_names, own, fault, self._queues, member.secret_version, heard_at
        )
        if member.controller.decide(this_round, member.pool):
            member.acting = asyncio.create_task(self._act(key, member, this_round))

    async def _act(self, key: PoolKey, member: Member, this_round: Round) -> None:
        try:
            async with self._actions:
                await member.controller.act(this_round, member.pool)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("pool not brought in step", extra={"namespace": key[0], "resource": key[1]})
        if member.controller.wants_another_look:
            self.touch(key)

    async def _report_deaths(self, seen: Observation) -> None:
        world, now = self._shell.world, monotonic()
        pods: dict[str, PodView] = {}
        for worker in seen.workers.values():
            key = world.pool_of_pod.get(worker.pod_uid)
            if key is not None:
                pods[worker.pod_uid] = world.pods[key][worker.pod_uid]
        deaths = find_deaths(seen.workers.values(), pods, world.vanished.keys())
        # A hint is given once; a worker that renews after it is alive and shall not be bothered again.
        self._hinted = {name: at for name, at in self._hinted.items() if now - at < 60.0}
        fresh = tuple(name for name in deaths.hints if name not in self._hinted)
        self._hinted |= dict.fromkeys(fresh, now)
        if deaths.certificates or fresh:
            try:
                returned = await self._queues.report(type(deaths)(deaths.certificates, fresh))
            except QueueTrouble as trouble:
                self._shell.metrics.redis_errors.labels(trouble.reason).inc()
            else:
                self._shell.metrics.returned_jobs.inc(returned)

    async def _tend_cron(self, seen: Observation) -> None:
        """Enqueue what is due by the schedules of the pools, and of applications that are not running."""
        try:
            if monotonic() >= self._tables_at:
                self._tables_at = monotonic() + _CRON_TABLES_SECONDS
                self._tables = await self._queues.read_cron_tables()
            declared = [entry for member in self._members.values() for entry in member.cron_entries]
            served = {tuple(sorted(member.queue_names)) for member in self._members.values()}
            attended_by = {
                tuple(sorted({self._queues.short_name(name) for name in worker.queues}))
                for worker in seen.workers.values()
            }
            ours = [table for table in self._tables if table.queues in served]
            attended = [entry for table in ours if table.queues in attended_by for entry in table.entries]
            unattended = [
                entry for table in ours if table.queues not in attended_by for entry in table.entries
            ]
            self._queues.track_cron([*declared, *unattended], attended)
            for entry in await self._queues.fire_cron(seen.now_ms):
                logger.info(
                    "cron entry fired",
                    extra={"function": entry.function_name, "queue": entry.queue_name},
                )
        except QueueTrouble as trouble:
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()


def _declared_entries(pool: Pool) -> list[CronJob]:
    return [
        CronJob(
            function_name=entry.function,
            schedule=entry.schedule,
            args=entry.args,
            kwargs=entry.kwargs,
            queue_name=entry.queue or pool.spec.queues[0],
            unique=entry.unique,
        )
        for entry in pool.spec.cron
    ]
