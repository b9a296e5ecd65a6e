"""Owner and registry are named in pyproject.toml; chart and workflow publish and fetch the same names."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml

from doc_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REGISTRY, OWNER = PROJECT["tool"]["rrq"]["registry"], PROJECT["tool"]["rrq"]["owner"]
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text()


def read_chart(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "charts" / "rrq" / name).read_text())
    return read


def test_the_chart_runs_the_image_that_a_release_publishes() -> None:
    assert read_chart("values.yaml")["image"]["repository"] == f"{REGISTRY}/{OWNER}/rrq-operator"
    # The workflow pushes for the owner of the repository that it runs in, which may be a fork.
    assert f'"{REGISTRY}/${{OWNER,,}}/$IMAGE"' in WORKFLOW
    assert "[rrq-worker, rrq-operator]" in WORKFLOW


def test_every_address_of_the_project_is_that_of_its_owner() -> None:
    assert REPOSITORY.startswith(f"https://github.com/{OWNER}/")
    assert all(url.startswith(REPOSITORY) for url in PROJECT["project"]["urls"].values())
    chart = read_chart("Chart.yaml")
    assert (chart["home"], chart["sources"]) == (REPOSITORY, [REPOSITORY])
