"""The control plane and the fake node themselves: what the other tests of this folder stand on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from control_plane import Cluster, ControlPlane, KubectlFailed
from fake_node import FakeNode, PodBehaviour
from waiting import eventually

if TYPE_CHECKING:
    from cluster_part import Part


def build_deployment(name: str, replicas: int) -> str:
    labels = {"app": name}
    container = {"name": "worker", "image": "registry.invalid/worker:1"}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
    )


def build_job(name: str) -> str:
    container = {"name": "worker", "image": "registry.invalid/worker:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"backoffLimit": 0, "template": template}
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


def read(cluster: Cluster, namespace: str, *what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        cluster.kubectl("--namespace", namespace, "get", *what, "--output=json")
    )
    return found


async def ready_pods(cluster: Cluster, namespace: str, name: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many replicas are ready, and return the pods."""

    def all_ready() -> bool:
        ready: int = read(cluster, namespace, "deployment", name)["status"].get("readyReplicas", 0)
        return ready == count

    await eventually(all_ready, 30, f"{name} never had {count} ready replicas", interval_seconds=0.2)
    pods: list[dict[str, Any]] = read(cluster, namespace, "pods")["items"]
    return pods


def test_objects_can_be_created_read_changed_and_deleted(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl(
        "--namespace", namespace, "create", "configmap", "colours", "--from-literal=sky=blue"
    )
    patch = json.dumps({"data": {"sky": "grey"}})
    control_plane.kubectl("--namespace", namespace, "patch", "configmap", "colours", "--patch", patch)
    assert read(control_plane, namespace, "configmap", "colours")["data"] == {"sky": "grey"}
    control_plane.kubectl("--namespace", namespace, "delete", "configmap", "colours")
    with pytest.raises(KubectlFailed, match="NotFound"):
        read(control_plane, namespace, "configmap", "colours")


def test_a_service_account_may_do_what_its_role_allows_and_no_more(
    control_plane: Cluster, namespace: str
) -> None:
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("only for a control plane of our own")
    run = control_plane.kubectl
    run("--namespace", namespace, "create", "role", "reader", "--verb=get,list", "--resource=pods")
    subject = f"--serviceaccount={namespace}:default"
    run("--namespace", namespace, "create", "rolebinding", "reader", "--role=reader", subject)
    token = run("--namespace", namespace, "create", "token", "default").strip()
    restricted = Cluster(
        control_plane.make_kubeconfig(f"{namespace}-default", token=token), control_plane.kubectl_program
    )
    assert read(restricted, namespace, "pods")["items"] == []
    with pytest.raises(KubectlFailed, match="Forbidden"):
        restricted.kubectl("--namespace", namespace, "get", "secrets")


async def test_what_was_stored_outlives_a_stopped_api_server(
    control_plane: Cluster, api_server: Part, namespace: str
) -> None:
    control_plane.kubectl("--namespace", namespace, "create", "configmap", "kept")
    api_server.stop()
    with pytest.raises(KubectlFailed, match="refused"):
        read(control_plane, namespace, "configmap", "kept")
    api_server.start()
    assert read(control_plane, namespace, "configmap", "kept")["metadata"]["name"] == "kept"


async def test_a_paused_api_server_answers_nothing_until_it_is_resumed(
    control_plane: Cluster, api_server: Part, namespace: str
) -> None:
    api_server.pause()
    with pytest.raises(KubectlFailed, match=r"(?i)timeout|deadline"):
        control_plane.kubectl("--namespace", namespace, "get", "pods", "--request-timeout=1s")
    api_server.resume()
    assert read(control_plane, namespace, "pods")["items"] == []


async def test_a_deployment_becomes_ready_on_the_fake_node_and_shrinks_again(
    control_plane: Cluster, fake_node: FakeNode, namespace: str
) -> None:
    control_plane.kubectl(
        "--namespace", namespace, "apply", "--filename=-", input=build_deployment("shop", 3)
    )
    pods = await ready_pods(control_plane, namespace, "shop", 3)
    assert {pod["spec"]["nodeName"] for pod in pods} == {fake_node.name}
    assert all(pod["status"]["startTime"] for pod in pods)
    assert len({pod["status"]["containerStatuses"][0]["containerID"] for pod in pods}) == 3

    control_plane.kubectl("--namespace", namespace, "scale", "deployment/shop", "--replicas=1")
    await eventually(
        lambda: len(read(control_plane, namespace, "pods")["items"]) == 1, 30, interval_seconds=0.2
    )


async def test_a_restarted_container_is_reported_with_its_end(
    control_plane: Cluster, fake_node: FakeNode, namespace: str
) -> None:
    control_plane.kubectl(
        "--namespace", namespace, "apply", "--filename=-", input=build_deployment("shop", 1)
    )
    (before,) = await ready_pods(control_plane, namespace, "shop", 1)
    await fake_node.restart(namespace, before["metadata"]["name"], exit_code=137, reason="OOMKilled")
    after = read(control_plane, namespace, "pod", before["metadata"]["name"])
    (was,), (is_now,) = before["status"]["containerStatuses"], after["status"]["containerStatuses"]
    ended = is_now["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    assert ended["containerID"] == was["containerID"] != is_now["containerID"]
    assert is_now["restartCount"] == 1


async def test_a_job_ends_as_its_pod_was_told_to(
    control_plane: Cluster, fake_node: FakeNode, namespace: str
) -> None:
    fake_node.behave(PodBehaviour(runs_for_seconds=0.1, exit_code=3), {"job-name": "doomed"})
    fake_node.behave(PodBehaviour(runs_for_seconds=0.1), {"job-name": "fine"})
    for name in ("doomed", "fine"):
        control_plane.kubectl("--namespace", namespace, "apply", "--filename=-", input=build_job(name))

    def outcomes() -> dict[str, list[str]]:
        jobs = read(control_plane, namespace, "jobs")["items"]
        return {
            job["metadata"]["name"]: [entry["type"] for entry in job["status"].get("conditions", [])]
            for job in jobs
        }

    def both_ended() -> bool:
        seen = outcomes()
        assert "Failed" in seen["doomed"], seen
        assert "Complete" in seen["fine"], seen
        return True

    await eventually(both_ended, 30, interval_seconds=0.2)


async def test_pods_that_cannot_pull_their_image_never_become_ready(
    control_plane: Cluster, fake_node: FakeNode, namespace: str
) -> None:
    fake_node.behave(PodBehaviour(waiting_reason="ImagePullBackOff"))
    control_plane.kubectl(
        "--namespace", namespace, "apply", "--filename=-", input=build_deployment("shop", 1)
    )

    def reasons() -> list[str]:
        pods = read(control_plane, namespace, "pods")["items"]
        statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", [])]
        return [status["state"]["waiting"]["reason"] for status in statuses]

    assert await eventually(reasons, 30, interval_seconds=0.2) == ["ImagePullBackOff"]
    assert read(control_plane, namespace, "deployment", "shop")["status"].get("readyReplicas", 0) == 0
