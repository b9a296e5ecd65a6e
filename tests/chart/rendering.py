"""What the chart makes of a set of values, without a cluster. The sets are files in tests/chart/values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from helm_client import CHART

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helm_client import Helm

HERE = Path(__file__).parent
VALUE_SETS = sorted((HERE / "values").glob("*.yaml"))
# A Helm that was built without being told takes 1.20, which the chart refuses.
KUBE_VERSION = "--kube-version=1.34.0"
KNOWS_POOLS = "--api-versions=rrq.dev/v1alpha1"


def render(
    helm: Helm, *arguments: str, values: Mapping[str, Any] | None = None, namespace: str = "rrq"
) -> str:
    """Return what `helm template` prints for the release `rrq`."""
    return _render(helm, *arguments, "--namespace", namespace, values=json.dumps(values or {}))


# Several tests look at the same release, and each rendering is a process that takes a third of a second.
@cache
def _render(helm: Helm, *arguments: str, values: str) -> str:
    return helm.run("template", "rrq", str(CHART), KUBE_VERSION, *arguments, values=json.loads(values))


def render_objects(
    helm: Helm, *arguments: str, values: Mapping[str, Any] | None = None, namespace: str = "rrq"
) -> list[dict[str, Any]]:
    return parse_objects(render(helm, *arguments, values=values, namespace=namespace))


def parse_objects(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the one object of that kind and name."""
    (found,) = (entry for entry in objects if (entry["kind"], entry["metadata"]["name"]) == (kind, name))
    return found


def read_values(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text()) or {}
    return values
