"""The images among the files of a release: labelled with version and revision, saved, and with their inventories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_bundle import read_sizes
from release import DISTRIBUTION, IMAGES, Tree, build_images
from rrq.version import __version__
from sbom import has_syft

if TYPE_CHECKING:
    from pathlib import Path

    from docker_engine import DockerEngine

REVISION = "a" * 40


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_the_images_of_a_release_are_labelled_saved_and_listed(engine: DockerEngine, tmp_path: Path) -> None:
    tags = [f"{name}:{__version__}" for name in IMAGES]
    try:
        files = list(build_images(tmp_path, engine, Tree(REVISION, 0, ())))
        described = [json.loads(engine.run("image", "inspect", tag))[0]["Config"]["Labels"] for tag in tags]
    finally:
        engine.run("rmi", "--force", *tags)
    kinds = ("tar", "cdx.json") if has_syft() else ("tar",)
    assert {file.name for file in files} == {
        f"{name}-{__version__}.image.{kind}" for name in IMAGES for kind in kinds
    }
    for labels in described:
        assert labels["org.opencontainers.image.version"] == __version__
        assert labels["org.opencontainers.image.revision"] == REVISION
    for name, tag in zip(IMAGES, tags, strict=True):
        assert list(read_sizes(tmp_path / f"{name}-{__version__}.image.tar")) == [tag]
        if has_syft():
            inventory = json.loads((tmp_path / f"{name}-{__version__}.image.cdx.json").read_text())
            assert inventory["metadata"]["component"]["version"] == __version__
            # Ours, one from the index and one of the system.
            assert {"redis", DISTRIBUTION, "libc6"} <= {
                component["name"] for component in inventory["components"]
            }
