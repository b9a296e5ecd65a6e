"""Pools with replicas against a real API server, a real Redis, and pods that a stand-in kubelet reports."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fake_node import PodBehaviour
from operator_process import RunningOperator
from pools import build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import Cluster
    from fake_node import FakeNode
    from pools import PoolDesk
    from rrq import RRQClient
    from rrq.embedded import EmbeddedRedis
    from rrq.flow import PoolReport

# In one process: each that runs any of them would start the operator that they share.
pytestmark = pytest.mark.xdist_group("replica_pools")

WORKER = {"image": "example.com/shop:1", "settings": "shop.jobs.settings", "concurrency": 10}


def is_ready(desk: PoolDesk, reason: str) -> bool:
    return desk.condition("Ready")[:2] == ("True", reason)


@pytest.fixture(scope="module")
def operator(
    control_plane: Cluster, pool_definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningOperator]:
    """One operator for all namespaces, shared by the tests of this file: starting it takes seconds."""
    with RunningOperator(control_plane.kubeconfig, "", tmp_path_factory.mktemp("operator")) as running:
        yield running
    sys.stderr.write(running.log[-20_000:])


async def test_a_pool_scales_up_with_its_queue_and_reports_it(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"maxReplicas": 20}))
    await eventually(lambda: desk.replicas() == 0, 60, "the Deployment is made, with no pod")
    await eventually(lambda: is_ready(desk, "AtZero"), 60)
    await client.enqueue_many([JobRequest("greet") for _ in range(2000)])
    await eventually(lambda: desk.replicas() == 20, 30, "20 replicas are asked for")
    await eventually(lambda: is_ready(desk, "AsDesired"), 60)
    await eventually(lambda: desk.status()["due"] == 2000, 30)
    columns = desk.kubectl("get", "rrqpool").splitlines()[1].split()
    assert columns[:4] == ["emails", "Deployment", "default", "2000"]
    assert columns[5:9] == ["0", "20", "20", "Backlog"]

    def describe() -> str:
        return desk.kubectl("describe", "rrqpool", "emails")

    await eventually(lambda: "0 → 20 replicas: 0 running + " in describe(), message="the event is not there")
    told = describe()
    assert "0 running + 2000 due, 10 per replica: 200 needed; maxReplicas allows 20" in told
    assert desk.condition("ScalingLimited")[:2] == ("True", "AtMaximum")


async def test_what_others_change_is_put_right_and_what_they_add_stays(
    desk: PoolDesk, operator: RunningOperator, redis_dsn: str
) -> None:
    desk.apply(build_pool(redis={"url": redis_dsn}, worker=WORKER))
    await eventually(lambda: desk.replicas() == 0, 60)
    await eventually(lambda: desk.get("pdb", "emails"), 60)
    desk.kubectl("annotate", "deployment", "emails", "shop.example/owner=me")
    desk.kubectl("label", "deployment", "emails", "team=shop")
    desk.kubectl("set", "image", "deployment/emails", "worker=example.com/evil:1")
    desk.kubectl("patch", "pdb", "emails", "--type=merge", '--patch={"spec": {"maxUnavailable": 5}}')

    def is_put_right() -> bool:
        deployment, budget = desk.get("deployment", "emails"), desk.get("pdb", "emails")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        images, most = container["image"], budget["spec"]["maxUnavailable"]
        return (images, most) == ("example.com/shop:1", 1)

    await eventually(is_put_right, 30)
    metadata = desk.get("deployment", "emails")["metadata"]
    assert metadata["annotations"]["shop.example/owner"] == "me"
    assert metadata["labels"]["team"] == "shop"
    desk.kubectl("delete", "deployment", "emails")
    await eventually(lambda: desk.replicas() == 0, 30, "a Deployment that was deleted is made again")


async def test_jobs_of_next_week_ask_for_nothing_and_a_job_due_soon_has_its_pod_in_time(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    # Slow on purpose: the horizon grows with it, and with the horizon the time a busy machine may lose.
    fake_node.behave(PodBehaviour(ready_after_seconds=6.0))
    scaling = {"scaleDown": {"windowSeconds": 0}}
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling=scaling, replicas=1))
    await eventually(lambda: is_ready(desk, "AsDesired"), 60)
    await eventually(lambda: desk.status().get("startupSeconds"), 30, "how long a pod takes is not measured")
    desk.kubectl("scale", "rrqpool", "emails", "--replicas=0")
    next_week = datetime.now(UTC) + timedelta(days=7)
    await client.enqueue_many([JobRequest("greet", defer_until=next_week) for _ in range(2000)])
    await eventually(lambda: desk.status()["later"] == 2000, 30)
    await eventually(lambda: desk.replicas() == 0, 60)
    await eventually(lambda: not desk.read_all("pods"), 30)
    # As in sizing.py, and from what the operator knows by now: it may have measured more than one pod.
    horizon_seconds = desk.status()["startupSeconds"] * 1.5 + 2
    due_at = time.time() + horizon_seconds + 6
    await client.enqueue("greet", _defer_until=datetime.fromtimestamp(due_at, UTC))
    await eventually(lambda: desk.replicas() == 1, horizon_seconds + 6, "a pod before the job is due")
    early_seconds = due_at - time.time()
    # A pod that took longer to start may have been measured, and reported, only since.
    horizon_seconds = max(horizon_seconds, desk.status()["startupSeconds"] * 1.5 + 2)
    assert early_seconds < horizon_seconds + 1, "it is too early for a pod"
    await eventually(lambda: has_ready_pod(desk), due_at - time.time(), "a pod before the job is due")
    assert desk.replicas() == 1


def has_ready_pod(desk: PoolDesk) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in desk.read_all("pods")
        for condition in pod["status"].get("conditions", [])
    )


async def test_the_floors_of_a_pool_apply_although_its_redis_never_answered(
    desk: PoolDesk, operator: RunningOperator
) -> None:
    desk.apply(build_pool(redis={"url": "redis://127.0.0.1:1/0"}, scaling={"minReplicas": 2}))
    await eventually(lambda: desk.replicas() == 2, 60)
    desk.kubectl("scale", "rrqpool", "emails", "--replicas=4")
    await eventually(lambda: desk.replicas() == 4, 30)
    assert desk.condition("ScalingActive")[:2] == ("False", "QueueUnreadable")


async def test_a_paused_pool_has_no_pods_and_is_reported_as_paused_until_it_is_resumed(
    desk: PoolDesk, operator: RunningOperator, client: RRQClient, redis_dsn: str
) -> None:
    target = f"pool:{desk.namespace}/emails"
    await client.job_store.set_pause(target, "paused", "ada")
    for _ in range(12):
        await client.enqueue("greet")
    desk.apply(build_pool(redis={"url": redis_dsn}))
    await eventually(lambda: desk.condition("ScalingActive")[:2] == ("False", "Paused"), 60)
    status = desk.status()
    assert (status["reason"], status["due"], status["blocked"], desk.replicas()) == ("Paused", 12, 12, 0)
    await eventually(lambda: desk.events("Paused"), 30)

    async def read_report() -> PoolReport | None:
        reports = {report.pool: report for report in await client.job_store.read_pools()}
        return reports.get(f"{desk.namespace}/emails")

    report = await eventually(read_report, 30, "the pool is not published")
    assert report is not None
    assert (report.reason, report.due, report.blocked, report.is_paused) == ("Paused", 12, 12, True)
    await client.job_store.set_pause(target, None, "ada")
    await eventually(lambda: desk.replicas() == 2, 30)
    await eventually(lambda: desk.events("Resumed"), 30)

    async def is_forgotten() -> bool:
        return await read_report() is None

    desk.kubectl("delete", "rrqpool", "emails", "--wait=false")
    await eventually(is_forgotten, 30)


async def test_metrics_show_the_pool_without_unknown_figures(
    desk: PoolDesk, operator: RunningOperator, own_redis: EmbeddedRedis
) -> None:
    desk.apply(build_pool(redis={"url": own_redis.dsn}))
    await eventually(lambda: is_ready(desk, "AtZero"), 60)
    assert (await operator.get("/readyz"))[0] == 200
    assert (await operator.get("/livez"))[0] == 200

    async def gauges() -> dict[str, float]:
        _, page = await operator.get("/metrics")
        label = f'{{namespace="{desk.namespace}",pool="emails"}}'
        found: dict[str, Any] = {}
        for line in page.splitlines():
            if label in line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name.removeprefix("rrq_operator_").removesuffix(label)] = float(value)
        return found

    known = {
        "due_jobs",
        "blocked_jobs",
        "orphaned_jobs",
        "scheduled_jobs",
        "oldest_due_age_seconds",
        "busy_jobs",
    }
    always = {"desired_replicas", "ready_replicas"}

    async def has_all_figures() -> bool:
        return set(await gauges()) == known | always

    await eventually(has_all_figures, 30)
    page = (await operator.get("/metrics"))[1]
    for name in ("build_info", "is_leader 1.0", "pools ", "tick_seconds_count", "reaction_seconds_count"):
        assert f"rrq_operator_{name}" in page
    own_redis.kill()

    async def has_no_queue_figures() -> bool:
        return set(await gauges()) == always

    await eventually(has_no_queue_figures, 30)
    await eventually(lambda: desk.condition("QueueReachable")[:2] == ("False", "Unreachable"), 30)
    assert 'redis_errors_total{reason="Unreachable"}' in (await operator.get("/metrics"))[1]
    assert (await operator.get("/readyz"))[0] == 200
    own_redis.start()
    await eventually(lambda: desk.condition("QueueReachable")[0] == "True", 30)

    await eventually(has_all_figures, 30)
    desk.kubectl("delete", "rrqpool", "emails")

    async def has_none() -> bool:
        return not await gauges()

    await eventually(has_none, 30, "a deleted pool leaves no figure behind")
