"""`make release`: what it makes can be installed, traced and made again; what must not be released is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import audit
import provenance
import release
from chart_package import chart_version
from clone import list_files, require_clone
from release import DISTRIBUTION, CannotRelease, Tree, build_distributions, refuse_unfit, refuse_wrong_tag
from rrq.version import __version__

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
STEM = DISTRIBUTION.replace("-", "_")  # as files of the package spell it
# One process makes the files, once.
pytestmark = pytest.mark.xdist_group("release")
CLEAN = Tree("a" * 40, EPOCH, ())
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-18\n\n- Something.\n"


def test_a_clean_tree_with_its_section_in_the_changelog_may_be_released() -> None:
    refuse_unfit(CLEAN, CHANGELOG, "1.2.0")


def test_a_changed_tree_is_refused_and_the_change_is_named() -> None:
    with pytest.raises(CannotRelease) as refused:
        refuse_unfit(Tree("a" * 40, EPOCH, [" M worker/rrq/client.py"]), CHANGELOG, "1.2.0")
    assert "worker/rrq/client.py" in str(refused.value)
    assert "--snapshot" in str(refused.value)


@pytest.mark.parametrize("version", ["1.2.0rc1", "1.2", "1.20.0", "2.0.0"])
def test_a_version_without_its_section_in_the_changelog_is_refused(version: str) -> None:
    with pytest.raises(CannotRelease, match=re.escape(f"no section for version {version} ")):
        refuse_unfit(CLEAN, CHANGELOG, version)


def test_a_tag_of_another_version_is_refused() -> None:
    refuse_wrong_tag("v1.2.0", "1.2.0")
    refuse_wrong_tag(None, "1.2.0")
    with pytest.raises(CannotRelease, match=r"tag is v1\.2\.1, but .* is 1\.2\.0"):
        refuse_wrong_tag("v1.2.1", "1.2.0")


def test_the_command_says_why_it_refuses_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "dist"
    assert release.main(["--tag", "v0.0.1", "--folder", str(made)]) == 1
    assert "no release. The tag is v0.0.1" in capsys.readouterr().err
    assert not made.exists()


def test_wheel_and_sdist_have_metadata_that_the_upload_knows(tmp_path: Path) -> None:
    wheel, sdist = sorted(build_distributions(ROOT, tmp_path, EPOCH), key=lambda file: file.suffix != ".whl")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as source:
        packed = source.extractfile(f"{STEM}-{__version__}/PKG-INFO")
        assert packed is not None
        for metadata in (archive.read(f"{STEM}-{__version__}.dist-info/METADATA"), packed.read()):
            assert metadata.startswith(b"Metadata-Version: 2.4\n")


def test_the_builder_is_the_one_that_the_environment_names() -> None:
    moment = datetime(2026, 11, 18, 6, 30, tzinfo=UTC)
    build = provenance.Build("1.2.0", "a" * 40, False, moment, moment)
    named = {"RRQ_BUILDER_ID": "https://example.org/ci", "RRQ_SOURCE_URI": "git+https://example.org/rrq"}
    predicate = provenance.build_statement([], build, named)["predicate"]
    assert predicate["runDetails"]["builder"] == {"id": "https://example.org/ci"}
    source = {"uri": "git+https://example.org/rrq", "digest": {"gitCommit": "a" * 40}}
    assert predicate["buildDefinition"]["resolvedDependencies"] == [source]
    unnamed = provenance.build_statement([], build, {})["predicate"]
    assert unnamed["runDetails"]["builder"] == {"id": provenance.UNKNOWN_BUILDER}


FAULT = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"]}


@pytest.mark.parametrize(
    ("answer", "problems", "code"),
    [
        ({"vulns": []}, [], audit.CLEAN),
        ({"vulns": [FAULT]}, [], audit.FOUND),
        ({"vulns": [FAULT]}, ["no route to host"], audit.FOUND),
        ({"skip_reason": "thing is not known"}, [], audit.UNKNOWN),
        ({"vulns": []}, ["no route to host"], audit.UNKNOWN),
    ],
)
def test_an_audit_calls_clean_only_what_the_service_knows(
    answer: dict[str, Any], problems: list[str], code: int
) -> None:
    lines, found = audit.report([{"name": "thing", "version": "2.0", **answer}], problems)
    assert found == code
    told = "\n".join(lines)
    assert ("VULNERABLE thing 2.0: PYSEC-1, CVE-1; fixed in 2.1" in told) == (code == audit.FOUND)
    assert all(problem in told for problem in problems)


@pytest.fixture(scope="module")
def tree() -> Tree:
    require_clone()
    return release.read_tree(ROOT)


@pytest.fixture(scope="module")
def made(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of this tree, without images, beside what an earlier release and others left."""
    folder = tmp_path_factory.mktemp("dist")
    for left in ("rrq-0.9.0-py3-none-any.whl", "soak.md", "rrq-worker.cdx.json"):
        (folder / left).touch()
    arguments = f"ARGS=--snapshot --without-images --folder {folder}"
    quiet = {**os.environ, "MAKEFLAGS": ""}
    done = subprocess.run(
        ["make", "release", arguments], cwd=ROOT, env=quiet, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.cluster
@pytest.mark.slow
def test_a_release_has_all_its_parts_and_leaves_what_others_wrote(made: Path) -> None:
    names = {file.name for file in made.iterdir()} - {"soak.md", "rrq-worker.cdx.json"}
    wheel, sdist = f"{STEM}-{__version__}-py3-none-any.whl", f"{STEM}-{__version__}.tar.gz"
    documents = {f"{DISTRIBUTION}-{__version__}{kind}.json" for kind in (".cdx", ".intoto")}
    assert names == {wheel, sdist, f"rrq-{chart_version(__version__)}.tgz", "SHA256SUMS"} | documents
    assert "soak.md" not in (made / "SHA256SUMS").read_text()


@pytest.mark.cluster
@pytest.mark.slow
def test_the_inventory_names_the_wheel_and_what_it_brings_with_every_extra(made: Path) -> None:
    (wheel,), (file,) = made.glob("*.whl"), made.glob("*-[0-9]*.cdx.json")
    inventory = json.loads(file.read_text())
    product = inventory["metadata"]["component"]
    assert (product["name"], product["version"]) == (DISTRIBUTION, __version__)
    assert product["hashes"] == [{"alg": "SHA-256", "content": provenance.file_digest(wheel)}]
    named = {component["name"] for component in inventory["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    direct = {canonicalize_name(Requirement(text).name) for group in groups for text in group}
    assert direct - {DISTRIBUTION} <= named
    assert not {"pytest", "mypy", "ruff"} & named


@pytest.mark.cluster
@pytest.mark.slow
def test_provenance_and_checksums_are_those_of_the_files(made: Path, tree: Tree) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, check=True, capture_output=True
    )
    summed = {line.split("  ")[1] for line in (made / "SHA256SUMS").read_text().splitlines()}
    assert summed | {"SHA256SUMS", "soak.md", "rrq-worker.cdx.json"} == {file.name for file in made.iterdir()}

    (file,) = made.glob("*.intoto.json")
    statement = json.loads(file.read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert subjects == {name: provenance.file_digest(made / name) for name in summed - {file.name}}
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": tree.revision}
    assert definition["externalParameters"]["snapshot"] is True


@pytest.mark.cluster
@pytest.mark.slow
def test_everything_in_the_two_packages_is_in_the_wheel(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = list_files("worker/rrq", "operator/rrq_operator")
    assert packed == {name.partition("/")[2] for name in tracked if (ROOT / name).exists()}


@pytest.mark.cluster
@pytest.mark.slow
def test_the_sdist_is_enough_to_build_the_same_wheel(made: Path, tree: Tree, tmp_path: Path) -> None:
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or tree.committed_at)
    (tmp_path / "out").mkdir()
    again = build_distributions(tmp_path / f"{STEM}-{__version__}", tmp_path / "out", epoch)
    assert provenance.file_digest(wheel) in [provenance.file_digest(file) for file in again]
