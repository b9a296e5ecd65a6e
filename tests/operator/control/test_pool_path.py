"""The way of a pool through the operator, file by file: the list in docs/architecture.md is what really runs.

A profile hook notes the files whose functions are entered, from the event of a changed spec to the written status. The
pool, its Deployment and its Redis are known by then; the API server is a stand-in that speaks HTTP, Redis is real.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kubernetes.aio.client import Configuration

import rrq
import rrq_operator
from fake_api_server import FakeApiServer
from pools import build_pool
from queue_steps import ask
from rrq_operator.cluster.cluster_cache import ClusterCache
from rrq_operator.cluster.handlers import PoolWatch
from rrq_operator.cluster.kube import Kube, budgets_path, deployments_path, events_path, pools_path
from rrq_operator.control import pool_group
from rrq_operator.control.leader import Leader
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.services import Services
from rrq_operator.decide.objects import parse_budget, parse_deployment
from waiting import eventually

if TYPE_CHECKING:
    from types import FrameType

    import pytest

    from rrq.store import JobStore

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
OPERATOR, LIBRARY = (Path(package.__file__ or "").parent for package in (rrq_operator, rrq))
POOL = f"{pools_path('shop')}/emails"
DEPLOYMENT = f"{deployments_path('shop')}/emails"
BUDGET = f"{budgets_path('shop')}/emails"


class Trace:
    """The files of the operator and of the library whose functions are entered, by whether the leader's task does it."""

    def __init__(self, leader: asyncio.Task[None]) -> None:
        self.way: set[str] = set()
        self.leader: set[str] = set()
        self.library: set[str] = set()
        self._leader = leader

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        if path.is_relative_to(OPERATOR):
            is_leaders = asyncio.current_task() is self._leader
            (self.leader if is_leaders else self.way).add(path.relative_to(OPERATOR).as_posix())
        elif path.is_relative_to(LIBRARY):
            self.library.add(path.relative_to(LIBRARY).as_posix())


class Bench:
    """An operator that leads, without kopf and informers: the test is the watch."""

    def __init__(self, api: FakeApiServer, kube: Kube) -> None:
        self.api = api
        self.cache = ClusterCache()
        self.leader = Leader(Services(kube, self.cache, Metrics()), None)
        self.watch = PoolWatch(self.cache.take_event, None)

    def change_pool(self, kind: str | None, **worker: Any) -> None:
        """Let kopf's handler see a new spec."""
        manifest = build_pool(
            "emails",
            redis={"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}},
            worker={"image": "shop:1", "settings": "shop.jobs.settings", "resources": {"limits": {"cpu": 1}}}
            | worker,
        )
        manifest["metadata"] |= {"namespace": "shop"}
        self.watch.hand_over(kind, self.api.put(POOL, manifest))

    def show_objects(self) -> None:
        """Let the watches show the Deployment and the budget as they are."""
        generation = self.api.objects[DEPLOYMENT]["metadata"]["generation"]
        deployment = self.api.put(DEPLOYMENT, {"status": {"observedGeneration": generation}})
        self.cache.set_deployment(None, parse_deployment(deployment))
        self.cache.set_budget(None, parse_budget(self.api.objects[BUDGET]))

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects.get(POOL, {}).get("status", {})
        return status

    @property
    def told(self) -> list[str]:
        path = events_path("shop")
        return [event["reason"] for place, event in self.api.objects.items() if place.startswith(path)]


def read_list(name: str) -> list[str]:
    """Return the files that the page lists between two markers: the first word of each line."""
    block = PAGE.read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return re.findall(r"^(\w+/\w+\.py) ", block, re.MULTILINE)


async def test_a_changed_pool_takes_the_way_that_the_page_lists(
    redis_dsn: str, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The event brings the round, not the poll.
    monkeypatch.setattr(pool_group, "_POLL_SECONDS", 600.0)
    configuration = type.__call__(Configuration)
    async with FakeApiServer() as api:
        configuration.host = f"http://127.0.0.1:{api.port}"
        async with Kube(configuration) as kube:
            url = base64.b64encode(redis_dsn.encode()).decode()
            api.put("/api/v1/namespaces/shop/secrets/redis", {"data": {"url": url}})
            bench = Bench(api, kube)
            leading = asyncio.create_task(bench.leader.run())
            try:
                trace = await trace_change(bench, store, leading)
            finally:
                leading.cancel()
                await asyncio.wait([leading])
    assert trace.way == set(read_list("pool path"))
    assert len(trace.way) <= 14
    assert trace.leader - trace.way == {"control/leader.py", "cluster/redis_sources.py"}


async def trace_change(bench: Bench, store: JobStore, leading: asyncio.Task[None]) -> Trace:
    """Bring the pool to rest, then change its spec while jobs are due; return what ran from there to the status."""
    bench.change_pool(None)
    await eventually(lambda: {DEPLOYMENT, BUDGET} <= bench.api.objects.keys())
    await eventually(lambda: bench.status.get("reason") == "Idle")
    bench.show_objects()
    await eventually(lambda: bench.status["conditions"][0]["reason"] == "AtZero")
    # As a producer of RRQ 0.7 does, which announces nothing.
    entries = [part for number in range(30) for part in ("0", f"job-{number}")]
    await ask(store, "ZADD", store.keys.queue_key("default"), *entries)
    with Trace(leading) as trace:
        bench.change_pool("MODIFIED", image="shop:2")
        await eventually(lambda: bench.api.objects[DEPLOYMENT]["spec"]["replicas"] == 3)
        await eventually(lambda: bench.status["desiredReplicas"] == 3 and "Scaled" in bench.told)
    [container] = bench.api.objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "shop:2"
    return trace
