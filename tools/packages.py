"""Debian packages that the cluster of the tests is made of: found, or installed where root may."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from progress import CommandFailed, alone, run_with_progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Where Debian puts programs that are not for the PATH of everybody. Into ours they go: what is found here is called by
# its name later, also by programs that we start.
for folder in ("/usr/sbin", "/sbin"):
    if folder not in os.environ.get("PATH", os.defpath).split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), folder))
SEARCHED = os.pathsep.join((os.environ["PATH"], "/usr/lib/cni"))
STARTS_REFUSED = Path("/usr/sbin/policy-rc.d")


class MissingPackages(Exception):
    """Programs are missing and cannot be installed; the message is one line that says which, and what to do."""


def find(program: str) -> Path | None:
    found = shutil.which(program, path=SEARCHED)
    return Path(found) if found else None


def missing_packages(packages: Mapping[str, str]) -> list[str]:
    """The packages of those programs that are not there."""
    return sorted({package for program, package in packages.items() if find(program) is None})


def demand(packages: Mapping[str, str]) -> None:
    """Raise `MissingPackages` unless every program is there."""
    missing = missing_packages(packages)
    if missing:
        raise MissingPackages(f"Programs are missing: apt install {' '.join(missing)}.")


def refuse_where_none_can_be_installed(packages: Mapping[str, str]) -> None:
    """Raise `MissingPackages` unless every program is there or `install` could try to bring it."""
    missing = " ".join(missing_packages(packages))
    if not missing:
        return
    if os.geteuid() != 0:
        raise MissingPackages(
            f"Programs are missing, and only root can install them: run as root, or apt install {missing}."
        )
    if shutil.which("apt-get") is None:
        raise MissingPackages(
            f"Programs are missing, and there is no apt-get to install them with. On Debian: apt install {missing}."
        )


def install(packages: Mapping[str, str]) -> None:
    """Make sure that every program is there; `packages` names for each the Debian package that has it."""
    refuse_where_none_can_be_installed(packages)
    missing = missing_packages(packages)
    if not missing:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    with service_starts_refused():
        try:
            run_with_progress("apt-get update", ["apt-get", "update"], environment=environment)
            run_with_progress(f"install {' '.join(missing)}", command, environment=environment)
        except CommandFailed as error:
            reason = str(error).strip().splitlines()[-1]
            raise MissingPackages(
                f"Programs are missing and could not be installed (apt install {' '.join(missing)}): {reason}"
            ) from error
    demand(packages)


def extract(program: str, package: str, folder: Path) -> Path:
    """Take one program out of a Debian package into a folder, installing nothing: no service, no user, no root needed."""
    taken_out = folder / program
    with alone(folder / f"{program}.lock", f"{program} is being fetched"):
        if not taken_out.exists():
            if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
                raise MissingPackages(
                    f"{program} is missing, and only Debian has it here: install {package}."
                )
            try:
                _fetch(program, package, taken_out)
            except CommandFailed as error:
                reason = str(error).strip().splitlines()[-1]
                raise MissingPackages(
                    f"{program} is missing and could not be fetched (apt install {package}): {reason}"
                ) from error
    return taken_out


def _fetch(program: str, package: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=target.parent) as scratch:
        if os.geteuid() == 0:  # others use the lists that are there
            run_with_progress("apt-get update", ["apt-get", "update"])
        run_with_progress(f"fetch {package}", ["apt-get", "download", package], folder=Path(scratch))
        (archive,) = Path(scratch).glob("*.deb")
        run_with_progress(f"unpack {package}", ["dpkg-deb", "--extract", str(archive), scratch])
        # In one step, so that an interrupted run leaves no half a program.
        (Path(scratch) / "usr" / "bin" / program).rename(target)


@contextmanager
def service_starts_refused() -> Iterator[None]:
    """Keep Debian from starting what it installs: the tests run their own, and need no other."""
    if STARTS_REFUSED.exists():
        yield
        return
    STARTS_REFUSED.write_text("#!/bin/sh\nexit 101\n")
    STARTS_REFUSED.chmod(0o755)
    try:
        yield
    finally:
        STARTS_REFUSED.unlink()
