"""An earlier chart, taken from git: what an upgrade starts from while there is no release."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

from diagnosis import OPERATOR_NAMESPACE
from helm_client import CHART, HelmFailed
from rendering import KUBE_VERSION, parse_objects

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helm_client import Helm

ROOT = CHART.parents[1]
PLACE = str(CHART.relative_to(ROOT))
# The number of a version alone makes no other release.
NUMBERS = ("app.kubernetes.io/version", "helm.sh/chart")


def extract_earlier_chart(
    folder: Path, helm: Helm, values: Mapping[str, Any]
) -> tuple[Path, str, list[str]] | None:
    """Write the newest chart below `folder` that makes other objects of these values than the present one.

    Returns it with the commit that it is of and what an upgrade has to change; None where history has no such chart,
    as in a shallow clone.
    """
    present = render(helm, CHART, values)
    for commit in git("rev-list", "HEAD", "--", PLACE).decode().split():
        if not git("ls-tree", "--name-only", commit, f"{PLACE}/templates/"):
            continue
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "--", PLACE))) as archive:
            archive.extractall(folder / commit, filter="data")
        chart = folder / commit / PLACE
        try:
            earlier = render(helm, chart, values)
        except HelmFailed:  # it did not know these values yet
            continue
        changed = [name for name in sorted(present | earlier) if present.get(name) != earlier.get(name)]
        if changed:
            return chart, commit, changed
    return None


def render(helm: Helm, chart: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The objects of a release by kind and name; without its hooks, which an upgrade does not bring in step."""
    arguments = ("template", "rrq", str(chart), KUBE_VERSION, "--namespace", OPERATOR_NAMESPACE)
    return {
        f"{entry['kind']} {entry['metadata']['name']}": without_numbers(entry)
        for entry in parse_objects(helm.run(*arguments, values=values))
        if "helm.sh/hook" not in entry["metadata"].get("annotations", {})
    }


def without_numbers(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: without_numbers(inner) for name, inner in part.items() if name not in NUMBERS}
    if isinstance(part, list):
        return [without_numbers(inner) for inner in part]
    return part


def git(*arguments: str) -> bytes:
    """Run git here; a copy of the project that is no clone has no history, which is an empty answer."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True)
    return done.stdout if done.returncode == 0 else b""
