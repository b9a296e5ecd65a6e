"""Runs the pools of local mode together, from the first look to the last process."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.local.burst_pool import BurstPool
from rrq_operator.local.fleet import Fleet
from rrq_operator.local.guard import kill_session, start_guard
from rrq_operator.local.local_pool import KILL_AFTER_DRAIN_SECONDS, LocalPool, PoolContext
from rrq_operator.local.pool_snapshot import LocalSnapshot
from rrq_operator.local.redis_group import RedisGroup, end_task

_LOOK_AFTER_SECONDS = 0.1
#: Longer than a healthy Redis ever takes; what is shown must not hang on a dead one.
_REDIS_TIMEOUT_SECONDS = 2.0


class PoolFailed(Exception):
    """A pool that cannot run; the message is for whoever started it."""


@dataclass(frozen=True)
class LocalPlan:
    """What a session runs: each pool with its Redis, and where logs go."""

    pools: Sequence[tuple[Pool, RedisIdentity]]
    log_folder: Path
    keeps_logs: bool = False


class LocalSession:
    """One run of local mode. Building it checks the addresses and starts nothing."""

    def __init__(self, plan: LocalPlan, tell: Callable[[str, str], None]) -> None:
        """``tell``: takes the name of a pool, or nothing, and a line about what has happened."""
        self._id = uuid.uuid4().hex
        self._plan = plan
        self._stores = {address: _open_store(address) for _, address in plan.pools}
        self.pools: list[LocalPool] = []
        self._groups: list[RedisGroup] = []
        for address, store in self._stores.items():
            pools = [self._build_pool(pool, address, tell) for pool, own in plan.pools if own == address]
            self.pools += pools
            self._groups.append(RedisGroup(store, pools, partial(tell, "")))
        self._stopping = asyncio.Event()

    def _build_pool(self, pool: Pool, address: RedisIdentity, tell: Callable[[str, str], None]) -> LocalPool:
        context = PoolContext(
            pool, address, self._stores[address], self._id, self._plan.log_folder, partial(tell, pool.name)
        )
        return BurstPool(context) if pool.spec.type == "Job" else Fleet(context)

    def pictures(self) -> list[LocalSnapshot]:
        return [pool.picture() for pool in self.pools]

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_gone(self) -> bool:
        """Whether no process is left."""
        return all(pool.is_gone for pool in self.pools)

    def stop(self) -> None:
        """Drain everything and end; asked a second time, hurry."""
        if self._stopping.is_set():
            self._stop_pools()
        self._stopping.set()

    def _stop_pools(self) -> None:
        for pool in self.pools:
            pool.stop(monotonic())

    async def run(self) -> None:
        """Run until it is told to stop and nothing of it is left; raises PoolFailed when a pool cannot run."""
        longest_drain = max(pool.spec.worker.drain_seconds for pool in self.pools)
        patience_seconds = longest_drain + KILL_AFTER_DRAIN_SECONDS
        guard = start_guard(
            self._id, patience_seconds, None if self._plan.keeps_logs else self._plan.log_folder
        )
        sizing = [asyncio.create_task(group.run()) for group in self._groups]
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
            for task in sizing:
                await end_task(task)
            await self._wind_up()
            # Nothing is left but what jobs have started and left behind.
            await asyncio.to_thread(kill_session, self._id)
            await asyncio.to_thread(guard.communicate)
            for store in self._stores.values():
                await store.aclose()

    async def _look_after(self) -> None:
        """See to all processes, then wait a little."""
        now = monotonic()
        news = await asyncio.gather(*(pool.look_after(now) for pool in self.pools))
        if any(news):
            for group in self._groups:
                group.wake()
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


def _open_store(address: RedisIdentity) -> JobStore:
    return JobStore(
        RRQSettings(
            redis_dsn=address.url,
            key_prefix=address.key_prefix,
            redis_socket_timeout_seconds=_REDIS_TIMEOUT_SECONDS,
            redis_connect_timeout_seconds=_REDIS_TIMEOUT_SECONDS,
        )
    )
