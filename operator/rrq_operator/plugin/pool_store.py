"""The jobs of one pool: where they are stored, and which of those there are its own."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rrq.broker.connection import REDIS_ERRORS
from rrq.commands.actor import name_login
from rrq.commands.job_choice import JobFilter, short_queue_name
from rrq.commands.refusal import Refusal
from rrq.exc import RRQError
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore
from rrq_operator.plugin.clusters import open_cluster
from rrq_operator.plugin.options import Access
from rrq_operator.plugin.pool_redis import RedisLocator, RedisTrouble, choose_detour
from rrq_operator.plugin.pools import SeenPool


@dataclass(frozen=True)
class PoolStore:
    """The Redis of a pool, opened for it."""

    pool: SeenPool
    store: JobStore
    actor: str
    """Who acts here, for the audit: the user of the kubeconfig, else whoever is logged in."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The short names of the pool's queues."""
        return tuple(self.store.keys.queue_name(queue) for queue in self.pool.queues)

    def choose_queues(self, queue_name: str | None) -> tuple[str, ...]:
        """Return the queue of that name, else all of the pool."""
        if queue_name is None:
            return self.queues
        short = self.store.keys.queue_name(queue_name)
        if short not in self.queues:
            raise Refusal(
                f"ERROR: Pool {self.pool.title} does not serve queue {queue_name}, but {', '.join(self.queues)}."
            )
        return (short,)

    def has(self, job: StoredJob, wanted: JobFilter, queues: tuple[str, ...]) -> bool:
        return short_queue_name(self.store, job) in queues and wanted.matches(self.store, job)


@contextlib.asynccontextmanager
async def open_pool_store(pool_name: str, access: Access, redis_url: str | None) -> AsyncIterator[PoolStore]:
    """Find the pool and its Redis, and see that it answers. Trouble, also later, becomes a Refusal."""
    detour = choose_detour(redis_url)
    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        actor = cluster.kube.user or name_login()
        address = (await RedisLocator(cluster.kube, detour).locate([pool]))[pool.key]
    try:
        if isinstance(address, RedisTrouble):
            raise address
        store = address.open()
    except RedisTrouble as trouble:
        raise Refusal(f"ERROR: {trouble}") from trouble
    try:
        # On the engine's own connection, which gives up at the first refusal.
        await store.read_time()
        yield PoolStore(pool, store, actor)
    except RRQError as error:
        raise Refusal(f"ERROR: {error}") from error
    except REDIS_ERRORS as error:
        raise Refusal(f"ERROR: {address.describe(error)}") from error
    finally:
        await store.aclose()
