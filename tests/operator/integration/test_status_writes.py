"""How much the operator writes while nothing but figures changes, as the API server counts it."""

from __future__ import annotations

import asyncio
import json
import random
import re
from time import monotonic
from typing import TYPE_CHECKING

from pools import build_pool
from rrq.client import JobRequest
from rrq_operator.cluster.cluster_cache import ClusterCache, parse_record
from rrq_operator.cluster.informer import Informer
from rrq_operator.cluster.kube import Kube, budgets_path, deployments_path
from rrq_operator.control import reporting
from rrq_operator.control.leader import Leader
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.services import Services
from rrq_operator.decide.objects import parse_budget, parse_deployment
from running import end
from waiting import eventually

if TYPE_CHECKING:
    import pytest
    from kubernetes.aio.client import ApiClient

    from pools import PoolDesk
    from rrq import RRQClient

POOLS = [f"pool-{number}" for number in range(100)]
STATUS_WRITES = re.compile(r'apiserver_request_total\{[^}]*resource="rrqworkerpools"[^}]*\} (\d+)')


def count_status_writes(desk: PoolDesk) -> int:
    return sum(
        int(found[1])
        for found in STATUS_WRITES.finditer(desk.kubectl("get", "--raw", "/metrics"))
        if 'subresource="status"' in found[0]
    )


async def test_a_hundred_busy_pools_of_constant_size_cause_two_status_writes_a_second_at_most(
    desk: PoolDesk,
    api_client: ApiClient,
    client: RRQClient,
    redis_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All the time, instead of every 15 s, each has figures that may be written.
    monkeypatch.setattr(reporting, "_FIGURES_SECONDS", 0.0)
    # Their size stays as it is, so that no pods are made; whether they are at their maximum changes with the work.
    scaling = {"paused": True, "maxReplicas": 1}
    pools = [build_pool(name, queues=[name], redis={"url": redis_dsn}, scaling=scaling) for name in POOLS]
    desk.kubectl(
        "create", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": pools})
    )

    stopping = asyncio.Event()

    async def work() -> None:
        while not stopping.is_set():
            await client.job_store.redis.delete(*(f"rrq:queue:{name}" for name in random.sample(POOLS, 30)))
            await client.enqueue_many([JobRequest("greet", queue_name=name) for name in POOLS] * 3)
            await asyncio.sleep(0.2)

    async def measure_writes_per_second(seconds: float) -> float:
        before, began_at = count_status_writes(desk), monotonic()
        await asyncio.sleep(seconds)
        return (count_status_writes(desk) - before) / (monotonic() - began_at)

    async def is_calm() -> bool:
        return 0.5 <= await measure_writes_per_second(5) <= 2

    async with Kube(api_client.configuration) as kube, asyncio.TaskGroup() as tasks:
        cluster_cache = ClusterCache()
        for item in desk.read_all("rrqpool"):
            cluster_cache.set_pool(parse_record(item))
        watches = (
            Informer(kube, deployments_path(desk.namespace), parse_deployment, cluster_cache.set_deployment),
            Informer(kube, budgets_path(desk.namespace), parse_budget, cluster_cache.set_budget),
        )
        leader = Leader(Services(kube, cluster_cache, Metrics()), desk.namespace)
        running = [tasks.create_task(one.run()) for one in (*watches, leader)]
        # The first conditions, and the Deployments, are written at once.
        await eventually(
            lambda: all(
                pool.get("status", {}).get("reason") == "Frozen" and "readyReplicas" in pool["status"]
                for pool in desk.read_all("rrqpool")
            ),
            120,
        )
        tasks.create_task(work())
        await eventually(is_calm, 60, "the operator writes much more or nothing")
        # One calm window may be chance.
        assert 0.5 <= await measure_writes_per_second(20) <= 2
        stopping.set()
        for task in running:
            await end(task)
