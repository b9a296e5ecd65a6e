"""Reads the queues of pools from Redis: all pools of one Redis in two or three round trips."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Observation
from rrq.exc import RRQError
from rrq.inspect.jobs import read_in_batches, read_listed_jobs
from rrq.jobs.codec import decode
from rrq.runtime.masking import mask_secrets
from rrq.store import JobStore
from rrq_operator.plugin.pool_redis import RedisAddress, RedisLocator, RedisOverride, RedisTrouble
from rrq_operator.plugin.pools import SeenPool, UserCluster
from rrq_operator.plugin.tables import PoolFigures, QueueFigures, TopSnapshot, build_line, describe_sources


class FigureReader:
    """Reads the same pools repeatedly and keeps its connections. Close it afterwards."""

    def __init__(self, locator: RedisLocator) -> None:
        self._locator = locator
        self._stores: dict[RedisAddress, JobStore] = {}

    async def aclose(self) -> None:
        for store in self._stores.values():
            await store.aclose()

    async def read(self, pools: Sequence[SeenPool]) -> dict[tuple[str, str], PoolFigures]:
        """Return the figures of each pool, or why there are none."""
        figures: dict[tuple[str, str], PoolFigures] = {}
        groups: dict[RedisAddress, list[SeenPool]] = {}
        located = await self._locator.locate(pools)
        for pool in pools:
            address = located[pool.key]
            if isinstance(address, RedisTrouble):
                figures[pool.key] = PoolFigures({}, str(address))
            else:
                groups.setdefault(address, []).append(pool)
        for address, members in groups.items():
            figures |= await self._read_group(address, members)
        return figures

    async def _read_group(
        self, address: RedisAddress, pools: Sequence[SeenPool]
    ) -> dict[tuple[str, str], PoolFigures]:
        try:
            store = self._stores.get(address) or address.open()
            self._stores[address] = store
            return await _read_pools(store, pools)
        except RRQError as error:
            words = mask_secrets(str(error))
        except REDIS_ERRORS as error:
            words = address.describe(error)
        return {pool.key: PoolFigures({}, words) for pool in pools}


@dataclass(frozen=True)
class _Seen:
    observation: Observation
    running: Counter[str]


async def _read_pools(store: JobStore, pools: Sequence[SeenPool]) -> dict[tuple[str, str], PoolFigures]:
    horizons: dict[str, float] = {}
    for pool in pools:
        for queue in pool.queues:
            name = store.keys.queue_name(queue)
            horizons[name] = max(pool.horizon_seconds, horizons.get(name, 0.0))
    observation = await store.observe(sorted(horizons), horizons)
    seen = _Seen(observation, await _count_running(store, observation))
    return {
        pool.key: PoolFigures(
            {queue: _queue_figures(seen, store.keys.queue_name(queue)) for queue in pool.queues}
        )
        for pool in pools
    }


async def _count_running(store: JobStore, observation: Observation) -> Counter[str]:
    """Return how many jobs of each queue run. Workers report only a total, and may serve many queues."""

    def ask(pipe: Any, worker_id: str) -> None:
        pipe.zrange(store.keys.active_jobs_key(worker_id), 0, -1)

    busy = [worker.worker_id for worker in observation.workers.values() if worker.busy]
    replies = await read_in_batches(store, busy, ask)
    job_ids = [decode(entry) for entries in replies for entry in entries or ()]
    jobs = await read_listed_jobs(store, job_ids)
    default = store.settings.default_queue_name
    return Counter(store.keys.queue_name(job.queue_name or default) for job in jobs if job is not None)


def _queue_figures(seen: _Seen, name: str) -> QueueFigures:
    queue, busy = seen.observation.queues.get(name), seen.running[name]
    if queue is None:
        # Its key has another type, so the length of the queue is unknown.
        return QueueFigures(busy=busy)
    return QueueFigures(
        queue.due, queue.due_soon, queue.later, queue.oldest_due_age_seconds, busy, queue.orphaned
    )


@contextlib.asynccontextmanager
async def open_top_reader(
    cluster: UserCluster, pool_name: str | None, override: RedisOverride | None
) -> AsyncIterator[Callable[[], Awaitable[TopSnapshot]]]:
    """Yield a function that reads the chosen pools and their queues once."""
    figures = FigureReader(RedisLocator(cluster.kube, override))

    async def read() -> TopSnapshot:
        pools = await cluster.choose_pools(pool_name)
        seen = await figures.read(pools)
        now = datetime.now(UTC)
        lines = tuple(build_line(pool, seen[pool.key], now) for pool in pools)
        return TopSnapshot(now, lines, tuple(describe_sources(seen.values())), cluster.namespace is None)

    try:
        yield read
    finally:
        await figures.aclose()
