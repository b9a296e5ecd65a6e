"""The inventory of an image names what is in it: no more, no less."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from docker_engine import LOCKED_DOWN
from image_bundle import OPERATOR, WORKER
from image_sbom import DPKG_STATUS, ENVIRONMENT, OS_RELEASE, Image, build_sbom

if TYPE_CHECKING:
    from pathlib import Path

    from docker_engine import DockerEngine
    from image_bundle import Bundle

SITE_PACKAGES = "opt/rrq/lib/python3.11/site-packages"


def build_files(metadata: str) -> dict[str, str]:
    return {
        OS_RELEASE: 'ID=debian\nVERSION_ID="12"\n',
        ENVIRONMENT: "home = /usr/bin\nversion = 3.11.2\n",
        DPKG_STATUS: (
            "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u10\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
        ),
        f"{SITE_PACKAGES}/Some_Thing-1.0.dist-info/METADATA": metadata,
        f"{SITE_PACKAGES}/Some_Thing-1.0.dist-info/RECORD": "some_thing.py,sha256=x,1\n",
    }


def list_components(files: dict[str, str]) -> dict[str, Any]:
    sbom = build_sbom(Image("rrq-worker", "sha256:1", {"org.opencontainers.image.version": "1.2"}, files))
    assert sbom["metadata"]["component"]["version"] == "1.2"
    return {component["purl"]: component for component in sbom["components"]}


def test_packages_of_the_system_are_those_that_are_installed() -> None:
    purls = list_components(build_files("Name: Some_Thing\nVersion: 1.0\n")).keys()
    assert purls == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/some-thing@1.0",
    }


def test_an_interpreter_that_no_package_brought_is_named() -> None:
    files = build_files("Name: a\nVersion: 1\n") | {ENVIRONMENT: "home = /usr/local/bin\nversion = 3.11.14\n"}
    assert "pkg:generic/python@3.11.14" in list_components(files)


@pytest.mark.parametrize(
    ("said", "licenses"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: ignored", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: BSD", [{"license": {"name": "BSD"}}]),
        ("Classifier: License :: OSI Approved :: MIT License", [{"license": {"name": "MIT License"}}]),
        ("License: The whole\n        text of it", []),
        ("Summary: says nothing", []),
    ],
)
def test_a_license_is_what_the_distribution_says(said: str, licenses: list[Any]) -> None:
    components = list_components(build_files(f"Name: a\nVersion: 1\n{said}\n"))
    assert components["pkg:pypi/a@1"]["licenses"] == licenses


def read_sbom(bundle: Bundle, tag: str) -> list[dict[str, Any]]:
    files: dict[str, Path] = {file.name: file for file in bundle.sboms}
    return json.loads(files[f"{tag.partition(':')[0]}.cdx.json"].read_text())["components"]  # type: ignore[no-any-return]  # JSON


@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tag", [WORKER, OPERATOR])
def test_the_inventory_lists_exactly_what_the_image_has(
    bundle: Bundle, engine: DockerEngine, tag: str
) -> None:
    code = """
import importlib.metadata, json, re, subprocess
asked = subprocess.run(["dpkg-query", "--show", "--showformat", "${Package} ${Version}\\n"], capture_output=True, text=True)
found = importlib.metadata.distributions()
print(json.dumps([
    sorted([re.sub("[-_.]+", "-", each.name).lower(), each.version] for each in found),
    sorted(line.split() for line in asked.stdout.splitlines()),
]))
"""
    options = ("run", "--rm", "--network", "none", *LOCKED_DOWN, "--entrypoint", "python3")
    python, debian = json.loads(engine.run(*options, tag, "-c", code))
    listed = read_sbom(bundle, tag)

    def of_kind(kind: str) -> list[list[str]]:
        chosen = [each for each in listed if each["purl"].startswith(f"pkg:{kind}/")]
        return sorted([each["name"], each["version"]] for each in chosen)

    assert of_kind("pypi") == python
    assert of_kind("deb") == debian
    assert [name for name, _ in python if name == "rrq"] == ["rrq"]
