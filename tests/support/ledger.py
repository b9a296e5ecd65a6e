"""A record of what handlers really did, which survives the death of the process that wrote it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Entry:
    job_id: str
    event: str
    attempt: int
    pid: int
    time: float


def read_whole_lines(path: Path | str) -> list[str]:
    """Return the lines of a file that others write to; none while there is no file.

    The last may be half there, as a write that crosses a page is seen page by page.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return [line for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []


class Ledger:
    """An append-only file that any number of processes write to, one line per event.

    It is kept outside Redis on purpose: what Redis forgot in a restart must still show here.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = os.fspath(path)

    def record(self, job_id: str, event: str, attempt: int = 0) -> None:
        entry = Entry(job_id, event, attempt, os.getpid(), time.time())
        # One write() to an O_APPEND file: lines of several processes never mix, and a line that was
        # written outlives kill -9 of its writer.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(asdict(entry)).encode() + b"\n")
        finally:
            os.close(file)

    def entries(self, event: str | None = None) -> list[Entry]:
        found = [Entry(**json.loads(line)) for line in read_whole_lines(self.path)]
        return [entry for entry in found if event is None or entry.event == event]

    def counts(self, event: str) -> Counter[str]:
        """How often each job had this event."""
        return Counter(entry.job_id for entry in self.entries(event))

    def count(self, event: str) -> int:
        return len(self.entries(event))
