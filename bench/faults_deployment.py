"""The processes of one contender in one trial: its workers as their documentation starts them, and a producer."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from harness import BENCH, BenchError, Contender, python_of

APPLICATIONS = BENCH / "fault_contenders"
LEDGER_VARIABLE = "FAULTS_LEDGER"
PRODUCER_SECONDS = 60.0


@dataclass(frozen=True)
class FaultContender:
    """One library, started the way its users start it."""

    name: str
    label: str
    # The module in fault_contenders/ that is both its application and its producer.
    application: str
    # Names an environment in bench/requirements/; None is the bench's own.
    requirements: str | None
    # Run once for each of ``commands``; the first word is a program of its environment.
    command: tuple[str, ...]
    # How often the command is started: twice where one command is one process.
    commands: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    # Faults after which unfinished jobs return by themselves, if later than the watch; see ``note``.
    returns: frozenset[str] = frozenset()
    # What was left at its default, and which setting would change the picture.
    note: str = ""

    def python(self) -> Path:
        return python_of(Contender(self.name, self.label, self.application, self.requirements))


class Deployment:
    """All processes of one trial. They are found again by their environment, whoever their parent is by now."""

    def __init__(self, contender: FaultContender, dsn: str, folder: Path) -> None:
        self._contender = contender
        self._folder = folder
        self.ledger = folder / "ledger.jsonl"
        self.ledger.touch()
        self._log_path = folder / "workers.log"
        self._log: IO[bytes] = self._log_path.open("ab")
        self._roots: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            **contender.environment,
            "FAULTS_DSN": dsn,
            LEDGER_VARIABLE: str(self.ledger),
            "PYTHONPATH": str(APPLICATIONS),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_workers()
        self._log.close()

    def start_workers(self) -> None:
        program, *words = self._contender.command
        for _ in range(self._contender.commands):
            # The folder of the interpreter is not resolved: a virtual environment is known by its path.
            line = [str(self._contender.python().with_name(program)), *words]
            self._roots.append(
                subprocess.Popen(
                    line, cwd=self._folder, env=self._environment, stdout=self._log, stderr=self._log
                )
            )

    def root_pids(self) -> set[int]:
        return {root.pid for root in self._roots}

    def stop_workers(self) -> None:
        for pid in self.find_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for root in self._roots:
            root.wait()
        self._roots.clear()

    def find_processes(self) -> list[int]:
        """Return every process of this trial: some libraries start theirs in sessions of their own."""
        mark = f"{LEDGER_VARIABLE}={self.ledger}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def send(self, prefix: str, count: int) -> None:
        """Enqueue jobs from a process of their own; a fresh one, so that no fault has touched its connection."""
        script = APPLICATIONS / f"{self._contender.application}.py"
        done = subprocess.run(
            [str(self._contender.python()), str(script)],
            input=f"{prefix} {count}\n".encode(),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            timeout=PRODUCER_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(
                f"The producer of {self._contender.label} ended with {done.returncode}:\n"
                f"{done.stderr.decode(errors='replace')[-2000:]}"
            )

    def log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-2000:]
