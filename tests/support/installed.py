"""The wheel in an environment of its own, which has exactly what the wheel and one of its extras ask for.

The dependencies are links to those of this environment, so that no index is needed and nothing is fetched.
"""

from __future__ import annotations

import email
import importlib.metadata
import importlib.util
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rrq.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel; programs find no other program than its own."""

    folder: Path

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", code, **variables)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            cwd=self.folder, env=self.variables(**variables), check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.folder / "bin" / program), *arguments]

    def variables(self, **variables: str) -> dict[str, str]:
        return {
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.folder),
            "PYTHONPATH": str(self.folder),
            **variables,
        }


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, extra: str | None) -> Installed:
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in sorted(find_needed(wheel, extra)):
        _link(importlib.metadata.distribution(name), packages)
    install_wheel(wheel, folder)
    return Installed(folder)


def install_wheel(wheel: Path, folder: Path) -> None:
    run_pip(folder, "install", "--no-index", "--no-deps", "--no-compile", str(wheel))


def run_pip(folder: Path, *arguments: str) -> None:
    """Run the pip of this environment for the one in `folder`, which has none."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(folder / "bin" / "python"),
    ]
    done = subprocess.run([*pip, *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def find_needed(wheel: Path, extra: str | None) -> set[str]:
    """Return the distributions that pip would install beside the wheel, by what each of them asks for."""
    needed: set[tuple[str, str]] = set()
    coming = {(DISTRIBUTION, ""), (DISTRIBUTION, extra or "")}
    while coming:
        wanted = name, wanted_extra = coming.pop()
        needed.add(wanted)
        for requirement in map(Requirement, _read_requirements(wheel, name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted_extra}):
                asked = canonicalize_name(requirement.name)
                coming |= {(asked, each) for each in ("", *requirement.extras)} - needed
    return {name for name, _ in needed} - {DISTRIBUTION}


def _read_requirements(wheel: Path, name: str) -> list[str]:
    if name != DISTRIBUTION:
        return importlib.metadata.requires(name) or []
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []


def _link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """File by file, because folders of namespaces such as `opentelemetry` belong to several distributions."""
    for file in distribution.files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        source, target = Path(str(distribution.locate_file(file))), packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
        if file.suffix == ".py":
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if compiled.exists():
                cache = target.parent / "__pycache__"
                cache.mkdir(exist_ok=True)
                (cache / compiled.name).symlink_to(compiled)
