"""Pools with replicas against a real API server, a real Redis, and pods that a stand-in kubelet reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waiting import eventually

if TYPE_CHECKING:
    from fake_node import FakeNode
    from operator_process import RunningOperator
    from pools import PoolDesk
    from rrq import RRQClient

from pools import build_pool
from rrq.client import JobRequest


async def test_a_pool_grows_with_its_queue_and_says_so(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"maxReplicas": 20}))
    await eventually(lambda: desk.replicas() == 0, 20, "the Deployment is made, with no pod")
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "AtZero"), 20)
    await client.enqueue_many([JobRequest("greet") for _ in range(2000)])
    await eventually(lambda: desk.replicas() == 20, 5, "20 replicas are asked for")
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "AsDesired"), 20)
    await eventually(lambda: desk.status()["due"] == 2000, 10)
    columns = desk.kubectl("get", "rrqpool").splitlines()[1].split()
    assert columns[:4] == ["emails", "Deployment", "default", "2000"]
    assert columns[5:9] == ["0", "20", "20", "Backlog"]
