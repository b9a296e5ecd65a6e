"""pyproject.toml names owner and registry; chart and workflow use the same names."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REGISTRY, OWNER = PROJECT["tool"]["rrq"]["registry"], PROJECT["tool"]["rrq"]["owner"]
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text()
RELEASE: dict[str, Any] = yaml.safe_load(WORKFLOW)


def read_chart(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "charts" / "rrq" / name).read_text())
    return read


def test_the_chart_runs_the_image_that_a_release_publishes() -> None:
    assert read_chart("values.yaml")["image"]["repository"] == f"{REGISTRY}/{OWNER}/rrq-operator"
    assert RELEASE["env"]["REGISTRY"] == REGISTRY
    assert WORKFLOW.count(REGISTRY) == 1
    assert '"$REGISTRY/${OWNER,,}/$IMAGE"' in WORKFLOW
    assert "[rrq-worker, rrq-operator]" in WORKFLOW


@pytest.mark.parametrize(("owner", "code"), [(OWNER, 0), (OWNER.upper(), 0), ("acme", 1)])
def test_a_repository_of_another_owner_releases_nothing(owner: str, code: int) -> None:
    first = next(step["run"] for step in RELEASE["jobs"]["build"]["steps"] if "run" in step)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", first],
        cwd=ROOT, env={"PATH": path, "GITHUB_REPOSITORY_OWNER": owner}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (f"tool.rrq.owner = {OWNER}" in done.stderr) == (code == 1)


def test_every_address_of_the_project_names_its_owner() -> None:
    assert REPOSITORY.startswith(f"https://github.com/{OWNER}/")
    assert all(url.startswith(REPOSITORY) for url in PROJECT["project"]["urls"].values())
    chart = read_chart("Chart.yaml")
    assert (chart["home"], chart["sources"]) == (REPOSITORY, [REPOSITORY])
