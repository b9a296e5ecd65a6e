"""Objects of a cluster as `kubectl get --output=json` shows them, without starting kubectl.

Tests look again and again until something is true, and a kubectl costs a tenth of a second of processor time
per look: tests that run side by side would mostly wait for the looks of each other.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kubernetes.config import new_client_from_config

from rrq_operator.api.spec import API_VERSION, PLURAL

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

READ_TIMEOUT_SECONDS = 60.0
# The kinds that tests ask for, and where the API server keeps them.
RESOURCES = {
    "deployment": ("apis/apps/v1", "deployments"),
    "events": ("api/v1", "events"),
    "jobs": ("apis/batch/v1", "jobs"),
    "lease": ("apis/coordination.k8s.io/v1", "leases"),
    "pdb": ("apis/policy/v1", "poddisruptionbudgets"),
    "pod": ("api/v1", "pods"),
    "pods": ("api/v1", "pods"),
    "resourcequota": ("api/v1", "resourcequotas"),
    "rrqpool": (f"apis/{API_VERSION}", PLURAL),
}


class ReadFailed(Exception):
    """The API server refused; the message is what it said."""


class ObjectReader:
    """One connection to the API server, kept for the whole run."""

    def __init__(self, kubeconfig: Path) -> None:
        # What the client lacks is types.
        self._client: Any = new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        """Return an object, or an empty one when there is none."""
        return self._read(f"{_collection(namespace, kind)}/{name}") or {}

    def read_all(self, namespace: str, kind: str) -> list[dict[str, Any]]:
        found = self._read(_collection(namespace, kind))
        assert found is not None, f"the API server does not know {kind}"
        items: list[dict[str, Any]] = found["items"]
        return items

    def _read(self, path: str) -> dict[str, Any] | None:
        request = self._client.param_serialize(
            method="GET",
            resource_path=path,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],  # a certificate, if there is one instead, is shown anyway
        )
        answer = self._client.call_api(*request, _request_timeout=READ_TIMEOUT_SECONDS)
        content = answer.read()
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise ReadFailed(f"GET {path} was answered with {answer.status}: {content!r}")
        found: dict[str, Any] = json.loads(content)
        return found


def _collection(namespace: str, kind: str) -> str:
    group, plural = RESOURCES[kind]
    return f"/{group}/namespaces/{namespace}/{plural}"
