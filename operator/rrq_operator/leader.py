"""What the operator does while it leads: which pool belongs to which Redis, and a group for each of those.

Only here is anything changed in the cluster or in a Redis. A standby keeps its caches warm and waits.
"""

import asyncio
import logging
from collections.abc import Coroutine
from time import monotonic

from rrq_operator.burst_pool import BurstPool
from rrq_operator.kube import KubeError, pools_path
from rrq_operator.redis_group import Controller, RedisGroup
from rrq_operator.redis_sources import RedisIdentity, RedisSources, RedisSourceTrouble
from rrq_operator.replica_pool import ReplicaPool
from rrq_operator.reporting import Reporter
from rrq_operator.shell import Round, Shell
from rrq_operator.spec import Pool
from rrq_operator.status import Fault, build_invalid_status
from rrq_operator.views import PoolKey
from rrq_operator.world import PoolRecord, parse_record

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0
#: Events may be lost; a list never is.
_LIST_POOLS_SECONDS = 60.0


class Leader:
    """One term of office."""

    def __init__(self, shell: Shell, namespace: str | None) -> None:
        self._shell = shell
        self._namespace = namespace
        self._sources = RedisSources(shell.kube)
        self._controllers: dict[PoolKey, tuple[str, Controller]] = {}
        self._groups: dict[RedisIdentity, tuple[RedisGroup, asyncio.Task[None]]] = {}
        self._group_of: dict[PoolKey, RedisGroup] = {}
        self._invalid: dict[PoolKey, Reporter] = {}
        self._acting: dict[PoolKey, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        #: When a round ended last, for the watchdog.
        self.ticked_at = monotonic()

    async def run(self) -> None:
        """Look after the pools until cancelled."""
        world = self._shell.world
        world.on_pool = lambda key: self._wake.set()
        world.on_child = self._touch
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
            world.on_pool = world.on_child = lambda key: None
            tasks = [task for _, task in self._groups.values()] + list(self._acting.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def oldest_tick_at(self) -> float:
        """When the slowest of all loops ended its last round."""
        return min([self.ticked_at, *(group.ticked_at for group, _ in self._groups.values())])

    @property
    def redis_calls(self) -> int:
        return sum(group.redis_calls for group, _ in self._groups.values())

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), _ROUND_SECONDS)
            # A file with many pools arrives as many events; sorting once is enough.
            await asyncio.sleep(0.02)
        except TimeoutError:
            pass

    def _touch(self, key: PoolKey) -> None:
        group = self._group_of.get(key)
        if group is not None:
            group.touch(key, delay_seconds=0.1)

    async def _round(self) -> None:
        await self._list_pools()
        records = list(self._shell.world.pools.values())
        self._shell.metrics.pools.set(len(records))
        self._doubt_refused()
        await self._sources.refresh(record.pool for record in records if record.pool is not None)
        members: dict[RedisIdentity, dict[PoolKey, tuple[Pool, Controller, str]]] = {}
        for record in records:
            if record.is_going:
                continue
            if record.pool is None:
                self._report_invalid(record)
                continue
            self._invalid.pop(record.key, None)
            controller = self._controller_of(record, record.pool)
            resolved = self._sources.resolve(record.pool)
            if isinstance(resolved, RedisSourceTrouble):
                self._step_without_redis(record, record.pool, controller, resolved)
            else:
                group = members.setdefault(resolved.identity, {})
                group[record.key] = (record.pool, controller, resolved.secret_version)
        self._sort_into_groups(members)
        self._forget_gone()

    async def _list_pools(self) -> None:
        if monotonic() < self._list_at:
            return
        self._list_at = monotonic() + _LIST_POOLS_SECONDS
        try:
            items, _ = await self._shell.kube.list_all(pools_path(self._namespace))
        except KubeError as error:
            logger.warning("pools not listed", extra={"error": str(error)})
        else:
            self._shell.world.replace_pools(map(parse_record, items))

    def _doubt_refused(self) -> None:
        """Have Secrets read again whose password is refused: perhaps it was changed."""
        for key, group in self._group_of.items():
            record = self._shell.world.pools.get(key)
            if group.is_refused and record is not None and record.pool is not None:
                self._sources.doubt(record.pool)

    def _controller_of(self, record: PoolRecord, pool: Pool) -> Controller:
        known = self._controllers.get(record.key)
        kind = BurstPool if pool.spec.type == "Job" else ReplicaPool
        # A pool deleted and made anew under its name has nothing to do with the one before.
        if known is None or known[0] != record.uid or not isinstance(known[1], kind):
            known = (record.uid, kind(record.key, self._shell))
            self._controllers[record.key] = known
        return known[1]

    def _sort_into_groups(
        self, members: dict[RedisIdentity, dict[PoolKey, tuple[Pool, Controller, str]]]
    ) -> None:
        for identity in self._groups.keys() - members.keys():
            _, task = self._groups.pop(identity)
            task.cancel()
        for identity in members.keys() - self._groups.keys():
            group = RedisGroup(identity, self._shell)
            task = asyncio.create_task(group.run(), name="rrq-group")
            self._groups[identity] = group, task
        self._group_of = {}
        for identity, pools in members.items():
            group, _ = self._groups[identity]
            self._group_of |= dict.fromkeys(pools, group)
            group.set_members(pools)

    def _forget_gone(self) -> None:
        pools = self._shell.world.pools
        for key in self._controllers.keys() - pools.keys():
            del self._controllers[key]
            self._shell.metrics.drop_pool(key)

    # Pools that cannot be sized

    def _report_invalid(self, record: PoolRecord) -> None:
        reporter = self._invalid.setdefault(record.key, Reporter(record.key, self._shell))
        status, conditions = build_invalid_status(record.generation, record.fault)
        if reporter.note(Round(record), status, conditions):
            self._act(record.key, reporter.write())

    def _step_without_redis(
        self, record: PoolRecord, pool: Pool, controller: Controller, trouble: RedisSourceTrouble
    ) -> None:
        this_round = Round(record, tuple(pool.spec.queues), None, Fault(trouble.reason, trouble.message))
        if self._is_free(record.key) and controller.decide(this_round, pool):
            self._act(record.key, controller.act(this_round, pool))

    def _is_free(self, key: PoolKey) -> bool:
        task = self._acting.get(key)
        return task is None or task.done()

    def _act(self, key: PoolKey, work: Coroutine[None, None, None]) -> None:
        if not self._is_free(key):
            work.close()
            return
        task = asyncio.create_task(work)
        self._acting[key] = task
        task.add_done_callback(_log_failure)
        self._acting = {other: acting for other, acting in self._acting.items() if not acting.done()}


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("pool not brought in step", exc_info=error)
