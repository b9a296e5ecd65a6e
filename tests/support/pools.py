"""Pools in the cluster of a test: making them, reading them, and what belongs to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from object_reader import RESOURCES
from rrq_operator.api.spec import API_VERSION, KIND

if TYPE_CHECKING:
    from control_plane import Cluster
    from object_reader import ObjectReader


def build_pool(name: str = "emails", **spec: Any) -> dict[str, Any]:
    """Return a manifest; `spec` replaces top-level fields of a small good one, None removes one."""
    usual = {
        "queues": ["default"],
        "redis": {"url": "redis://127.0.0.1:1/0"},
        "worker": {"image": "example.com/shop:1", "settings": "shop.jobs.settings", "concurrency": 10},
    }
    merged = {field: value for field, value in (usual | spec).items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": merged}


@dataclass(frozen=True)
class PoolDesk:
    """What a person with kubectl does and sees, in one namespace."""

    cluster: Cluster
    namespace: str
    reader: ObjectReader | None = None
    """Spares the start of a kubectl per look; without one, or for what it does not know, kubectl it is."""

    def kubectl(self, *arguments: str, input: str = "") -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, input=input)

    def command(self, *arguments: str) -> list[str]:
        """The same as a command line, for what goes on in the background."""
        return [str(self.cluster.kubectl_program), "--namespace", self.namespace, *arguments]

    def apply(self, *manifests: dict[str, Any]) -> None:
        for manifest in manifests:
            self.kubectl("apply", "--filename", "-", input=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object, or an empty one when there is none."""
        if self.reader is not None and kind in RESOURCES:
            return self.reader.get(self.namespace, kind, name)
        text = self.kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def read_all(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        if self.reader is not None and kind in RESOURCES and not arguments:
            return self.reader.read_all(self.namespace, kind)
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--output=json", *arguments))[
            "items"
        ]
        return items

    def status(self, name: str = "emails") -> dict[str, Any]:
        status: dict[str, Any] = self.get("rrqpool", name).get("status", {})
        return status

    def condition(self, kind: str, name: str = "emails") -> tuple[str, str, str]:
        """Return status, reason and message of a condition; empty when it is not there."""
        for entry in self.status(name).get("conditions", []):
            if entry["type"] == kind:
                return entry["status"], entry["reason"], entry["message"]
        return "", "", ""

    def replicas(self, name: str = "emails") -> int | None:
        """Return what the Deployment is asked for; None when there is no Deployment."""
        found = self.get("deployment", name)
        return found["spec"]["replicas"] if found else None

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.read_all("events") if event["reason"] == reason]

    def add_secret(self, name: str, **values: str) -> None:
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})
