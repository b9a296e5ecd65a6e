"""What goes wrong around a pool: each trouble is reported in a condition and an event, costs nothing, and passes."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fake_node import PodBehaviour
from operator_process import RunningOperator
from pools import build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_part import Part
    from control_plane import Cluster
    from fake_node import FakeNode
    from pools import PoolDesk
    from rrq import RRQClient

# In one process: each that runs any of them would start the operator that they share.
pytestmark = pytest.mark.xdist_group("faults")

# Longer than a leader may go without a renewal, so that it has to lead anew.
OUTAGE_SECONDS = 8
WORKER = {"image": "example.com/shop:1", "settings": "shop.jobs.settings", "concurrency": 10}


@pytest.fixture(scope="module")
def operator(
    control_plane: Cluster, pool_definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningOperator]:
    """One operator for all namespaces, shared by the tests of this file: starting it takes seconds."""
    with RunningOperator(control_plane.kubeconfig, "", tmp_path_factory.mktemp("operator")) as running:
        yield running
    sys.stderr.write(running.log[-20_000:])


def from_secret(name: str) -> dict[str, Any]:
    return {"urlFrom": {"secretKeyRef": {"name": name, "key": "url"}}}


def ready(desk: PoolDesk) -> tuple[str, str]:
    return desk.condition("Ready")[:2]


async def is_told(
    desk: PoolDesk, reason: str, *words: str, name: str = "emails", condition: str = "Ready"
) -> None:
    """Expect the trouble in a condition and in a warning."""

    def has_condition() -> bool:
        status, said, message = desk.condition(condition, name)
        assert (status, said) == ("False", reason), message
        return all(word in message for word in words)

    await eventually(has_condition, 60)

    def find_warnings() -> list[dict[str, Any]]:
        about = ("RRQWorkerPool", name, reason)
        return [
            event
            for event in desk.read_all("events")
            if (event["involvedObject"]["kind"], event["involvedObject"]["name"], event["reason"]) == about
        ]

    [warning, *others] = await eventually(find_warnings, 10, f"an event {reason}")
    assert warning["type"] == "Warning"
    assert not others, "the same makes one event"


async def test_a_pool_waits_for_a_secret_that_is_of_use(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> None:
    desk.add_secret("keyless", other="x")
    desk.add_secret("garbage", url="hunter2")
    faults = {
        "missing": ("SecretMissing", f"{desk.namespace}/missing"),
        "keyless": ("SecretKeyMissing", "'url'"),
        "garbage": ("InvalidURL", "redis://"),
    }
    for name in faults:
        desk.apply(build_pool(name, redis=from_secret(name), replicas=1))
    for name, (reason, words) in faults.items():
        await is_told(desk, reason, words, name=name)
        assert desk.replicas(name) is None
        assert desk.status(name)["reason"] == reason
        assert "due" not in desk.status(name), "unknown is not shown as zero"
    assert "hunter2" not in desk.kubectl("get", "rrqpool,events", "--output=yaml") + operator.log
    for name in faults:
        desk.add_secret(name, url=redis_dsn)
    for name in faults:
        await eventually(lambda: desk.condition("Ready", name)[:2] == ("True", "AsDesired"), 60)  # noqa: B023  awaited in the same turn
    # Gone again, it takes nothing away.
    desk.kubectl("delete", "secret", "missing")
    await is_told(desk, "SecretMissing", name="missing", condition="QueueReachable")
    assert desk.replicas("missing") == 1
    assert desk.condition("ScalingActive", "missing")[:2] == ("False", "QueueUnreadable")
    desk.add_secret("missing", url=redis_dsn)
    await eventually(lambda: desk.condition("Ready", "missing")[:2] == ("True", "AsDesired"), 60)


async def test_an_image_that_cannot_be_pulled_is_reported_and_old_pods_stay(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> None:
    pool = build_pool(redis={"url": redis_dsn}, worker=WORKER, replicas=2)
    desk.apply(pool)
    await eventually(lambda: ready(desk) == ("True", "AsDesired"), 60)
    fake_node.behave(PodBehaviour(waiting_reason="ImagePullBackOff"))
    pool["spec"]["worker"] = WORKER | {"image": "example.com/shop:misspelt"}
    desk.apply(pool)
    await is_told(desk, "ImagePullBackOff", "pod emails-", "ImagePullBackOff")
    assert desk.status()["reason"] == "ImagePullBackOff"
    assert desk.status()["readyReplicas"] == 2, "no pod left before a replacement was ready"
    fake_node.behave(PodBehaviour())
    pool["spec"]["worker"] = WORKER | {"image": "example.com/shop:2"}
    desk.apply(pool)
    await eventually(lambda: ready(desk) == ("True", "AsDesired"), 60)
    await eventually(lambda: desk.events("AsDesired"), 30, "no event says that it is well again")


async def test_an_exceeded_quota_is_reported_and_the_pods_follow_once_it_allows(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> None:
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    desk.apply(quota)
    await eventually(lambda: desk.get("resourcequota", "small").get("status", {}).get("hard"), 30)
    desk.apply(build_pool(redis={"url": redis_dsn}, replicas=4))
    await is_told(desk, "ReplicaFailure", "exceeded quota: small")
    await eventually(lambda: desk.status()["readyReplicas"] == 2, 30)
    quota["spec"]["hard"]["pods"] = "10"
    desk.apply(quota)
    await eventually(lambda: ready(desk) == ("True", "AsDesired"), 60)


async def test_objects_of_others_are_left_alone(
    desk: PoolDesk, operator: RunningOperator, redis_dsn: str
) -> None:
    labels = {"app": "shop"}
    container = {"name": "shop", "image": "example.com/other:1"}
    theirs: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        # Even the labels of the operator do not make it ours.
        "metadata": {
            "name": "emails",
            "labels": {"app.kubernetes.io/managed-by": "rrq-operator", "rrq.dev/pool": "emails"},
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    budget: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "letters"},
        "spec": {"maxUnavailable": 3, "selector": {"matchLabels": labels}},
    }
    desk.apply(theirs, budget)
    before = desk.get("deployment", "emails"), desk.get("pdb", "letters")
    desk.apply(build_pool(redis={"url": redis_dsn}))
    desk.apply(build_pool("letters", redis={"url": redis_dsn}, queues=["letters"]))
    await is_told(desk, "NameTaken", f"Deployment {desk.namespace}/emails", "left alone")
    await eventually(lambda: desk.condition("Ready", "letters")[:2] == ("False", "NameTaken"), 30)
    assert (desk.get("deployment", "emails"), desk.get("pdb", "letters")) == before
    desk.kubectl("delete", "deployment", "emails")
    desk.kubectl("delete", "pdb", "letters")
    await eventually(lambda: ready(desk) == ("True", "AtZero"), 60)
    await eventually(lambda: desk.condition("Ready", "letters")[:2] == ("True", "AtZero"), 60)
    assert desk.get("pdb", "letters")["spec"]["maxUnavailable"] == 1


async def test_another_writer_of_replicas_is_named_and_overruled(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> None:
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"scaleDown": {"windowSeconds": 0}}, replicas=2))
    await eventually(lambda: ready(desk) == ("True", "AsDesired"), 60)
    desk.kubectl("scale", "deployment", "emails", "--replicas=5")
    await is_told(desk, "ForeignScaler", "kubectl changed", condition="ScalingActive")
    await eventually(lambda: desk.replicas() == 2, 60)
    # As an autoscaler would, another client takes away what is needed.
    desk.kubectl("scale", "deployment", "emails", "--replicas=0")
    await eventually(lambda: desk.replicas() == 2, 60)


async def test_a_spec_that_got_past_the_schema_changes_nothing(
    desk: PoolDesk, operator: RunningOperator, redis_dsn: str
) -> None:
    pool = build_pool(redis={"url": redis_dsn})
    desk.apply(pool)
    await eventually(lambda: ready(desk) == ("True", "AtZero"), 60)
    before = desk.get("deployment", "emails")
    pool["spec"]["cron"] = [{"name": "backwards", "schedule": "5-3 * * * *", "function": "greet"}]
    pool["spec"]["worker"] = WORKER | {"image": "example.com/shop:2"}
    desk.apply(pool)
    await is_told(desk, "InvalidSpec", "5-3")
    assert desk.get("deployment", "emails") == before
    # To the API server it is the time zone of its own machine.
    pool["spec"]["cron"] = [
        {"name": "zoned", "schedule": "0 8 * * *", "function": "greet", "timeZone": "Local"}
    ]
    desk.apply(pool)
    await is_told(desk, "InvalidSpec", "There is no time zone 'Local'")
    pool["spec"]["cron"] = []
    # Kubernetes itself refuses this one; the words are its own.
    pool["spec"]["worker"]["podTemplate"] = {
        "spec": {"containers": [{"name": "worker", "imagePullPolicy": "Perhaps"}]}
    }
    desk.apply(pool)
    await is_told(desk, "Invalid", "imagePullPolicy", "Perhaps")
    assert desk.get("deployment", "emails") == before
    del pool["spec"]["worker"]["podTemplate"]
    desk.apply(pool)
    await eventually(lambda: ready(desk) == ("True", "AtZero"), 60)
    container = desk.get("deployment", "emails")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "example.com/shop:2"


async def test_an_api_server_that_was_frozen_finds_the_operator_at_work(
    desk: PoolDesk, operator: RunningOperator, api_server: Part, client: RRQClient, redis_dsn: str
) -> None:
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"minReplicas": 0, "maxReplicas": 5}))
    await eventually(lambda: ready(desk) == ("True", "AtZero"), 60)
    api_server.pause()
    await client.enqueue_many([JobRequest("greet") for _ in range(50)])
    await asyncio.sleep(OUTAGE_SECONDS)
    assert (await operator.get("/livez"))[0] == 200
    api_server.resume()
    await eventually(lambda: desk.replicas() == 5, 60)
    desk.apply(build_pool("letters", redis={"url": redis_dsn}, queues=["letters"]))
    await eventually(lambda: desk.replicas("letters") == 0, 60, "pools that come are seen")
    await eventually(lambda: desk.status()["due"] == 50, 30)
