"""All files of a release, made by one command into dist/: `make release`.

wheel and sdist, the chart, the images where a Docker engine answers, what is inside each of them (CycloneDX), where they
come from (SLSA provenance) and the checksums of all. The version is that of worker/rrq/version.py, and nowhere else.

To release: write the version there and in Chart.yaml (`make verify` names the lines), give CHANGELOG.md a section of that
version, commit, `make release`, and push the tag v<version>, on which .github/workflows/release.yml does the same and
publishes it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from chart_package import ChartDiffers, find_helm, package_chart, parse_version
from docker_engine import BASE_VARIABLE, DockerEngine, answers
from progress import CommandFailed
from provenance import CHECKSUMS, Build, build_checksums, build_statement, file_digest
from rrq.version import __version__
from sbom import NO_SYFT, has_syft, write_image_sbom, write_package_sbom

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).parents[1]
DISTRIBUTION: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["name"]
IMAGES = {"rrq-worker": "Dockerfile.worker", "rrq-operator": "Dockerfile.operator"}
LOCKS = tuple(f"requirements/{name}.lock" for name in ("build", "package", "worker", "operator", "dev"))
EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
SNAPSHOT = 'make release ARGS="--snapshot"'


# What an earlier release left; what others put into the folder is theirs.
MADE_HERE = (
    "rrq[-_]*.whl",
    "rrq[-_]*.tar.gz",
    "rrq-*.tgz",
    "rrq-*.image.*",
    f"{DISTRIBUTION}-[0-9]*.cdx.json",
    "rrq-*.intoto.json",
)


class CannotRelease(Exception):
    """Something is not as a release needs it; the message says what, and what to do."""


@dataclass(frozen=True)
class Tree:
    """What Git says of the folder that is released."""

    revision: str
    committed_at: int  # seconds since 1970
    changes: Sequence[str]  # as `git status --short` names them


def read_tree(repository: Path) -> Tree:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise CannotRelease(
                f"{repository} is no clone with a commit, so nobody could tell what is released."
            )
        return done.stdout

    revision, committed_at = git("log", "-1", "--format=%H %ct").split()
    return Tree(revision, int(committed_at), git("status", "--short").splitlines())


def refuse_wrong_tag(tag: str | None, version: str) -> None:
    if tag is not None and tag != f"v{version}":
        raise CannotRelease(
            f"The tag is {tag}, but worker/rrq/version.py is {version}. Tag the commit that has this version v{version}."
        )


def refuse_unfit(tree: Tree, changelog: str, version: str) -> None:
    """Raise `CannotRelease` for what a snapshot may be and a release may not."""
    if tree.changes:
        shown = "\n".join(f"  {line}" for line in tree.changes[:10])
        raise CannotRelease(
            f"The work tree has {len(tree.changes)} change(s) that no commit has:\n{shown}\n"
            f"Commit or remove them; for files to try out: {SNAPSHOT}"
        )
    if not re.search(rf"^## \[?{re.escape(version)}\]?(?: |$)", changelog, re.MULTILINE):
        raise CannotRelease(
            f"CHANGELOG.md has no section for version {version} of worker/rrq/version.py. "
            f"Give what is under [Unreleased] the heading ## [{version}] - DATE; for files to try out: {SNAPSHOT}"
        )


def empty(folder: Path) -> None:
    """Remove the files of an earlier release, so that the checksums name all that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*(file for pattern in MADE_HERE for file in folder.glob(pattern)), folder / CHECKSUMS]:
        file.unlink(missing_ok=True)


def build_distributions(repository: Path, folder: Path, epoch: int) -> list[Path]:
    """Return wheel and sdist, with the same bytes for the same tree and epoch."""
    before = set(folder.iterdir())
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--directory",
            str(folder),
            "-t",
            "wheel",
            "-t",
            "sdist",
        ],
        cwd=repository,
        env={**os.environ, EPOCH_VARIABLE: str(epoch)},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CannotRelease(f"The package cannot be built:\n{done.stdout}{done.stderr}")
    return sorted(file for file in folder.iterdir() if file not in before and file.name != ".gitignore")


