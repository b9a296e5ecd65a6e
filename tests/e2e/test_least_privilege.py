"""Story 9: operator and workers can do what they need, and nothing else; in namespaces that ask for strict pods.

All other stories show that the rights of the chart suffice. Here is what must be refused, tried from inside the pods; what
the API server says of the accounts is in `tests/chart/test_rights.py`. Each list has its opposite, so that a check that is
broken fails too.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from control_plane import KubectlFailed
from diagnosis import OPERATOR_NAMESPACE
from operator_release import OperatorRelease
from pools import PoolDesk, build_pool
from rights import Call, attempt
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from control_plane import Cluster
    from object_reader import ObjectReader
    from story import Story


OK, CREATED, UNAUTHENTICATED, FORBIDDEN = 200, 201, 401, 403


@pytest.fixture
def operator(desk: PoolDesk) -> OperatorRelease:
    return OperatorRelease.of(desk)


@pytest.fixture
def other_namespace(cluster: Cluster) -> Iterator[str]:
    """One more, for what is none of the operator's business."""
    name = f"other-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


# The operator


async def test_the_operator_is_refused_from_inside_its_pod_too(
    operator: OperatorRelease, story: Story
) -> None:
    namespace = story.desk.namespace
    pod = (await operator.wait_for_leader())["metadata"]["name"]
    allowed = (
        Call("GET", f"/apis/rrq.dev/v1alpha1/namespaces/{namespace}/rrqworkerpools"),
        Call("GET", f"/api/v1/namespaces/{namespace}/secrets/rrq-redis"),
        Call("GET", f"/api/v1/namespaces/{namespace}/pods"),
    )
    assert attempt(operator.desk, pod, allowed) == dict.fromkeys(map(str, allowed), OK)
    made = Call("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments?dryRun=All", build_deployment())
    assert attempt(operator.desk, pod, [made]) == {str(made): CREATED}
    stranger = Call("GET", "/api/v1/pods", headers=(("Authorization", "Bearer no-such-token"),))
    assert attempt(operator.desk, pod, [stranger]) == {str(stranger): UNAUTHENTICATED}

    # None of them harms anything should it be let through: that it is said to be a trial changes nothing for RBAC.
    calls = build_refused_calls(namespace, operator_pod=pod)
    assert attempt(operator.desk, pod, calls) == dict.fromkeys(map(str, calls), FORBIDDEN)
    # The same calls by an administrator are not refused, so that it is the account they fail for and not their form.
    as_admin = (
        Call("GET", f"/api/v1/namespaces/{namespace}/secrets"),
        Call("GET", "/api/v1/nodes"),
    )
    for call in as_admin:
        assert call in calls
        assert json.loads(operator.desk.kubectl("get", "--raw", call.path))["items"]


async def test_the_operator_runs_as_a_strict_namespace_asks(
    cluster: Cluster, operator: OperatorRelease, install: Callable[..., None], namespace: str
) -> None:
    # A pod made now: the label of a namespace says nothing of those that were there before.
    install(podAnnotations={"story": namespace})
    pod = await operator.wait_for_leader()
    assert pod["metadata"]["annotations"]["story"] == namespace
    for where in (namespace, OPERATOR_NAMESPACE):
        with pytest.raises(KubectlFailed, match="violates PodSecurity"):
            cluster.kubectl(*RUN_AS_ROOT, "--namespace", where)
    status = operator.desk.kubectl("exec", pod["metadata"]["name"], "--", "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == ["65532"] * 4
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[kind], 16) == 0, kind
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    # It asks for the name of its user, which not every image knows.
    assert "kopf failed" not in operator.desk.kubectl("logs", pod["metadata"]["name"])
    with pytest.raises(KubectlFailed, match="Read-only file system"):
        operator.desk.kubectl("exec", pod["metadata"]["name"], "--", "python3", "-c", "open('/opt/x', 'w')")


# A worker


async def test_a_worker_has_no_token_and_no_privilege(story: Story, cluster: Cluster) -> None:
    namespace = story.desk.namespace
    story.apply_pool(worker={"drainSeconds": 1})
    here = f"/api/v1/namespaces/{namespace}"
    pools = f"/apis/rrq.dev/v1alpha1/namespaces/{namespace}/rrqworkerpools"
    # That the writes are said to be a trial changes nothing for those who decide, and let through they harm nobody.
    calls = (
        Call("GET", "/api/v1/pods"),
        Call("GET", f"{here}/secrets/rrq-redis"),
        Call("GET", "/apis/rrq.dev/v1alpha1/rrqworkerpools"),
        Call("POST", f"{here}/pods?dryRun=All", build_pod()),
        Call("DELETE", f"{here}/pods/redis-0?dryRun=All"),
        Call("PATCH", f"{here}/secrets/rrq-redis?dryRun=All", {"stringData": {"url": "redis://elsewhere"}}),
        Call("PATCH", f"{pools}/emails?dryRun=All", {"spec": {"scaling": {"maxReplicas": 3}}}),
        Call("DELETE", f"{pools}/emails?dryRun=All"),
    )
    me = await ask_worker(story, "what_am_i")
    statuses = {
        str(call): await ask_worker(story, "ask_cluster", call.path, call.method, call.body) for call in calls
    }
    expected = {
        "uid": 65532,
        "gid": 65532,
        "effective_capabilities": 0,
        "bounding_capabilities": 0,
        "no_new_privileges": True,
        "seccomp_filters": True,
        "read_only_root": True,
        "service_account_token": False,
    }
    assert {name: me[name] for name in expected} == expected
    # Somebody answered, and did not know who asks.
    assert all(status in (UNAUTHENTICATED, FORBIDDEN) for status in statuses.values()), statuses
    # It is for the caller that the pod was refused, and not for what is in it.
    trial = ("create", "--raw", f"{here}/pods?dryRun=All", "--filename=-")
    cluster.kubectl(*trial, input=json.dumps(build_pod()))


