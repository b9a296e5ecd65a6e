"""The loop over the pools of one Redis on a bench: a real Redis, and controllers that only take notes."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pools import build_pool
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord, parse_record
from rrq_operator.cluster.events import Events
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.pool_slot import Controller, Membership, Seat, Turn
from rrq_operator.control.redis_group import RedisGroup
from rrq_operator.control.services import Round, Services

if TYPE_CHECKING:
    from rrq.flow import PoolReport
    from rrq_operator.api.redis_urls import RedisIdentity
    from rrq_operator.api.spec import Pool
    from rrq_operator.cluster.kube import Kube


class NoteTaker:
    """Stands where the controller of a pool stands."""

    wants_another_look = False
    horizon_seconds = 0.0
    card: PoolReport | None = None

    def __init__(self) -> None:
        self.rounds: list[tuple[float, Round]] = []
        self.acts_for_seconds: float | None = None
        self.actions = 0
        self.is_broken = False
        self.has_news = False

    @property
    def due(self) -> int | None:
        if not self.rounds:
            return None
        seen = self.rounds[-1][1].seen
        return None if seen is None else sum(queue.due for queue in seen.queues.values())

    def decide(self, this_round: Round, pool: Pool) -> bool:
        if self.is_broken:
            raise ZeroDivisionError("a mistake of ours")
        self.rounds.append((monotonic(), this_round))
        return self.acts_for_seconds is not None

    async def act(self, this_round: Round, pool: Pool) -> None:
        self.actions += 1
        await asyncio.sleep(self.acts_for_seconds or 0)


class Bench:
    """A group and its pools."""

    def __init__(self, identity: RedisIdentity) -> None:
        # Nothing here talks to the cluster: that is what controllers do.
        nobody = cast("Kube", SimpleNamespace(may_write=lambda: True))
        self.cluster_cache = ClusterCache()
        self.services = Services(nobody, self.cluster_cache, Events(nobody), Metrics())
        self.group = RedisGroup(identity, self.services)
        self.members: dict[tuple[str, str], Membership] = {}
        self.actions = asyncio.Semaphore(20)

    def add(self, name: str, **spec: Any) -> NoteTaker:
        taker = NoteTaker()
        record = build_record(name, **spec)
        assert record.pool is not None
        self.cluster_cache.set_pool(record)
        seat = Seat(record.uid, cast("Controller", taker), Turn(self.actions), Turn(self.actions))
        self.members[record.key] = Membership(record.pool, seat, SecretVersion())
        self.group.set_members(self.members)
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