def build_images(folder: Path, engine: DockerEngine, tree: Tree) -> Iterator[Path]:
    for name, dockerfile in IMAGES.items():
        tag = f"{name}:{__version__}"
        labels = [f"--build-arg=VERSION={__version__}", f"--build-arg=REVISION={tree.revision}"]
        engine.build(REPOSITORY, tag, (REPOSITORY / dockerfile).read_text(), *labels)
        archive = folder / f"{name}-{__version__}.image.tar"
        engine.run("save", "--output", str(archive), tag)
        yield archive
        if has_syft():
            inventory = folder / f"{name}-{__version__}.image.cdx.json"
            yield write_image_sbom(archive, name, __version__, inventory)


def write_json(file: Path, document: object) -> Path:
    file.write_text(json.dumps(document, indent=1) + "\n")
    return file


def make_release(folder: Path, tree: Tree, *, is_snapshot: bool, with_images: bool) -> list[Path]:
    """Write all files of a release and return them."""
    started_at = datetime.now(UTC)
    epoch = int(os.environ.get(EPOCH_VARIABLE) or tree.committed_at)
    empty(folder)
    files = build_distributions(REPOSITORY, folder, epoch)
    (wheel,) = (file for file in files if file.suffix == ".whl")
    inventory = folder / f"{DISTRIBUTION}-{__version__}.cdx.json"
    files.append(write_package_sbom(inventory, __version__, file_digest(wheel), epoch))
    helm = find_helm(os.environ)
    tell(
        "chart: linted by Helm" if helm else "chart: there is no Helm here that could lint it; packed without"
    )
    files.append(package_chart(folder, epoch, helm=helm))
    parts = ["package", "chart"]
    if not with_images:
        tell("images: left out, as asked for")
    elif answers(None):
        files += build_images(folder, DockerEngine(None, os.environ.get(BASE_VARIABLE)), tree)
        parts.append("images")
        if not has_syft():
            tell(f"inventories of the images: NOT WRITTEN. {NO_SYFT}")
    else:
        tell("images: NOT BUILT, because no Docker engine answers. Start one, or name it in DOCKER_HOST.")
    locks = {name: file_digest(REPOSITORY / name) for name in LOCKS}
    build = Build(__version__, tree.revision, is_snapshot, started_at, datetime.now(UTC), locks, parts)
    statement = build_statement(files, build, os.environ)
    files.append(write_json(folder / f"{DISTRIBUTION}-{__version__}.intoto.json", statement))
    sums = folder / CHECKSUMS
    sums.write_text(build_checksums(files))
    return [*sorted(files), sums]


def tell(text: str) -> None:
    print(f"release: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make all files of a release.")
    parser.add_argument(
        "--snapshot",
        action="store_true",
        help="also from a changed tree, and without a section in CHANGELOG.md",
    )
    parser.add_argument("--without-images", action="store_true", help="also where a Docker engine answers")
    parser.add_argument("--tag", help="refuse unless the version is that of this tag")
    parser.add_argument("--check", action="store_true", help="only say whether a release could be made")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "dist", help="where to (default: dist)")
    options = parser.parse_args(arguments)
    try:
        parse_version(__version__)
        refuse_wrong_tag(options.tag, __version__)
        tree = read_tree(REPOSITORY)
        if not options.snapshot:
            refuse_unfit(tree, (REPOSITORY / "CHANGELOG.md").read_text(), __version__)
        if options.check:
            tell(f"version {__version__} can be released from {tree.revision[:12]}")
            return 0
        files = make_release(
            options.folder, tree, is_snapshot=options.snapshot, with_images=not options.without_images
        )
    except (CannotRelease, ChartDiffers, CommandFailed) as refusal:
        print(f"make: no release. {refusal}", file=sys.stderr)
        return 1
    for file in files:
        tell(f"{file.stat().st_size / 1000:>10,.0f} kB  {file.name}")
    note = ", a snapshot: not for publication" if options.snapshot else ""
    tell(f"version {__version__} of {tree.revision[:12]} is in {options.folder}{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
