"""A computer made of Linux namespaces: its own network, mounts, host name and process ids on this kernel.

Killing its first process ends whatever runs on it, and takes its mounts, interfaces, packet filters and routes along;
nothing of it can be left behind. A machine may be inside another one, and goes with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Process 1 of a machine: buries what is orphaned, and otherwise waits. It ends by SIGKILL from outside.
FIRST_PROCESS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
while signal.sigwait({signal.SIGCHLD}):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
OWN_NAMESPACES = ("--net", "--mount", "--pid", "--uts")
START_TIMEOUT_SECONDS = 30.0
COMMAND_TIMEOUT_SECONDS = 60.0


class MachineFailed(Exception):
    """A command of a machine failed; the message says which, and what it printed."""


class Machine:
    """Runs commands in namespaces of its own, which `kill` ends together."""

    def __init__(self, name: str, folder: Path, *, inside: Machine | None = None, outlives_us: bool = False):
        self.name = name
        bound_to_us = [] if outlives_us else ["setpriv", "--pdeathsig", "KILL", "--"]
        self._holder = subprocess.Popen(
            [
                *bound_to_us,
                *(inside.enter(folder) if inside else ()),
                *("unshare", *OWN_NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc"),
                *(sys.executable, "-c", FIRST_PROCESS),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.first_process_id = self._wait_for_first_process()
        try:
            self.run("ip", "link", "set", "lo", "up")
            self.run("hostname", name)
            # Connections whose process was killed would hold the network for minutes, calling for a peer that is gone.
            self.run("sysctl", "-qw", "net.ipv4.tcp_orphan_retries=1")
        except BaseException:
            self.kill()
            raise

    @property
    def is_running(self) -> bool:
        return self._holder.poll() is None

    def enter(self, folder: Path = Path("/")) -> tuple[str, ...]:
        """What a command is put behind to run here, in `folder`. It ends when the process that called it is killed."""
        return (
            *("nsenter", "--target", str(self.first_process_id), *OWN_NAMESPACES, "--"),
            *("env", "-C", str(folder), "setpriv", "--pdeathsig", "KILL", "--"),
        )

    def run(self, *command: str, input: str = "", timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> str:
        """Run a command here to its end and return what it printed."""
        return run([*self.enter(), *command], input=input, timeout_seconds=timeout_seconds)

    def kill(self) -> None:
        """End everything that runs here, as pulling the plug does."""
        if self.is_running:  # else the number may be that of another process by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first_process_id, signal.SIGKILL)
        self._holder.wait(COMMAND_TIMEOUT_SECONDS)

    def _wait_for_first_process(self) -> int:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            found = first_process_below(self._holder.pid)
            if found is not None:
                return found
            if self._holder.poll() is not None:
                break
            time.sleep(0.01)
        self._holder.kill()
        raise MachineFailed(f"machine {self.name} does not start: are you root, and may you make namespaces?")


def first_process_below(holder: int) -> int | None:
    """Return the process that is number 1 of a namespace, among the children of `holder` and theirs."""
    waiting = [holder]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            status = (process / "status").read_text()
            children = (process / "task" / process.name / "children").read_text()
        except FileNotFoundError:
            continue
        # One number per namespace, ours first. Its program has been exchanged, so its mounts are in place.
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if process.name != str(holder) and len(numbers) > 1 and numbers[-1] == "1" and is_waiting(process):
            return int(process.name)
        waiting += [int(child) for child in children.split()]
    return None


def is_waiting(process: Path) -> bool:
    return FIRST_PROCESS.encode() in (process / "cmdline").read_bytes()


def lay_cable(machine: Machine, numbers: Iterable[int]) -> int | None:
    """Lay a cable from here to `outside` of a machine, named by the first number that is free; None if none is."""
    for number in numbers:
        here = f"rrq{number}"
        cable = ["ip", "link", "add", here, "type", "veth", "peer", "name", "outside"]
        try:
            # The other end is made inside: taken away with the machine, it takes this one along.
            run([*cable, "netns", str(machine.first_process_id)])
        except MachineFailed as error:
            if "File exists" in str(error):
                continue  # of another machine
            raise
        run(["ip", "address", "add", f"10.{number}.0.254/24", "dev", here])
        run(["ip", "link", "set", here, "up"])
        return number
    return None


def run(command: Sequence[str], *, input: str = "", timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> str:
    done = subprocess.run(
        command, check=False, input=input, capture_output=True, text=True, timeout=timeout_seconds
    )
    if done.returncode != 0:
        raise MachineFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
