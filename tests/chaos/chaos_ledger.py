"""What really happened to each job, kept outside Redis: acknowledged, started, effect, and how it ended.

Lines are short and appended to a file that stays open, so that a hundred thousand jobs cost next to nothing.
Times are monotonic: one clock for all processes of the machine, which no fault of ours moves.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ACKNOWLEDGED = "acknowledged"
STARTED = "started"
EFFECT = "effect"
RAISED = "raised"
#: An RRQ 0.7.1 worker has tried to take the job from its queue, with what success it may not know.
TAKEN = "taken"
#: A job is about to kill this process, which may run other jobs or none.
KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Entry:
    event: str
    job_id: str
    attempt: int
    pid: int
    at: float


class LedgerWriter:
    """Appends; any number of processes may have one for the same file."""

    def __init__(self, path: Path | str) -> None:
        # One write() to an O_APPEND file: lines never mix, and a written line outlives kill -9.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(self, event: str, job_id: str, attempt: int = 0, pid: int | None = None) -> None:
        """Write one line about this process, or about the process `pid`."""
        about = os.getpid() if pid is None else pid
        os.write(self._file, f"{event} {job_id} {attempt} {about} {time.monotonic():.4f}\n".encode())

    def close(self) -> None:
        os.close(self._file)


class LedgerReader:
    """Reads on from where it stopped."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._offset = 0
        self.entries: list[Entry] = []

    def read_on(self) -> list[Entry]:
        """Return what was written since the last call; `entries` has all of it."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                written = file.read()
        except FileNotFoundError:
            return []
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [parse_entry(line) for line in whole.decode().splitlines()]
        self.entries += new
        return new


def parse_entry(line: str) -> Entry:
    event, job_id, attempt, pid, at = line.split()
    return Entry(event, job_id, int(attempt), int(pid), float(at))
