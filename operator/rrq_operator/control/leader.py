"""What the operator does while it leads: which pool belongs to which Redis, and a group for each of those.

Only here is anything changed in the cluster or in a Redis. A standby keeps its caches warm and waits.
"""

import asyncio
import contextlib
import logging
from time import monotonic
from typing import Any, NamedTuple

from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord, parse_record
from rrq_operator.cluster.kube import Kube, KubeError, pools_path
from rrq_operator.cluster.redis_sources import (
    RedisSources,
    RedisSourceTrouble,
    ResolvedRedis,
    describe_source,
)
from rrq_operator.control.burst_pool import BurstPool
from rrq_operator.control.pool_slot import Membership, Seat, Turn
from rrq_operator.control.redis_group import RedisGroup
from rrq_operator.control.replica_pool import ReplicaPool
from rrq_operator.control.reporting import Reporter
from rrq_operator.control.services import Round, Services
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.status import Fault, build_invalid_status
from rrq_operator.redis.queues import QueueTrouble

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0
#: Events may be lost; a list never is.
_LIST_POOLS_SECONDS = 60.0
#: What one round spends on Secrets at most; pools whose Secrets are known wait behind it.
_SECRETS_SECONDS = 2.0
#: Longer than all that a round asks of Redis may take: its loop hangs, and a new one may not.
_GROUP_STALLED_SECONDS = 30.0
#: Fewer than the connections to the API server, where an action would wait until its time is up.
_ACTIONS_AT_ONCE = 50
#: Far fewer: a pool that grows must not wait behind the news of fifty others.
_REPORTS_AT_ONCE = 5


class _InvalidPool(NamedTuple):
    """A pool whose spec cannot be used: all there is to do is to say so."""

    uid: str
    turn: Turn
    reporter: Reporter


