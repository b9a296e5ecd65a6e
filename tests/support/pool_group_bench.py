"""The loop over the pools of one Redis on a bench: a real Redis, and pools that only take notes."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pools import build_pool
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord, parse_record
from rrq_operator.control.leader import ClusterListener
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.pool_group import GroupPool, PoolGroup, Round
from rrq_operator.control.services import Services
from rrq_operator.redis.queues import RedisQueues

if TYPE_CHECKING:
    from collections.abc import Collection

    from rrq.flow import PoolReport
    from rrq_operator.api.redis_urls import RedisIdentity
    from rrq_operator.api.spec import Pool
    from rrq_operator.cluster.kube import Kube


class NoteTaker(GroupPool):
    """Stands where the controller of a pool stands."""

    horizon_seconds = 0.0

    def __init__(self, record: PoolRecord, services: Services) -> None:
        super().__init__(services.actions)
        self.uid = record.uid
        self.key = record.key
        self.services = services
        self.rounds: list[tuple[float, Round]] = []
        self.acts_for_seconds: float | None = None
        self.actions = 0
        self.is_broken = False
        self.report: PoolReport | None = None
        # As the leader expects of the controllers of the operator.
        self.source = None if record.pool is None else record.pool.spec.redis
        self.secret_version: object = None
        self.reporter = SimpleNamespace(task=None)

    def find_pool(self) -> Pool | None:
        return self.services.cluster_cache.find_pool(self.key, self.uid, self.source)

    @property
    def pod_uids(self) -> Collection[str]:
        return ()

    @property
    def due(self) -> int | None:
        if not self.rounds:
            return None
        seen = self.rounds[-1][1].seen
        return None if seen is None else sum(queue.due for queue in seen.queues.values())

    def decide(self, this_round: Round) -> bool:
        if self.is_broken:
            raise ZeroDivisionError("a mistake of ours")
        self.rounds.append((monotonic(), this_round))
        return self.acts_for_seconds is not None

    async def act(self, this_round: Round) -> None:
        self.actions += 1
        await asyncio.sleep(self.acts_for_seconds or 0)

    def build_report(self, now_ms: int) -> PoolReport | None:
        return self.report


class Bench:
    """A group and its pools."""

    def __init__(self, identity: RedisIdentity) -> None:
        # Nothing here talks to the cluster: that is what controllers do.
        nobody = cast("Kube", SimpleNamespace(may_write=lambda: True))
        self.cluster_cache = ClusterCache()
        self.services = Services(nobody, self.cluster_cache, Metrics())
        self.queues = RedisQueues(identity, on_call=self.services.metrics.redis_calls.inc)
        self.group = PoolGroup(self.queues, ClusterListener(self.cluster_cache, self.services.metrics))
        self.pools: dict[tuple[str, str], NoteTaker] = {}

    def add(self, name: str, **spec: Any) -> NoteTaker:
        record = build_record(name, **spec)
        assert record.pool is not None
        self.cluster_cache.set_pool(record)
        taker = self.pools[record.key] = NoteTaker(record, self.services)
        self.group.set_pools(self.pools)
        self.cluster_cache.followers = dict.fromkeys(self.pools, self.group.touch)
        return taker


def build_record(name: str, **spec: Any) -> PoolRecord:
    body = build_pool(name, **spec)
    body["metadata"] |= {
        "namespace": "test",
        "uid": f"uid-{name}",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return parse_record(body)