# The operator of one namespace


async def test_the_operator_of_one_namespace_has_no_rights_in_another(
    story: Story,
    cluster: Cluster,
    operator: OperatorRelease,
    install: Callable[..., None],
    other_namespace: str,
    object_reader: ObjectReader,
) -> None:
    install(watchNamespace=story.desk.namespace)
    other = PoolDesk(cluster, other_namespace, object_reader)
    other.apply(build_pool(queues=["emails"]))
    story.apply_pool()
    ids = await story.enqueue(4, seconds=0.2)
    await story.wait_until_finished(90)
    await story.wait_for_pods(0)
    (await story.read_ledger()).assert_each_once(ids)
    assert other.status() == {}, "nobody looks after the pool of the other namespace"
    assert other.read_all("deployment") == []

    pod = (await operator.wait_for_leader())["metadata"]["name"]
    pools = "/apis/rrq.dev/v1alpha1/namespaces/{}/rrqworkerpools"
    here, there = (Call("GET", pools.format(name)) for name in (story.desk.namespace, other_namespace))
    assert attempt(operator.desk, pod, [here, there]) == {str(here): OK, str(there): FORBIDDEN}

    # The one that was left alone is none that nobody would look after.
    install()
    await eventually(
        lambda: other.status() != {}, 60, "the pool was never looked after", interval_seconds=0.3
    )


async def ask_worker(story: Story, handler: str, *arguments: Any) -> Any:
    """Have a job done in the pool, and return its result."""
    job = await story.client.enqueue(handler, *arguments, _queue_name="emails")
    assert job is not None
    done = await story.client.wait_for_completion(job.id, timeout_seconds=90)
    assert done is not None
    assert done.last_error is None, done.last_error
    return done.result


RUN_AS_ROOT = ("run", "root", "--image=example.invalid/root", "--privileged", "--dry-run=server")


def build_deployment() -> dict[str, Any]:
    labels = {"app": "trial"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "trial", "image": "trial:1"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "trial"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def build_pod() -> dict[str, Any]:
    """One that a strict namespace takes from whoever may create pods."""
    container = {
        "name": "trial",
        "image": "trial:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    strict = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial"},
        "spec": {"securityContext": strict, "containers": [container]},
    }


def build_refused_calls(namespace: str, operator_pod: str) -> tuple[Call, ...]:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    admin_binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "trial"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "rrq-operator", "namespace": OPERATOR_NAMESPACE}],
    }
    as_admin = (("Impersonate-User", "admin"), ("Impersonate-Group", "system:masters"))
    here = f"/api/v1/namespaces/{namespace}"
    return (
        Call("GET", "/api/v1/secrets"),
        Call("GET", f"{here}/secrets"),
        Call("PATCH", f"{here}/secrets/rrq-redis?dryRun=All", {"stringData": {"url": "redis://elsewhere"}}),
        Call("DELETE", f"{here}/secrets/rrq-redis?dryRun=All"),
        Call("POST", f"{here}/pods?dryRun=All", build_pod()),
        Call("DELETE", f"{here}/pods/redis-0?dryRun=All"),
        Call("DELETE", f"{here}/pods?dryRun=All"),
        Call("POST", f"{here}/pods/redis-0/exec?command=id&stdout=true"),
        Call(
            "POST", f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{operator_pod}/exec?command=id&stdout=true"
        ),
        Call("DELETE", f"/apis/apps/v1/namespaces/{namespace}/statefulsets/redis?dryRun=All"),
        Call("DELETE", f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/rrq-operator?dryRun=All"),
        Call("PATCH", f"{rbac}/clusterroles/rrq-operator?dryRun=All", {"rules": everything}),
        Call("POST", f"{rbac}/clusterrolebindings?dryRun=All", admin_binding),
        Call("POST", f"{here}/serviceaccounts/default/token?dryRun=All", {"spec": {}}),
        Call("GET", "/api/v1/namespaces", headers=as_admin),
        Call("DELETE", f"/api/v1/namespaces/{namespace}?dryRun=All"),
        Call("GET", "/api/v1/nodes"),
        Call("DELETE", f"{here}/persistentvolumeclaims?dryRun=All"),
    )
