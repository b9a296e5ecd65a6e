"""Make RRQWorkerPool known to a cluster, as `kubectl apply -f crds/` does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rrq_operator.crd import CRD_NAME

if TYPE_CHECKING:
    from control_plane import Cluster

ESTABLISH_SECONDS = 30.0
CRD_FILE = Path(__file__).parents[2] / "crds" / f"{CRD_NAME}.yaml"


def install_pool_definition(cluster: Cluster) -> None:
    """Apply the committed file and return when pools can be created; harmless when it is there already."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRD_FILE))
    # Not with `kubectl wait`, which stumbles over a definition that has no condition at all yet.
    deadline = time.monotonic() + ESTABLISH_SECONDS
    while not _is_established(cluster):
        if time.monotonic() > deadline:
            raise AssertionError(f"{CRD_NAME} is not served: {read_trouble(cluster)}")
        time.sleep(0.05)


def _is_established(cluster: Cluster) -> bool:
    definition = json.loads(cluster.kubectl("get", "crd", CRD_NAME, "--output=json"))
    conditions = definition.get("status", {}).get("conditions") or ()
    return any((entry["type"], entry["status"]) == ("Established", "True") for entry in conditions)


def read_trouble(cluster: Cluster) -> list[str]:
    """Return what the API server finds wrong with the schema of the definition it was given."""
    definition = json.loads(cluster.kubectl("get", "crd", CRD_NAME, "--output=json"))
    return [
        condition["message"]
        for condition in definition["status"]["conditions"]
        if condition["type"] in ("NonStructuralSchema", "KubernetesAPIApprovalPolicyConformant")
        or condition["status"] != "True"
    ]
