"""The archive of the chart, and the version that it has to have."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from chart_package import (
    CHART,
    ChartDiffers,
    chart_version,
    check_chart,
    find_helm,
    package_chart,
    read_archive,
)
from clone import list_files
from rrq.version import __version__

EPOCH = 1_700_000_000
PUBLISHED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["rrq"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.0.0", "1.0.0"),
        ("1.0.0.dev0", "1.0.0-dev.0"),
        ("1.2.0a1", "1.2.0-alpha.1"),
        ("1.2.0b2", "1.2.0-beta.2"),
        ("1.2.0rc10", "1.2.0-rc.10"),
    ],
)
def test_the_version_of_the_package_has_one_spelling_for_charts(version: str, expected: str) -> None:
    assert chart_version(version) == expected


@pytest.mark.parametrize(
    "version", ["1.0", "1.0.0.post1", "1.0.0+local", "1.0.0-rc1", "1.0.0rc1.dev2", "next"]
)
def test_a_version_that_charts_cannot_have_is_refused(version: str) -> None:
    with pytest.raises(ChartDiffers, match=r"1\.0\.0rc1"):
        chart_version(version)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "rrq"))


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_another_version_in_the_chart_is_found_and_named(copy: Path, field: str) -> None:
    file = copy / "Chart.yaml"
    described = yaml.safe_load(file.read_text())
    right = described[field]
    file.write_text(yaml.safe_dump({**described, field: "9.9.9"}))
    with pytest.raises(ChartDiffers) as refused:
        check_chart(copy)
    assert f"{field}: 9.9.9" in str(refused.value)
    assert f"Write {field}: {right} there" in str(refused.value)


def test_the_archive_has_every_file_of_the_chart_and_nothing_else(copy: Path, tmp_path: Path) -> None:
    (copy / "templates" / "old.yaml.orig").write_text("left by a merge")
    archive = package_chart(tmp_path, EPOCH, helm=None, folder=copy)
    assert archive.name == f"rrq-{chart_version(__version__)}.tgz"
    tracked = list_files(folder=CHART)
    packed = read_archive(archive)
    assert sorted(packed) == sorted(tracked)
    assert packed == {name: (CHART / name).read_bytes() for name in tracked}


def test_the_archive_has_the_same_bytes_when_it_is_made_again(tmp_path: Path) -> None:
    first, second = (package_chart(made, EPOCH, helm=None) for made in make_folders(tmp_path))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
@pytest.mark.cluster
def test_helm_takes_the_archive_and_packs_the_same_one(tmp_path: Path) -> None:
    helm = find_helm(os.environ)
    if helm is None:
        pytest.skip("helm is missing: run `make cluster-build` first, or install it")
    ours, with_helm = make_folders(tmp_path)
    archive = package_chart(ours, EPOCH, helm=None)
    assert package_chart(with_helm, EPOCH, helm=helm).read_bytes() == archive.read_bytes()
    shown = subprocess.run(
        [helm, "show", "chart", archive], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert yaml.safe_load(shown)["appVersion"] == __version__
    rendered = subprocess.run(
        [helm, "template", "rrq", archive, "--kube-version", "1.34"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert f'image: "{PUBLISHED["registry"]}/{PUBLISHED["owner"]}/rrq-operator:{__version__}"' in rendered


def make_folders(above: Path) -> tuple[Path, Path]:
    folders = above / "first", above / "second"
    for folder in folders:
        folder.mkdir()
    return folders
