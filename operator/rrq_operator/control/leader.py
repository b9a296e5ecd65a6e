"""What the operator does while it leads: which pool belongs to which Redis, and a group for each of those.

Only a leader changes anything in the cluster or in a Redis. A standby keeps its cluster cache warm and waits.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from time import monotonic, time

from rrq.broker.messages import Observation
from rrq.cron import CronJob
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord
from rrq_operator.cluster.kube import Kube, KubeError, pools_path
from rrq_operator.cluster.redis_sources import RedisSources, RedisSourceTrouble, ResolvedRedis
from rrq_operator.control.burst_pool import BurstPool
from rrq_operator.control.housekeeping import GroupListener, end_task
from rrq_operator.control.metrics import Metrics, PoolReading
from rrq_operator.control.pool_group import PoolGroup, Round
from rrq_operator.control.replica_pool import ReplicaPool
from rrq_operator.control.reporting import PoolReporter
from rrq_operator.control.services import Services
from rrq_operator.decide.deaths import Deaths, find_deaths
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.status import Fault, build_invalid_status
from rrq_operator.redis.complaints import Complaint
from rrq_operator.redis.queues import QueueTrouble, RedisQueues

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0
#: Events may be lost; a list never is.
_LIST_POOLS_SECONDS = 60.0
#: What one round spends on Secrets at most; pools whose Secrets are known wait behind it.
_SECRETS_SECONDS = 2.0
#: Longer than all that a round asks of Redis may take: its loop hangs, and a new one may not.
_GROUP_STALLED_SECONDS = 30.0

Controller = ReplicaPool | BurstPool


class ClusterListener(GroupListener):
    """Counts and logs what groups tell of, and knows the pods of the cluster."""

    def __init__(self, cluster_cache: ClusterCache, metrics: Metrics) -> None:
        self._cache = cluster_cache
        self._metrics = metrics
        self._not_set_aside = Complaint()

    def find_deaths(self, seen: Observation) -> Deaths:
        cache = self._cache
        known = {worker.pod_uid for worker in seen.workers.values()} & cache.pool_of_pod.keys()
        pods = {uid: cache.pods[cache.pool_of_pod[uid]][uid] for uid in known}
        return find_deaths(seen.workers.values(), pods, cache.vanished)

    def redis_failed(self, fault: Fault, *, is_new: bool) -> None:
        self._metrics.redis_errors.labels(fault.reason).inc()

    def write_failed(self, trouble: QueueTrouble) -> None:
        self._metrics.redis_errors.labels(trouble.reason).inc()

    def jobs_not_set_aside(self, trouble: QueueTrouble) -> None:
        self._metrics.redis_errors.labels(trouble.reason).inc()
        if self._not_set_aside.is_news(str(trouble)):
            logger.warning("blocked jobs not put aside", extra={"error": str(trouble)})

    def jobs_returned(self, count: int, *, is_container_dead: bool) -> None:
        self._metrics.returned_jobs.labels("container" if is_container_dead else "lease").inc(count)
        if count and not is_container_dead:
            logger.warning("jobs of lost workers requeued", extra={"jobs": count})

    def cron_fired(self, entry: CronJob) -> None:
        logger.info("cron entry fired", extra={"function": entry.function_name, "queue": entry.queue_name})


class Leader:
    """One term of office."""

    def __init__(self, services: Services, namespace: str | None) -> None:
        self._services = services
        self._cache = services.cluster_cache
        self._namespace = namespace
        self._sources = RedisSources(services.kube, _SECRETS_SECONDS)
        self._controllers: dict[PoolKey, Controller] = {}
        self._groups: dict[RedisIdentity, tuple[PoolGroup, asyncio.Task[None]]] = {}
        self._group_of: dict[PoolKey, PoolGroup] = {}
        #: Pools whose spec cannot be used, by uid: all there is to do is to say so.
        self._invalid: dict[PoolKey, tuple[str, PoolReporter]] = {}
        #: Groups, actions and reports of pools that are gone, until they have ended.
        self._leaving: set[asyncio.Task[None]] = set()
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        #: When a round ended last, for the watchdog. Groups have another: their Redis is a tenant's affair.
        self.ticked_at = monotonic()

    async def run(self) -> None:
        """Look after the pools until cancelled."""
        try:
            while True:
                self._cache.pools_changed.clear()
                try:
                    await self._round()
                # The loop of the leader must survive: it serves all pools.
                except Exception:
                    logger.exception("leader round failed")
                self.ticked_at = monotonic()
                await self._pause()
        finally:
            self._cache.followers = {}
            self._let_go(task for _, task in self._groups.values())
            for controller in self._controllers.values():
                self._let_go((controller.action, controller.reporter.task))
            self._let_go(reporter.task for _, reporter in self._invalid.values())
            await asyncio.gather(*map(end_task, self._leaving), return_exceptions=True)
            self._services.metrics.drop_pools()

    def list_soon(self) -> None:
        """Have the pools listed in the next round: the watch has missed something."""
        self._list_at = monotonic()
        self._cache.pools_changed.set()

    async def _pause(self) -> None:
        # Not wait_for, which in Python 3.11 forgets a cancellation that comes together with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROUND_SECONDS):
                await self._cache.pools_changed.wait()
            # A file with many pools arrives as many events; one round is enough.
            await asyncio.sleep(0.02)

    async def _round(self) -> None:
        await self._list_pools()
        records = list(self._cache.pools.values())
        self._services.metrics.pools.set(len(records))
        self._doubt_refused()
        await self._sources.refresh(record.pool for record in records if record.pool is not None)
        members: dict[RedisIdentity, dict[PoolKey, Controller]] = {}
        for record in records:
            if record.is_going:
                continue
            if record.pool is None:
                self._report_invalid(record)
                continue
            controller = self._find_controller(record, record.pool)
            resolved = self._sources.resolve(record.pool)
            if isinstance(resolved, ResolvedRedis):
                members.setdefault(resolved.identity, {})[record.key] = controller
                self._assign(controller, record, resolved)
            elif not resolved.is_unread:
                self._step_without_redis(controller, record.pool, resolved)
        self._sort_into_groups(members)
        self._forget_gone()

    async def _list_pools(self) -> None:
        if monotonic() < self._list_at:
            return
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        try:
            await list_pools(self._services.kube, self._cache, self._namespace)
        except KubeError as error:
            logger.warning("pools not listed", extra={"error": str(error)})

    def _doubt_refused(self) -> None:
        """Have Secrets read again whose password is refused: perhaps it was changed."""
        for key, group in self._group_of.items():
            record = self._cache.pools.get(key)
            if group.is_refused and record is not None and record.pool is not None:
                self._sources.doubt(record.pool)

    def _find_controller(self, record: PoolRecord, pool: Pool) -> Controller:
        known = self._controllers.get(record.key)
        # A pool deleted and made anew under its name has nothing to do with the one before.
        if known is None or known.uid != record.uid:
            if known is not None:
                self._let_go((known.action, known.reporter.task))
            kind = BurstPool if pool.spec.type == "Job" else ReplicaPool
            known = self._controllers[record.key] = kind(record, self._services)
        return known

    def _assign(self, controller: Controller, record: PoolRecord, resolved: ResolvedRedis) -> None:
        """Give a pool the Redis that its spec names; a round follows if that has changed."""
        source = record.pool.spec.redis if record.pool is not None else None
        if (controller.source, controller.secret_version) != (source, resolved.secret_version):
            controller.source, controller.secret_version = source, resolved.secret_version
            if (group := self._group_of.get(record.key)) is not None:
                group.touch(record.key)

    def _sort_into_groups(self, members: dict[RedisIdentity, dict[PoolKey, Controller]]) -> None:
        for identity, (group, task) in list(self._groups.items()):
            hangs = monotonic() - group.ticked_at > _GROUP_STALLED_SECONDS
            if task.done() or hangs:
                error = task.exception() if task.done() and not task.cancelled() else None
                logger.error(
                    "loop of a Redis hangs or has ended, and is restarted",
                    extra={"redis": repr(identity)},
                    exc_info=error,
                )
            if identity not in members or task.done() or hangs:
                if identity not in members:
                    group.set_pools({})
                del self._groups[identity]
                self._let_go((task,))
        self._group_of = {}
        for identity, pools in members.items():
            if identity not in self._groups and not self._open_group(identity, pools):
                continue
            group, _ = self._groups[identity]
            self._group_of |= dict.fromkeys(pools, group)
            group.set_pools(pools)
        self._cache.followers = {key: group.touch for key, group in self._group_of.items()}

    def _open_group(self, identity: RedisIdentity, pools: dict[PoolKey, Controller]) -> bool:
        services = self._services
        try:
            queues = RedisQueues(identity, services.kube.may_write, services.metrics.redis_calls.inc)
        except QueueTrouble as trouble:
            # A URL that only looked like one: the pools that share it say so, all others go on.
            for controller in pools.values():
                if (pool := controller.find_pool()) is not None:
                    fault = RedisSourceTrouble(trouble.reason, f"{pool.redis_origin}: {trouble}")
                    self._step_without_redis(controller, pool, fault)
            return False
        listener = ClusterListener(self._cache, services.metrics)
        group = PoolGroup(queues, listener, services.metrics.tick_seconds.observe)
        self._groups[identity] = group, asyncio.create_task(group.run(), name="rrq-group")
        return True

    def _let_go(self, tasks: Iterable[asyncio.Task[None] | None]) -> None:
        """Cancel tasks, and keep them until they have ended."""
        for task in tasks:
            if task is not None and not task.done():
                task.cancel()
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def _forget_gone(self) -> None:
        pools = self._cache.pools
        for key in self._controllers.keys() - pools.keys():
            controller = self._controllers.pop(key)
            self._let_go((controller.action, controller.reporter.task))
            self._services.metrics.drop_pool(key)
        for key in [key for key in self._invalid if key not in pools or pools[key].pool is not None]:
            # What it was about to say is not true any more, and would be written over what is.
            self._let_go((self._invalid.pop(key)[1].task,))
            if key not in pools:
                self._services.metrics.drop_pool(key)

    def _report_invalid(self, record: PoolRecord) -> None:
        uid, reporter = self._invalid.get(record.key, ("", None))
        if reporter is None or uid != record.uid:
            if reporter is not None:
                self._let_go((reporter.task,))
            reporter = PoolReporter(record, self._services)
            self._invalid[record.key] = record.uid, reporter
        status = build_invalid_status(record.generation, record.fault, reporter.written, time())
        self._services.metrics.readings[record.key] = PoolReading(status, None)
        reporter.note(status)
        reporter.start_writing()

    def _step_without_redis(self, controller: Controller, pool: Pool, trouble: RedisSourceTrouble) -> None:
        controller.secret_version = None
        try:
            if not controller.is_busy:
                controller.step(Round(pool, queue_fault=Fault(trouble.reason, trouble.message)))
        # One pool's trouble must not keep the others from their turn.
        except Exception:
            logger.exception("pool not decided", extra={"namespace": pool.namespace, "resource": pool.name})


async def list_pools(kube: Kube, cluster_cache: ClusterCache, namespace: str | None) -> None:
    """Take in all pools that can be read; raises KubeError."""
    cluster_cache.take_list(await kube.list_readable(pools_path(namespace)))
