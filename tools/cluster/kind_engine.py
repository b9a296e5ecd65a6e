"""A Docker engine that kind can use, where none answers: with a network, and nothing of it outside a machine of its own.

The engine's bridge, packet filter and containers are inside namespaces that end with the block; one pair of
interfaces leads to what it publishes. Needs root and Debian's docker.io.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from control_groups import remove_groups
from docker_engine import DockerEngine, wait_for_answer
from kind_programs import KIND_SOURCES
from kubernetes_build import CannotHostKubernetes
from machine import Machine, lay_cable

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each engine takes one of these second numbers of 10.x.0.0/16; source-built clusters take those below.
NETWORKS = range(232, 248)
PROGRAMS = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "flock": "util-linux",
    "ip": "iproute2",
}
PLACE = Path("/tmp")  # short: it holds the path of a socket
PREFIX = "rrq-kind-"
MARK = "in-use"
SYS_RESOURCE = 1 << 24


@dataclass(frozen=True)
class KindEngine:
    """An engine for kind; `address` is where its published ports are, if not on this computer's loopback."""

    docker: DockerEngine
    address: str | None = None


def refuse_where_none_can_start() -> None:
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if os.geteuid() != 0:
        raise CannotHostKubernetes("An engine of our own needs namespaces: run as root.")
    if missing:
        raise CannotHostKubernetes(f"An engine of our own needs programs: apt install {' '.join(missing)}.")


@contextmanager
def own_kind_engine() -> Iterator[KindEngine]:
    """Run dockerd in a machine of its own, and leave neither process, mount, interface nor control group behind."""
    refuse_where_none_can_start()
    remove_what_killed_runs_left()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
    host, log = f"unix://{folder}/docker.sock", folder / "log"
    with ExitStack() as afterwards:  # the last one first, and each of them whatever the others meet
        mark = afterwards.enter_context((folder / MARK).open("w"))
        fcntl.flock(mark, fcntl.LOCK_SH)
        afterwards.callback(shutil.rmtree, folder)
        afterwards.callback(remove_groups, folder.name)
        started: list[subprocess.Popen[bytes]] = []
        afterwards.callback(wait_for_all, started)
        machine = Machine("docker", folder)
        afterwards.callback(machine.kill)
        address = join_network(machine)
        # Not the machine's, where another engine may have its sockets and locks.
        machine.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        command = [
            *machine.enter(folder),
            # Inherited by all that it starts: the lock goes with the last of them.
            *("flock", "--shared", "--no-fork", f"{folder}/{MARK}"),
            *("dockerd", "--host", host, "--pidfile", "/run/docker.pid"),
            *("--data-root", f"{folder}/data", "--exec-root", "/run/docker"),
            *("--cgroup-parent", f"/{folder.name}", *runtime_options()),
        ]
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        started.append(daemon)
        wait_for_answer(daemon, host, log)
        yield KindEngine(DockerEngine(host, None), address)


def remove_what_killed_runs_left() -> None:
    """The kernel ends an engine whose owner was killed, and drops its lock; folder and control groups stay."""
    for mark in PLACE.glob(f"{PREFIX}*/{MARK}"):
        with suppress(BlockingIOError), mark.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_groups(mark.parent.name)
            shutil.rmtree(mark.parent)


def wait_for_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.wait()


def join_network(machine: Machine) -> str:
    """Lay a cable to the machine from here and return the address at its other end."""
    number = lay_cable(machine, NETWORKS)
    if number is None:
        raise CannotHostKubernetes(f"All {len(NETWORKS)} networks are taken by engines that run: end some.")
    machine.run("ip", "address", "add", f"10.{number}.0.1/24", "dev", "outside")
    machine.run("ip", "link", "set", "outside", "up")
    return f"10.{number}.0.1"


def runtime_options() -> tuple[str, ...]:
    """How dockerd starts containers where even root lacks what kind's nodes, being privileged, ask for."""
    status = Path("/proc/self/status").read_text().splitlines()
    bounds = next(line.split()[1] for line in status if line.startswith("CapBnd:"))
    if int(bounds, 16) & SYS_RESOURCE:
        return ()
    program = KIND_SOURCES / "without-sys-resource.sh"
    return ("--add-runtime", f"without-sys-resource={program}", "--default-runtime", "without-sys-resource")
