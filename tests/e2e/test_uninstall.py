"""Story 10: `helm uninstall` leaves pools, their workers and their data; a pool can be deleted with the operator gone."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from diagnosis import OPERATOR_NAMESPACE
from operator_release import NAME, NAME_LABEL, OperatorRelease
from rrq_operator.api.crd import CRD_NAME
from steady_pool import SteadyPool
from story import read_labelled
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from control_plane import Cluster
    from helm_client import Helm
    from pools import PoolDesk
    from story import Story


# What the operator makes of pools, and what Kubernetes makes of that.
OWNED = "deployments,replicasets,poddisruptionbudgets,jobs,pods"


@pytest.fixture
def uninstall(helm: Helm, desk: PoolDesk) -> Callable[[], Awaitable[None]]:
    """Takes the release away, and returns when no operator runs any more: its pods go after what they are made by."""

    def pods() -> list[dict[str, Any]]:
        return read_labelled(OperatorRelease.of(desk).desk, "pods", NAME_LABEL, NAME)

    async def uninstall() -> None:
        # In a thread: jobs may be enqueued meanwhile.
        await asyncio.to_thread(helm.run, "uninstall", "rrq", "--namespace", OPERATOR_NAMESPACE, "--wait")
        await eventually(lambda: not pods(), 90, "the operator stays", interval_seconds=0.3)

    return uninstall


async def test_pools_outlive_the_release_and_are_picked_up_by_the_next(
    story: Story, cluster: Cluster, install: Callable[..., None], uninstall: Callable[[], Awaitable[None]]
) -> None:
    story.apply_pool("asleep")
    await story.wait_for_pods(0, "asleep")
    async with SteadyPool(story) as steady:
        pools = read_uids(story)
        assert set(pools) == {"asleep", "steady"}

        await uninstall()
        gone_at = time.time()
        late = await story.enqueue(queue="asleep")

        async def works_on() -> bool:
            return await steady.started_between(gone_at, time.time()) >= 4

        await eventually(works_on, 60, "workers stopped with the operator", interval_seconds=0.3)
        assert CRD_NAME in cluster.kubectl("get", "crd", CRD_NAME, "--output=name")
        assert read_uids(story) == pools
        assert story.desk.replicas("asleep") == 0, "nobody looks after the pools"

        await asyncio.to_thread(install)
        await story.wait_until_finished(90, late)
        assert read_uids(story) == pools


async def test_a_pool_is_deleted_with_all_that_is_its_own_when_the_operator_is_gone(
    story: Story, uninstall: Callable[[], Awaitable[None]]
) -> None:
    # Jobs that are not done when their pod is told to go.
    quick_to_leave = {"drainSeconds": 1}
    story.apply_pool("emails", worker=quick_to_leave)
    story.apply_pool("reports", type="Job", worker=quick_to_leave)
    jobs = [
        job for queue in ("emails", "reports") for job in await story.enqueue(queue=queue, handler="endure")
    ]

    async def all_run() -> bool:
        return set((await story.read_ledger()).count("started")) == set(jobs)

    await eventually(all_run, 90, "jobs never ran", interval_seconds=0.3)
    kinds = {"Deployment", "ReplicaSet", "PodDisruptionBudget", "Job", "Pod"}
    await eventually(
        lambda: {found["kind"] for found in owned(story)} == kinds, 30, "something of the pools is missing"
    )

    await uninstall()
    story.desk.kubectl("delete", "rrqpool", "emails", "reports", "--timeout=60s")
    await eventually(lambda: not owned(story), 60, "something of the pools stayed", interval_seconds=0.3)
    assert story.desk.get("secret", "rrq-redis"), "what a pool only names is not its own"
    for pool in ("emails", "reports"):
        assert story.redis.cli("zcard", f"rrq:queue:{pool}").strip() == "1", (
            f"the job of {pool} waits for the next"
        )


def read_uids(story: Story) -> dict[str, str]:
    pools = story.desk.read_all("rrqpool")
    return {pool["metadata"]["name"]: pool["metadata"]["uid"] for pool in pools}


def owned(story: Story) -> list[dict[str, Any]]:
    """What there is of all pools."""
    return story.desk.read_all(OWNED, "--selector=rrq.dev/pool")
