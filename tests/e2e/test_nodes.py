"""Story 3, of nodes: lost to a power failure, cut off for a while, or drained, while jobs run on them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from control_plane import KubectlFailed
from real_cluster import RealCluster
from story import is_ready
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from control_plane import Cluster
    from node import Node
    from story import Story
    from story_ledger import Entry

pytestmark = pytest.mark.timeout(400)

# A lease is 15 s; it is swept within a second of its end, and what waits is started by idle workers at once.
LEASE_SECONDS = 15.0
RUN_AGAIN_SECONDS = LEASE_SECONDS + 10.0
# Longer than two more pods take to come: who runs such jobs is cut off after that, and before their end.
LONG_SECONDS = 40.0
# Keeps pods on a node that is not heard, so that those of the story are there when it is heard again.
PATIENT = {
    "spec": {
        "tolerations": [
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        ]
    }
}
# What a worker says that learns about it: in the answer to its heartbeat, or to the outcome that it reports.
TOLD_SO = ("lease lost, jobs in hand were given to others", "late outcome refused")


@pytest.fixture(scope="module")
def real_cluster(cluster: Cluster) -> RealCluster:
    if not isinstance(cluster, RealCluster):
        pytest.skip("the nodes of a cluster that was given are not ours to kill")
    return cluster


@pytest.fixture(scope="module")
def spare_nodes(real_cluster: RealCluster) -> Iterator[list[Node]]:
    """Nodes beyond those that Redis and operator run on, which are not asked for new pods outside of their story."""
    spare: list[Node] = []
    yield spare
    for node in spare:
        node.kill()
        real_cluster.kubectl("delete", "node", node.place.name, "--ignore-not-found")


@pytest.fixture
async def node(story: Story, real_cluster: RealCluster, spare_nodes: list[Node]) -> AsyncIterator[Node]:
    """A node on which nothing runs but what the story puts there. Redis and the operator found theirs before."""
    living = [node for node in spare_nodes if node.kubelet.is_running]
    if not living:
        living = [real_cluster.add_node()]
        spare_nodes += living
    [node] = living
    for state in ("create", "condition=Ready"):
        real_cluster.kubectl("wait", f"--for={state}", f"node/{node.place.name}", "--timeout=60s")
    real_cluster.kubectl("uncordon", node.place.name)
    yield node
    real_cluster.kubectl("cordon", node.place.name)


def pods_on(story: Story, node: Node) -> list[str]:
    """The pods of the pool that are there."""
    return [pod["metadata"]["name"] for pod in story.pods() if pod["spec"].get("nodeName") == node.place.name]


async def fill(story: Story, node: Node, worker: dict[str, Any], **jobs: Any) -> dict[str, Entry]:
    """Have a pool of two pods on this node only, which work on four jobs; returns the start of each."""
    cluster = story.desk.cluster
    names = cluster.kubectl("get", "nodes", "--output=name").split()
    others = [name for name in names if name != f"node/{node.place.name}"]
    cluster.kubectl("cordon", *others)
    try:
        story.apply_pool(worker=worker, scaling={"minReplicas": 2, "maxReplicas": 2})
        await story.wait_for_pods(2, timeout_seconds=120)
    finally:
        cluster.kubectl("uncordon", *others)
    starts = await story.wait_until_started(await story.enqueue(4, **jobs))
    assert {entry.pod for entry in starts.values()} == set(pods_on(story, node))
    return starts


async def add_idle_pods(story: Story, node: Node, worker: dict[str, Any]) -> None:
    """Two more pods, on other nodes, so that a job which is due again is one that starts."""
    story.desk.cluster.kubectl("cordon", node.place.name)
    story.apply_pool(worker=worker, scaling={"minReplicas": 4, "maxReplicas": 4})
    await story.wait_for_pods(4, timeout_seconds=120)


async def wait_until_started_again(story: Story, lost_at: float, starts: dict[str, Entry]) -> None:
    """Wait for the second start of each job, and hold its time against the lease."""

    async def all_again() -> bool:
        ledger = await story.read_ledger()
        return all(len(ledger.of_job(job_id, "started")) == 2 for job_id in starts)

    await eventually(all_again, 90, "jobs of a lost node were not run again", interval_seconds=0.3)
    ledger = await story.read_ledger()
    waits = [ledger.of_job(job_id, "started")[1].time - lost_at for job_id in starts]
    assert max(waits) < RUN_AGAIN_SECONDS, waits


async def assert_counted_once(story: Story) -> None:
    """Every job is completed, and was counted as completed once, whoever else may have tried."""
    await story.wait_until_finished(90)
    await story.assert_completed(story.job_ids)
    counters = story.redis.cli("hgetall", "rrq:counters").split()
    counted = dict(zip(counters[::2], counters[1::2], strict=True))
    assert counted["done"] == str(len(story.job_ids)), counted


async def test_jobs_of_a_node_that_is_cut_off_run_elsewhere_and_count_once(
    story: Story, node: Node, real_cluster: RealCluster
) -> None:
    """The cable is pulled, and put in again when the jobs there have come to their end unheard."""
    worker = {"concurrency": 2, "podTemplate": PATIENT}
    starts = await fill(story, node, worker, seconds=LONG_SECONDS)
    await add_idle_pods(story, node, worker)
    cut_off = {entry.pod for entry in starts.values()}
    real_cluster.disconnect(node)
    try:
        await wait_until_started_again(story, time.time(), starts)
        unheard_until = max(entry.time for entry in starts.values()) + LONG_SECONDS
        await eventually(lambda: time.time() > unheard_until, LONG_SECONDS)
        assert not (await story.read_ledger()).of("finished"), (
            "nobody was to be done before they are heard again"
        )
    finally:
        real_cluster.connect(node)

    def are_told() -> bool:
        try:
            logs = [story.desk.kubectl("logs", pod) for pod in cut_off]
        except KubectlFailed:  # the way to the node is not open again
            return False
        return all(any(words in log for words in TOLD_SO) for log in logs)

    await eventually(
        are_told, 60, "workers that were cut off do not know what they lost", interval_seconds=0.5
    )
    await assert_counted_once(story)
    await story.wait_for_pods(4)
    # Handlers of both may have come to their end and written it down; only those of the second attempt count.
    ledger = await story.read_ledger()
    for job_id in starts:
        assert len(ledger.of_job(job_id, "started")) == 2
        assert len([entry for entry in ledger.of_job(job_id, "finished") if entry.pod not in cut_off]) == 1


async def test_pods_of_a_drained_node_finish_their_jobs_and_come_back_elsewhere(
    story: Story, node: Node, real_cluster: RealCluster
) -> None:
    """kubectl drain, which the pool's budget makes take one pod after the other."""
    await fill(story, node, {"concurrency": 2, "drainSeconds": 20}, seconds=6.0)
    drain = ["drain", node.place.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=110s"]
    await asyncio.to_thread(real_cluster.kubectl, *drain)
    assert pods_on(story, node) == []
    await story.wait_for_pods(2)
    await story.wait_until_finished(60)
    (await story.read_ledger()).assert_each_once(story.job_ids)
    await assert_counted_once(story)


async def test_jobs_of_a_node_without_power_run_elsewhere(story: Story, node: Node) -> None:
    """The last one of this node: everything on it ends without a word."""
    starts = await fill(story, node, {"concurrency": 2}, handler="endure")
    await add_idle_pods(story, node, {"concurrency": 2})
    lost = pods_on(story, node)
    node.kill()
    await wait_until_started_again(story, time.time(), starts)
    # As soon as Kubernetes gives the node up, the pool is whole again on the others.

    def are_replaced() -> bool:
        others = [pod for pod in story.pods() if pod["metadata"]["name"] not in lost]
        return [is_ready(pod) for pod in others] == [True] * 4

    await eventually(
        are_replaced,
        90,
        "pods of a lost node were not replaced",
        interval_seconds=0.5,
    )
    await assert_counted_once(story)
    (await story.read_ledger()).assert_none_lost(story.job_ids)
    assert set((await story.read_ledger()).count("finished").values()) == {1}