class Leader:
    """One term of office."""

    def __init__(self, services: Services, namespace: str | None) -> None:
        self._services = services
        self._namespace = namespace
        self._sources = RedisSources(services.kube, _SECRETS_SECONDS)
        self._seats: dict[PoolKey, Seat] = {}
        self._groups: dict[RedisIdentity, tuple[RedisGroup, asyncio.Task[None]]] = {}
        self._group_of: dict[PoolKey, RedisGroup] = {}
        self._invalid: dict[PoolKey, _InvalidPool] = {}
        self._actions = asyncio.Semaphore(_ACTIONS_AT_ONCE)
        self._reports = asyncio.Semaphore(_REPORTS_AT_ONCE)
        #: Groups and actions of pools that are gone, until they have ended.
        self._leaving: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        #: When a round ended last, for the watchdog. Groups have another: their Redis is a tenant's affair.
        self.ticked_at = monotonic()

    async def run(self) -> None:
        """Look after the pools until cancelled."""
        cluster_cache = self._services.cluster_cache
        cluster_cache.on_pool = lambda key: self._wake.set()
        cluster_cache.on_child = self._touch
        try:
            while True:
                self._wake.clear()
                try:
                    await self._round()
                except Exception:
                    logger.exception("pools not sorted")
                self.ticked_at = monotonic()
                await self._pause()
        finally:
            cluster_cache.on_pool = cluster_cache.on_child = lambda key: None
            for _, task in self._groups.values():
                self._let_go(task)
            for seat in self._seats.values():
                self._leave(seat)
            for invalid in self._invalid.values():
                self._let_go(invalid.turn.task)
            await asyncio.gather(*self._leaving, return_exceptions=True)
            self._services.metrics.drop_pools()

    def list_soon(self) -> None:
        """Have the pools listed in the next round: the watch has missed something."""
        self._list_at = monotonic()
        self._wake.set()

    async def _pause(self) -> None:
        # Not wait_for, which in Python 3.11 forgets a cancellation that comes together with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROUND_SECONDS):
                await self._wake.wait()
            # A file with many pools arrives as many events; sorting once is enough.
            await asyncio.sleep(0.02)

    def _touch(self, key: PoolKey) -> None:
        group = self._group_of.get(key)
        if group is not None:
            group.touch(key, delay_seconds=0.1)

    async def _round(self) -> None:
        await self._list_pools()
        records = list(self._services.cluster_cache.pools.values())
        self._services.metrics.pools.set(len(records))
        self._doubt_refused()
        await self._sources.refresh(record.pool for record in records if record.pool is not None)
        members: dict[RedisIdentity, dict[PoolKey, Membership]] = {}
        for record in records:
            if record.is_going:
                continue
            if record.pool is None:
                self._report_invalid(record)
                continue
            seat = self._seat_of(record, record.pool)
            resolved = self._sources.resolve(record.pool)
            if isinstance(resolved, ResolvedRedis):
                membership = Membership(record.pool, seat, resolved.secret_version)
                members.setdefault(resolved.identity, {})[record.key] = membership
            elif not resolved.is_unread:
                self._step_without_redis(record, record.pool, seat, resolved)
        self._sort_into_groups(members)
        self._forget_gone()

    async def _list_pools(self) -> None:
        if monotonic() < self._list_at:
            return
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        try:
            await list_pools(self._services.kube, self._services.cluster_cache, self._namespace)
        except KubeError as error:
            logger.warning("pools not listed", extra={"error": str(error)})

    def _doubt_refused(self) -> None:
        """Have Secrets read again whose password is refused: perhaps it was changed."""
        for key, group in self._group_of.items():
            record = self._services.cluster_cache.pools.get(key)
            if group.is_refused and record is not None and record.pool is not None:
                self._sources.doubt(record.pool)

    def _seat_of(self, record: PoolRecord, pool: Pool) -> Seat:
        known = self._seats.get(record.key)
        # A pool deleted and made anew under its name has nothing to do with the one before.
        if known is None or known.uid != record.uid:
            if known is not None:
                self._leave(known)
            kind = BurstPool if pool.spec.type == "Job" else ReplicaPool
            known = Seat(
                record.uid, kind(record.key, self._services), Turn(self._actions), Turn(self._reports)
            )
            self._seats[record.key] = known
        return known

    def _sort_into_groups(self, members: dict[RedisIdentity, dict[PoolKey, Membership]]) -> None:
        for identity, (group, task) in list(self._groups.items()):
            hangs = monotonic() - group.ticked_at > _GROUP_STALLED_SECONDS
            if task.done() or hangs:
                error = task.exception() if task.done() and not task.cancelled() else None
                logger.error(
                    "loop of a Redis hangs or has ended and is started again",
                    extra={"redis": repr(identity)},
                    exc_info=error,
                )
            if identity not in members or task.done() or hangs:
                if identity not in members:
                    group.set_members({})
                del self._groups[identity]
                self._let_go(task)
        self._group_of = {}
        for identity, memberships in members.items():
            if identity not in self._groups and not self._open_group(identity, memberships):
                continue
            group, _ = self._groups[identity]
            self._group_of |= dict.fromkeys(memberships, group)
            group.set_members(memberships)

    def _open_group(self, identity: RedisIdentity, memberships: dict[PoolKey, Membership]) -> bool:
        try:
            group = RedisGroup(identity, self._services)
        except QueueTrouble as trouble:
            # A URL that only looked like one: the pools that share it hear of it, all others go on.
            for key, membership in memberships.items():
                record = self._services.cluster_cache.pools.get(key)
                if record is not None:
                    fault = RedisSourceTrouble(
                        trouble.reason, f"{describe_source(membership.pool)}: {trouble}"
                    )
                    self._step_without_redis(record, membership.pool, membership.seat, fault)
            return False
        self._groups[identity] = group, asyncio.create_task(group.run(), name="rrq-group")
        return True

    def _leave(self, seat: Seat) -> None:
        self._let_go(seat.turn.task)
        self._let_go(seat.voice.task)

    def _let_go(self, task: asyncio.Task[None] | None) -> None:
        if task is None or task.done():
            return
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _forget_gone(self) -> None:
        pools = self._services.cluster_cache.pools
        for key in self._seats.keys() - pools.keys():
            self._leave(self._seats.pop(key))
            self._services.metrics.drop_pool(key)
        for key in [key for key in self._invalid if key not in pools or pools[key].pool is not None]:
            # What it was about to say is not true any more, and would be written over what is.
            self._let_go(self._invalid.pop(key).turn.task)
            if key not in pools:
                self._services.metrics.drop_pool(key)

    # Pools that cannot be sized

    def _report_invalid(self, record: PoolRecord) -> None:
        known = self._invalid.get(record.key)
        if known is None or known.uid != record.uid:
            if known is not None:
                self._let_go(known.turn.task)
            known = _InvalidPool(record.uid, Turn(self._reports), Reporter(record.key, self._services))
            self._invalid[record.key] = known
        status, conditions = build_invalid_status(record.generation, record.fault)
        known.reporter.note(Round(record), status, conditions)
        if known.turn.is_free and known.reporter.has_news:
            known.turn.take(known.reporter.write)

    def _step_without_redis(
        self, record: PoolRecord, pool: Pool, seat: Seat, trouble: RedisSourceTrouble
    ) -> None:
        this_round = Round(record, tuple(pool.spec.queues), None, Fault(trouble.reason, trouble.message))
        try:
            if seat.turn.is_free:
                seat.step(this_round, pool)
        except Exception:
            # What is wrong with one pool must not keep those behind it from their turn.
            logger.exception("pool not decided", extra={"namespace": pool.namespace, "resource": pool.name})


async def list_pools(kube: Kube, cluster_cache: ClusterCache, namespace: str | None) -> None:
    """Take in all pools that can be read; raises KubeError."""
    items = await kube.list_readable(pools_path(namespace))
    cluster_cache.replace_pools(record for item in items if (record := read_record(item)) is not None)


def read_record(body: dict[str, Any]) -> PoolRecord | None:
    """Return what is kept of a pool, or None and a line in the log: one pool must not hide all others."""
    try:
        return parse_record(body)
    except Exception:
        metadata = body.get("metadata") or {}
        logger.exception(
            "pool cannot be read and is left alone",
            extra={"namespace": metadata.get("namespace"), "resource": metadata.get("name")},
        )
        return None
