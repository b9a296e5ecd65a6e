"""A pool becomes smaller: never through a running job, and by exactly the pods that were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fake_node import PodBehaviour
from faulty_api import FaultyApi
from operator_process import RunningOperator
from pod_workers import PodWorkers
from pools import build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fake_node import FakeNode
    from pools import PoolDesk
    from rrq import RRQClient
    from rrq.store import JobStore


@pytest.fixture
async def api(desk: PoolDesk, tmp_path: Path) -> AsyncIterator[FaultyApi]:
    async with FaultyApi(desk.cluster.kubeconfig, tmp_path) as api:
        yield api


def names(desk: PoolDesk) -> dict[str, str]:
    """Return the pods that are not on their way out, uid and name."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["name"]
        for pod in desk.read_all("pods")
        if "deletionTimestamp" not in pod["metadata"]
    }


def is_ready(desk: PoolDesk, reason: str) -> bool:
    return desk.condition("Ready")[:2] == ("True", reason)


async def test_idle_pods_go_busy_ones_stay_until_their_jobs_have_ended(
    desk: PoolDesk,
    api: FaultyApi,
    fake_node: FakeNode,
    tmp_path: Path,
    client: RRQClient,
    store: JobStore,
    redis_dsn: str,
) -> None:
    scaling = {"maxReplicas": 4, "jobsPerReplica": 10, "scaleDown": {"windowSeconds": 1}}
    with RunningOperator(api.kubeconfig, desk.namespace, tmp_path):
        desk.apply(build_pool(redis={"url": redis_dsn}, scaling=scaling))
        await eventually(lambda: is_ready(desk, "AtZero"), 60)
        await client.enqueue_many([JobRequest("greet") for _ in range(40)])
        await eventually(lambda: is_ready(desk, "AsDesired") and len(names(desk)) == 4, 60)
        async with PodWorkers(store) as workers:
            pods = names(desk)
            first, second, *others = pods
            await workers.start(pods)
            assert await workers.take(first) == 1
            assert await workers.take(second) == 1
            api.calls.clear()
            # Both take before one ends: meanwhile the other, still idle, could be chosen to leave.
            for uid in others:
                assert await workers.take(uid, 19) == 19
            for uid in others:
                await workers.finish(uid)
            # Two jobs are left for four pods, and one pod could carry them; the two idle ones go.
            await eventually(lambda: desk.replicas() == 2, 60)
            await eventually(lambda: names(desk).keys() == {first, second}, 30)
            writes = api.writes
            last = max(number for number, write in enumerate(writes) if "/scale" in write)
            for uid in others:
                assert any(write.endswith(f"/pods/{pods[uid]}") for write in writes[:last]), writes
            workers.stop(others)
            # One of the two is to go as well, takes nothing more, and is waited for.
            await eventually(lambda: desk.condition("Draining")[:2] == ("True", "WaitingForJobs"), 30)
            assert desk.replicas() == 2
            # The work comes back: both are wanted again.
            await client.enqueue_many([JobRequest("greet") for _ in range(16)])
            await eventually(lambda: desk.condition("Draining")[:2] == ("False", "NotDraining"), 30)
            assert await workers.take(first, 8) == 8
            assert await workers.take(second, 8) == 8
            assert desk.replicas() == 2
            # One job after the other ends, and then no pod is left.
            await workers.finish(first)
            await eventually(lambda: names(desk).keys() == {second}, 60)
            workers.stop([first])
            await workers.finish(second)
            await eventually(lambda: desk.replicas() == 0, 60)
            await eventually(lambda: is_ready(desk, "AtZero"), 30)
            await eventually(lambda: [event for event in desk.events("Scaled") if event.startswith("1 → 0")])


async def test_pods_that_never_started_are_given_back_while_others_run_jobs(
    desk: PoolDesk,
    operator: RunningOperator,
    fake_node: FakeNode,
    client: RRQClient,
    store: JobStore,
    redis_dsn: str,
) -> None:
    scaling = {"maxReplicas": 6, "jobsPerReplica": 10, "scaleDown": {"windowSeconds": 1}}
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling=scaling))
    await client.enqueue_many([JobRequest("greet") for _ in range(20)])
    await eventually(lambda: is_ready(desk, "AsDesired") and len(names(desk)) == 2, 60)
    async with PodWorkers(store) as workers:
        working = set(names(desk))
        await workers.start(working)
        for uid in working:
            assert await workers.take(uid, 10) == 10
        fake_node.behave(PodBehaviour(waiting_reason="ImagePullBackOff"))
        await client.enqueue_many([JobRequest("greet") for _ in range(40)])
        await eventually(lambda: desk.condition("Ready")[1] == "ImagePullBackOff", 60)
        await eventually(lambda: len(names(desk)) == 6, 30)
        # One more pod is wanted than run, so that a pod stays that never started.
        await store.redis.zremrangebyrank("rrq:queue:default", 0, 31)
        await eventually(lambda: desk.replicas() == 3, 60)
        await eventually(lambda: len(names(desk)) == 3, 30)
        assert working < set(names(desk))
