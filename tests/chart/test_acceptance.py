"""A real API server accepts every object that the chart can render, in a namespace that asks for the strictest pods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from control_plane import KubectlFailed
from pool_definition import install_pool_definition
from rendering import HERE, KNOWS_POOLS, read_values, render_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from control_plane import ControlPlane
    from helm_client import Helm

MONITORING_GROUP = "monitoring.coreos.com"


@pytest.fixture
def known_pools(plane: ControlPlane) -> None:
    install_pool_definition(plane)


@pytest.mark.usefixtures("known_pools")
@pytest.mark.parametrize("name", ["everything", "evaluation", "one-namespace"])
def test_the_api_server_accepts_everything(
    plane: ControlPlane,
    offline: Helm,
    namespaces: Callable[[], str],
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    values, namespace = read_values(HERE / "values" / f"{name}.yaml"), namespaces()
    if "watchNamespace" in values:
        values["watchNamespace"] = namespaces()
    first = render_objects(offline, values=values, namespace=namespace)
    later = render_objects(offline, KNOWS_POOLS, values=values, namespace=namespace)
    objects = [*later, *(entry for entry in first if entry not in later)]
    if any(entry["apiVersion"].startswith(f"{MONITORING_GROUP}/") for entry in objects):
        request.getfixturevalue("monitoring_kinds")
    # Pods are admitted only where their account exists already.
    accounts = [entry for entry in objects if entry["kind"] == "ServiceAccount"]
    plane.kubectl("apply", "--filename=-", input=json.dumps(as_list(accounts)))
    rest = [entry for entry in objects if entry["kind"] != "ServiceAccount"]
    dry_run(plane, as_list(rest))
    for template in pod_templates(objects):
        dry_run(plane, build_pod(template, namespace))


def test_a_pod_with_too_many_rights_would_be_refused(
    plane: ControlPlane, offline: Helm, namespace: str
) -> None:
    """Else the test above would prove nothing."""
    objects = render_objects(offline, values={"serviceAccount": {"create": False}}, namespace=namespace)
    (template,) = pod_templates([entry for entry in objects if entry["kind"] == "Deployment"])
    del template["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(KubectlFailed, match="runAsNonRoot"):
        dry_run(plane, build_pod(template, namespace))
    with pytest.raises(KubectlFailed, match="runAsNonRoot"):
        dry_run(plane, as_list(objects))


def dry_run(plane: ControlPlane, manifest: dict[str, Any]) -> None:
    """Have the API server check it as if it were to be kept; unknown fields and warnings are errors too."""
    plane.kubectl(
        *(
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "--warnings-as-errors",
            "--filename=-",
        ),
        input=json.dumps(manifest),
    )


def as_list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in objects:
        if entry["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield entry["spec"]["template"]


def build_pod(template: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return a pod of the template: only pods are refused, their controllers are merely warned."""
    spec = {name: value for name, value in template["spec"].items() if name != "serviceAccountName"}
    metadata = template["metadata"] | {"name": "probe", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
