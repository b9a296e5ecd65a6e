"""Make RRQWorkerPool known to a cluster, as `kubectl apply -f crds/` does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from control_plane import KubectlFailed
from rrq_operator.api.crd import CRD_NAME

if TYPE_CHECKING:
    from control_plane import Cluster

SERVE_SECONDS = 60.0
CRD_FILE = Path(__file__).parents[2] / "crds" / f"{CRD_NAME}.yaml"


def install_pool_definition(cluster: Cluster) -> None:
    """Apply the committed file and return when pools can be created; harmless when it is there already."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRD_FILE))
    wait_until_served(cluster)


def remove_pool_definition(cluster: Cluster) -> None:
    """Delete it with all pools, and return when nobody is told of them any more; harmless when there is none."""
    cluster.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")
    wait_until_served(cluster, is_wanted=False)


def wait_until_served(cluster: Cluster, definition: str = CRD_NAME, *, is_wanted: bool = True) -> None:
    """Wait until kubectl and Helm find a kind among what the API server has, or no longer do.

    That comes a moment after its definition, and after the condition Established; and goes a moment after it.
    """
    group = definition.partition(".")[2]
    deadline = time.monotonic() + SERVE_SECONDS
    while True:
        try:
            found = cluster.kubectl("api-resources", f"--api-group={group}", "--output=name")
            if (definition in found.split()) == is_wanted:
                return
        except KubectlFailed as error:  # in between the list is not whole
            found = str(error)
        if time.monotonic() > deadline:
            why = (
                f"not served: {read_trouble(cluster, definition)}" if is_wanted else f"still served: {found}"
            )
            raise AssertionError(f"{definition} is {why}")
        time.sleep(0.05)


def read_trouble(cluster: Cluster, name: str = CRD_NAME) -> list[str]:
    """Return what the API server finds wrong with the schema of the definition it was given."""
    definition = json.loads(cluster.kubectl("get", "crd", name, "--output=json"))
    return [
        condition["message"]
        for condition in definition["status"]["conditions"]
        if condition["type"] in ("NonStructuralSchema", "KubernetesAPIApprovalPolicyConformant")
        or condition["status"] != "True"
    ]
