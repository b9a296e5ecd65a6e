"""The archive of all images: made once for a tree, found again without an engine, never half written."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

import image_bundle
from image_bundle import (
    ARCHIVE,
    RECIPES,
    SOURCES,
    ImageSize,
    build_bundle,
    bundle_folder,
)
from kubernetes_build import CACHE_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from docker_engine import DockerEngine
    from image_bundle import Bundle

BASE, OURS = b"b" * 3000, b"o" * 500


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of what the images are made of, free to change."""
    copy = tmp_path / "repository"
    for source in SOURCES:
        original = image_bundle.REPOSITORY / source
        (copy / source).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if original.is_dir() else shutil.copy)(original, copy / source)
    monkeypatch.setattr(image_bundle, "REPOSITORY", copy)
    return copy


def write_archive(path: Path, images: dict[str, list[str]], layers: dict[str, bytes]) -> None:
    manifest = [{"RepoTags": [tag], "Layers": names} for tag, names in images.items()]
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w") as archive:
        for name, content in {**layers, "manifest.json": json.dumps(manifest).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_an_unchanged_tree_needs_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    environment = {CACHE_VARIABLE: str(tmp_path)}
    images = {"rrq-worker:test": ["base", "ours"], "rrq-redis:test": ["base"]}
    write_archive(bundle_folder(environment) / ARCHIVE, images, {"base": BASE, "ours": OURS})
    bundle = build_bundle(environment)
    assert bundle.path == bundle_folder(environment) / ARCHIVE
    assert bundle.sizes == {"rrq-redis:test": ImageSize(3000, 0), "rrq-worker:test": ImageSize(3500, 500)}


@pytest.mark.parametrize(
    "source",
    [
        "Dockerfile.worker",
        "worker/rrq/broker/lua/claim_jobs.lua",
        "requirements/operator.lock",
        "tests/e2e/images/app/stories.py",
    ],
)
def test_a_change_in_what_an_image_is_made_of_makes_another_bundle(repository: Path, source: str) -> None:
    before = bundle_folder()
    with (repository / source).open("a") as file:
        file.write("\n")
    assert bundle_folder() != before


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_an_engine_reads_every_image_from_the_archive_and_they_share_their_base(
    bundle: Bundle, engine: DockerEngine
) -> None:
    assert sorted(bundle.sizes) == sorted(recipe.tag for recipe in RECIPES)
    base_bytes = {size.total_bytes - size.own_bytes for size in bundle.sizes.values()}
    assert len(base_bytes) == 1
    assert 0 < base_bytes.pop() < 200e6
    assert bundle.path.stat().st_size < 500e6
    loaded = engine.run("load", "--input", str(bundle.path))
    assert all(recipe.tag in loaded for recipe in RECIPES)
