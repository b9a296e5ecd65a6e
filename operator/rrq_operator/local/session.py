"""Runs the pools of local mode together, from the first round to the last process."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from rrq.cron import CronJob
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.control.housekeeping import GroupListener, end_task
from rrq_operator.control.pool_group import PoolGroup
from rrq_operator.decide.status import Fault
from rrq_operator.local.burst_pool import LocalBurstPool
from rrq_operator.local.guard import kill_session, start_guard
from rrq_operator.local.local_pool import KILL_AFTER_DRAIN_SECONDS, LocalPool, PoolContext
from rrq_operator.local.replica_pool import LocalReplicaPool
from rrq_operator.local.snapshot import LocalSnapshot
from rrq_operator.redis.queues import QueueTrouble, RedisQueues

_LOOK_AFTER_SECONDS = 0.1
#: Workers publish their entries when they start, and the last of them may end soon after.
_CRON_TABLES_SECONDS = 5.0


class PoolFailed(Exception):
    """A pool that cannot run; the message is for the person who started it."""


@dataclass(frozen=True)
class LocalPlan:
    """What a session runs: each pool with its Redis, and where logs go."""

    pools: Sequence[tuple[Pool, RedisIdentity]]
    log_folder: Path
    keeps_logs: bool = False


class TellingListener(GroupListener):
    """Shows what a group tells of."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._not_set_aside = ""

    def redis_failed(self, fault: Fault, *, is_new: bool) -> None:
        if is_new:
            self._tell(f"Redis gives no answer, so sizes stay: {fault.message}")

    def redis_answered(self) -> None:
        self._tell("Redis answers again")

    def jobs_not_set_aside(self, trouble: QueueTrouble) -> None:
        words = f"blocked jobs could not be put aside: {trouble}"
        if self._not_set_aside != words:
            self._not_set_aside = words
            self._tell(words)

    def jobs_returned(self, count: int, *, is_container_dead: bool) -> None:
        if count:
            self._tell(f"{count} jobs of lost workers are due again")

    def cron_fired(self, entry: CronJob) -> None:
        self._tell(f"cron: {entry.function_name} is enqueued to {entry.queue_name}")


class LocalSession:
    """One run of local mode. Building it checks the addresses and starts nothing."""

    def __init__(self, plan: LocalPlan, tell: Callable[[str, str], None]) -> None:
        """``tell``: takes the name of a pool, or nothing, and a line about what has happened."""
        self._id = uuid.uuid4().hex
        self._plan = plan
        self.pools: list[LocalPool] = []
        self._groups: list[tuple[PoolGroup, list[LocalPool]]] = []
        for redis in dict.fromkeys(redis for _, redis in plan.pools):
            try:
                queues = RedisQueues(redis)
            except QueueTrouble as trouble:
                raise PoolFailed(str(trouble)) from trouble
            pools = [self._build_pool(pool, redis, tell) for pool, own in plan.pools if own == redis]
            group = PoolGroup(queues, TellingListener(partial(tell, "")))
            group.housekeeping.cron_tables_seconds = _CRON_TABLES_SECONDS
            self.pools += pools
            self._groups.append((group, pools))
        self._stopping = asyncio.Event()

    def _build_pool(self, pool: Pool, redis: RedisIdentity, tell: Callable[[str, str], None]) -> LocalPool:
        context = PoolContext(pool, redis, self._id, self._plan.log_folder, partial(tell, pool.name))
        return LocalBurstPool(context) if pool.spec.type == "Job" else LocalReplicaPool(context)

    def snapshots(self) -> list[LocalSnapshot]:
        return [pool.snapshot() for pool in self.pools]

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_gone(self) -> bool:
        """Whether no process is left."""
        return all(pool.is_gone for pool in self.pools)

    def stop(self) -> None:
        """Drain everything and end; a second call hurries."""
        if self._stopping.is_set():
            self._stop_pools()
        self._stopping.set()

    def _stop_pools(self) -> None:
        for pool in self.pools:
            pool.stop(monotonic())

    async def run(self) -> None:
        """Run until it is stopped and no process is left; raises PoolFailed when a pool cannot run."""
        longest_drain = max(pool.spec.worker.drain_seconds for pool in self.pools)
        patience_seconds = longest_drain + KILL_AFTER_DRAIN_SECONDS
        guard = start_guard(
            self._id, patience_seconds, None if self._plan.keeps_logs else self._plan.log_folder
        )
        for group, pools in self._groups:
            group.set_pools({pool.context.pool.key: pool for pool in pools})
        sizing = [asyncio.create_task(group.run()) for group, _ in self._groups]
        try:
            while not self._stopping.is_set():
                await self._look_after()
                for task in sizing:
                    if task.done():
                        task.result()
                for pool in self.pools:
                    if pool.failure is not None:
                        raise PoolFailed(pool.failure)
        finally:
            for group, _ in self._groups:
                group.set_pools({})  # dashboards forget the pools
            actions = [pool.action for pool in self.pools if pool.action is not None]
            for task in (*sizing, *actions):
                await end_task(task)
            await self._wind_up()
            # Nothing is left but what jobs have started and left behind.
            await asyncio.to_thread(kill_session, self._id)
            await asyncio.to_thread(guard.communicate)

    async def _look_after(self) -> None:
        """See to all processes, then wait a little."""
        now = monotonic()
        news = await asyncio.gather(*(pool.look_after(now) for pool in self.pools))
        if any(news):
            for group, pools in self._groups:
                for pool in pools:
                    group.touch(pool.context.pool.key)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({stopping}, timeout=_LOOK_AFTER_SECONDS)
        stopping.cancel()

    async def _wind_up(self) -> None:
        self._stopping.set()
        self._stop_pools()
        while not self.is_gone:
            now = monotonic()
            await asyncio.gather(*(pool.look_after(now) for pool in self.pools))
            await asyncio.sleep(_LOOK_AFTER_SECONDS)
