"""The chart as the archive that Helm installs, and its version, which follows from that of the package.

`make verify` runs this file to see that Chart.yaml says what worker/rrq/version.py says. The archive has the same
bytes wherever it is made: Helm, where there is one, says which files belong to it and refuses a broken chart, but dates
and owners of what it packs are those of the machine.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from packaging.version import InvalidVersion, Version

from kubernetes_build import CannotHostKubernetes, find_client
from rrq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "rrq"
# How SemVer, which Helm insists on, spells what Python writes as 1.0.0a1, 1.0.0b1 and 1.0.0rc1.
PRE_RELEASES = {"a": "alpha", "b": "beta", "rc": "rc"}


class ChartDiffers(Exception):
    """The chart is not of the version that is to be released, or Helm refuses it."""


def parse_version(text: str) -> Version:
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ChartDiffers(f"Version {text!r} is none that Python knows: write it as in 1.0.0rc1.") from error
    has_no_semver = version.post is not None or version.local or version.epoch or len(version.release) != 3
    if str(version) != text or has_no_semver or (version.pre and version.dev is not None):
        raise ChartDiffers(
            f"Version {text!r} of worker/rrq/version.py has no equal among the versions of charts. "
            "Write three numbers, and after them nothing, aN, bN, rcN or .devN, as in 1.0.0rc1."
        )
    return version


def chart_version(text: str) -> str:
    """Return the same version, spelled as SemVer has it: 1.0.0.dev0 is 1.0.0-dev.0 there."""
    version = parse_version(text)
    if version.dev is not None:
        return f"{version.base_version}-dev.{version.dev}"
    if version.pre is not None:
        kind, number = version.pre
        return f"{version.base_version}-{PRE_RELEASES[kind]}.{number}"
    return version.base_version


def check_chart(folder: Path = CHART, version: str = __version__) -> None:
    """Raise `ChartDiffers` where Chart.yaml names another version than the package."""
    said = yaml.safe_load((folder / "Chart.yaml").read_text())
    wanted = {"version": chart_version(version), "appVersion": version}
    wrong = [name for name, value in wanted.items() if said.get(name) != value]
    if wrong:
        found = ", ".join(f"{name}: {said.get(name)}" for name in wrong)
        right = ", ".join(f"{name}: {wanted[name]}" for name in wrong)
        raise ChartDiffers(
            f"charts/{folder.name}/Chart.yaml says {found}, but worker/rrq/version.py is {version}. "
            f"Write {right} there, and renew the snapshots: RENEW_SNAPSHOTS=1 pytest tests/chart."
        )


def package_chart(destination: Path, epoch: int, *, helm: Path | None, folder: Path = CHART) -> Path:
    """Write the archive of the chart and return its path; `epoch` is the date of all that is in it."""
    check_chart(folder)
    files = read_by_helm(helm, folder) if helm else read_folder(folder)
    # Helm writes Chart.yaml anew, without its comments. Ours is checked, and the same with every Helm and with none.
    files["Chart.yaml"] = (folder / "Chart.yaml").read_bytes()
    archive = destination / f"{folder.name}-{chart_version(__version__)}.tgz"
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as members,
    ):
        for name in sorted(files, key=lambda name: (name != "Chart.yaml", name)):
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size, member.mtime, member.mode = len(files[name]), epoch, 0o644
            members.addfile(member, io.BytesIO(files[name]))
    return archive


def read_by_helm(helm: Path, folder: Path) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as made:
        for command in (["lint", "--strict"], ["package", "--destination", made]):
            done = subprocess.run(
                [helm, *command, folder], check=False, capture_output=True, text=True, timeout=60
            )
            if done.returncode != 0:
                raise ChartDiffers(f"helm {command[0]} refuses {folder}:\n{done.stdout}{done.stderr}")
        (archive,) = Path(made).iterdir()
        return read_archive(archive)


def read_archive(archive: Path) -> dict[str, bytes]:
    """Return what is in the archive of a chart, by path within the chart."""
    with tarfile.open(archive) as members:
        contents = {member.name: members.extractfile(member) for member in members if member.isfile()}
        return {name.partition("/")[2]: file.read() for name, file in contents.items() if file is not None}


def read_folder(folder: Path) -> dict[str, bytes]:
    ignored = read_ignored(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(fnmatch(path.name, pattern) for pattern in ignored)
    }


def read_ignored(folder: Path) -> list[str]:
    """Return the patterns of .helmignore; names of files only, which is all that ours has."""
    file = folder / ".helmignore"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def find_helm(environment: Mapping[str, str]) -> Path | None:
    try:
        return find_client("helm", environment)
    except CannotHostKubernetes:
        return None


def main() -> int:
    try:
        check_chart()
    except ChartDiffers as difference:
        print(f"make: {difference}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
