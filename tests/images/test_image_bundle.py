"""The archive of all images: made once for a tree, found again without an engine, never half written."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

import image_bundle
from docker_engine import NoDockerEngine
from image_bundle import (
    ARCHIVE,
    KEPT_BUNDLES,
    RECIPES,
    SOURCES,
    ImageSize,
    build_bundle,
    build_table,
    bundle_folder,
    remove_old_bundles,
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


def test_a_machine_that_cannot_build_them_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoDockerEngine, match="No Docker engine answers"):
        build_bundle({CACHE_VARIABLE: str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    [
        "Dockerfile.worker",
        "worker/rrq/lua/claim_jobs.lua",
        "requirements/operator.lock",
        "tests/e2e/images/app/stories.py",
    ],
)
def test_a_change_in_what_an_image_is_made_of_makes_another_bundle(repository: Path, source: str) -> None:
    before = bundle_folder()
    with (repository / source).open("a") as file:
        file.write("\n")
    assert bundle_folder() != before


def test_a_file_that_was_renamed_makes_another_bundle(repository: Path) -> None:
    before = bundle_folder()
    (repository / "worker/rrq/job.py").rename(repository / "worker/rrq/work.py")
    assert bundle_folder() != before


def test_bytecode_beside_the_sources_changes_nothing(repository: Path) -> None:
    before = bundle_folder()
    (repository / "worker/rrq/__pycache__").mkdir(exist_ok=True)
    (repository / "worker/rrq/__pycache__/new.pyc").write_bytes(b"bytecode")
    assert bundle_folder() == before


def test_another_base_makes_another_bundle() -> None:
    assert bundle_folder({"HOME": "/", "RRQ_IMAGE_BASE": "python:3.12-slim"}).name != bundle_folder().name


def test_bundles_that_nobody_used_for_longest_are_removed(tmp_path: Path) -> None:
    folders = [tmp_path / f"images-{number}" for number in range(KEPT_BUNDLES + 2)]
    for used_at, folder in enumerate(folders):
        folder.mkdir()
        os.utime(folder, (used_at, used_at))
    other = tmp_path / "kubernetes"
    other.mkdir()
    remove_old_bundles(folders[0])
    assert sorted(tmp_path.iterdir()) == sorted([folders[0], *folders[2:], other])


def test_the_table_says_how_big_an_image_is_and_what_is_ours() -> None:
    lines = build_table({"rrq-worker:test": ImageSize(183_000_000, 54_000_000)}).splitlines()
    assert [line.split() for line in lines[1:]] == [["rrq-worker:test", "183", "54"]]


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_the_archive_has_every_image_and_they_share_their_base(bundle: Bundle) -> None:
    assert sorted(bundle.sizes) == sorted(recipe.tag for recipe in RECIPES)
    base_bytes = {size.total_bytes - size.own_bytes for size in bundle.sizes.values()}
    assert len(base_bytes) == 1
    assert 0 < base_bytes.pop() < 200e6
    assert bundle.path.stat().st_size < 500e6


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_an_engine_can_read_the_archive(bundle: Bundle, engine: DockerEngine) -> None:
    loaded = engine.run("load", "--input", str(bundle.path))
    assert all(recipe.tag in loaded for recipe in RECIPES)
