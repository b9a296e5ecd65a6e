"""The operator works with the rights that the chart gives it, and has no others."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.aio.client import (
    ApiClient,
    AuthorizationV1Api,
    V1ResourceAttributes,
    V1SubjectAccessReview,
    V1SubjectAccessReviewSpec,
)

from fake_node import FakeNode, PodBehaviour
from helm_client import CHART
from kubernetes_client import open_client
from operator_process import RunningOperator
from pod_workers import PodWorkers
from pool_definition import wait_until_served
from pools import PoolDesk, build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from control_plane import ControlPlane
    from helm_client import Helm
    from rrq import RRQClient
    from rrq.store import JobStore

# Verb and resource, with its group behind a dot, then a subresource behind a slash and a name behind an equals sign.
MAY = (
    "get rrqworkerpools.rrq.dev",
    "patch rrqworkerpools.rrq.dev/status",
    "create deployments.apps",
    "patch deployments.apps/scale",
    "create jobs.batch",
    "get secrets=rrq-redis",
    "create events",
)
LEASE = ("get leases.coordination.k8s.io=rrq-operator", "update leases.coordination.k8s.io=rrq-operator")
MUST_NOT = (
    "list secrets",
    "watch secrets",
    "create secrets",
    "patch secrets=rrq-redis",
    "delete rrqworkerpools.rrq.dev",
    "patch rrqworkerpools.rrq.dev",
    "create pods",
    "delete pods",
    "get pods",
    "create pods/exec",
    "create pods/eviction",
    "get pods/log",
    "delete deployments.apps",
    "update deployments.apps",
    "delete jobs.batch",
    "create serviceaccounts/token",
    "create roles.rbac.authorization.k8s.io",
    "create rolebindings.rbac.authorization.k8s.io",
    "get configmaps",
    "list namespaces",
    "list nodes",
    "get customresourcedefinitions.apiextensions.k8s.io",
    "update leases.coordination.k8s.io=somebody-else",
    "list leases.coordination.k8s.io",
)


def install(helm: Helm, namespace: str, **values: Any) -> None:
    helm.run("install", "rrq", str(CHART), "--namespace", namespace, values=values)


class Rights:
    """What the API server would answer an account, asked without being it."""

    def __init__(self, client: ApiClient) -> None:
        self._api = AuthorizationV1Api(client)

    async def granted(self, account: str, namespace: str, questions: Sequence[str]) -> list[str]:
        """Return those of the questions to which it says yes; the account is written `namespace:name`."""
        answers = await asyncio.gather(*(self._may(account, namespace, question) for question in questions))
        return [question for question, is_granted in zip(questions, answers, strict=True) if is_granted]

    async def are_in_force(self, account: str, namespace: str, questions: Sequence[str]) -> None:
        """Wait until it says yes to all: it learns of rights a moment after it was given them."""

        async def has_all() -> bool:
            granted = await self.granted(account, namespace, questions)
            assert granted == list(questions), granted
            return True

        await eventually(has_all, 60, f"{account} has not all rights in {namespace}")

    async def _may(self, account: str, namespace: str, question: str) -> bool:
        verb, what = question.split()
        resource, _, name = what.partition("=")
        resource, _, subresource = resource.partition("/")
        resource, _, group = resource.partition(".")
        attributes = V1ResourceAttributes(
            verb=verb, resource=resource, group=group, subresource=subresource, name=name, namespace=namespace
        )
        groups = ["system:serviceaccounts", "system:authenticated"]
        spec = V1SubjectAccessReviewSpec(
            user=f"system:serviceaccount:{account}", groups=groups, resource_attributes=attributes
        )
        review = await self._api.create_subject_access_review(V1SubjectAccessReview(spec=spec))
        assert review.status is not None
        return review.status.allowed


@pytest.fixture
async def rights(plane: ControlPlane) -> AsyncIterator[Rights]:
    async with await open_client(plane.kubeconfig) as client:
        yield Rights(client)


@pytest.mark.parametrize("is_namespaced", [False, True], ids=["all namespaces", "one namespace"])
async def test_with_these_rights_pools_grow_shrink_and_run(
    plane: ControlPlane,
    helm: Helm,
    rights: Rights,
    namespaces: Callable[[], str],
    tmp_path: Path,
    client: RRQClient,
    store: JobStore,
    redis_dsn: str,
    is_namespaced: bool,
) -> None:
    home, shop = namespaces(), namespaces()
    install(helm, home, watchNamespace=shop if is_namespaced else "", rbac={"secretNames": ["shop-redis"]})
    wait_until_served(plane)
    await rights.are_in_force(f"{home}:rrq-operator", shop, MAY[:1])  # one role has them all
    await rights.are_in_force(f"{home}:rrq-operator", home, LEASE)
    token = plane.kubectl("create", "token", "rrq-operator", "--namespace", home).strip()
    kubeconfig = plane.make_kubeconfig(f"{home}-operator", token=token)
    desk = PoolDesk(plane, shop)
    desk.add_secret("shop-redis", url=redis_dsn)
    redis = {"urlFrom": {"secretKeyRef": {"name": "shop-redis", "key": "url"}}}
    scaling = {"maxReplicas": 2, "jobsPerReplica": 10, "scaleDown": {"windowSeconds": 1}}
    lease = {"lease_namespace": home, "lease_name": "rrq-operator"}
    async with FakeNode(plane.kubeconfig) as node, PodWorkers(store) as workers:
        node.behave(PodBehaviour(runs_for_seconds=1), {"rrq.dev/pool": "nightly"})
        with RunningOperator(kubeconfig, shop if is_namespaced else "", tmp_path, **lease) as operator:
            desk.apply(build_pool(redis=redis, scaling=scaling))
            desk.apply(
                build_pool("nightly", type="Job", redis=redis, queues=["nightly"], job={"start": "Once"})
            )
            await eventually(lambda: desk.condition("QueueReachable")[0] == "True", 60)
            await client.enqueue_many([JobRequest("greet") for _ in range(20)])
            await eventually(lambda: len(ready_pods(desk)) == 2, 60)
            # Two idle pods are flagged, marked by their deletion cost, and go.
            await workers.start(ready_pods(desk))
            # Both take before one ends: meanwhile the other, idle still, could be told to leave.
            pods = ready_pods(desk)
            for uid in pods:
                assert await workers.take(uid, 10) == 10
            for uid in pods:
                await workers.finish(uid)
            await eventually(lambda: desk.replicas() == 0, 60)
            await eventually(lambda: desk.status("nightly").get("reason") == "Finished", 60)
            assert desk.get("poddisruptionbudget", "emails")
            of_pools = "--field-selector=involvedObject.kind=RRQWorkerPool"
            await eventually(lambda: desk.read_all("events", of_pools), message="no event of a pool")
            _, metrics = await operator.get("/metrics")
        errors = set(re.findall(r'rrq_operator_api_errors_total\{reason="([^"]*)"', metrics))
        # An API server that takes its time refuses nothing.
        assert errors <= {"Timeout", "Unreachable", "NotLeader"}
        assert "forbidden" not in operator.log.lower()
        assert plane.kubectl("get", "lease", "rrq-operator", "--namespace", home)


@pytest.mark.parametrize("is_namespaced", [False, True], ids=["all namespaces", "one namespace"])
async def test_the_operator_may_do_this_and_no_more(
    rights: Rights, helm: Helm, namespaces: Callable[[], str], is_namespaced: bool
) -> None:
    home, shop, other = namespaces(), namespaces(), namespaces()
    install(helm, home, watchNamespace=shop if is_namespaced else "")
    account = f"{home}:rrq-operator"
    await rights.are_in_force(account, shop, MAY)
    await rights.are_in_force(account, home, LEASE)
    assert await rights.granted(account, shop, (*MAY, *MUST_NOT)) == list(MAY)
    assert await rights.granted(account, other, MAY) == ([] if is_namespaced else list(MAY))
    assert await rights.granted(account, shop, ("create leases.coordination.k8s.io", *LEASE)) == []


async def test_workers_have_no_right_at_all(rights: Rights, helm: Helm, namespace: str) -> None:
    """Their pods run under the account that every namespace has, without its token."""
    install(helm, namespace)
    await rights.are_in_force(f"{namespace}:rrq-operator", namespace, MAY)
    assert await rights.granted(f"{namespace}:default", namespace, (*MAY, *MUST_NOT)) == []


async def test_people_who_may_edit_a_namespace_may_edit_its_pools(
    plane: ControlPlane, rights: Rights, helm: Helm, namespace: str
) -> None:
    install(helm, namespace)
    for who in ("view", "edit"):
        plane.kubectl(
            *("create", "rolebinding", who, "--namespace", namespace),
            *(f"--clusterrole={who}", f"--serviceaccount={namespace}:{who}"),
        )
    questions = [f"{verb} rrqworkerpools.rrq.dev" for verb in ("get", "list", "create", "patch", "delete")]

    async def count(who: str) -> int:
        return len(await rights.granted(f"{namespace}:{who}", namespace, questions))

    async def has_arrived() -> bool:
        return await count("view") == 2 and await count("edit") == 5

    # A controller of the cluster adds them to its own roles.
    await eventually(has_arrived, 60)


def ready_pods(desk: PoolDesk) -> list[str]:
    return [
        pod["metadata"]["uid"]
        for pod in desk.read_all("pods", "--selector=rrq.dev/pool=emails")
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    ]
