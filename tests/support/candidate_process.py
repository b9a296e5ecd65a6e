"""A candidate for the leadership in a process of its own, which tests may kill, stop and let go on.

Run as a script this file *is* that candidate; imported, it starts one. While it leads it notes every few
milliseconds when it last asked `is_leading()` and was told yes. All processes share the clock of the machine, so the
notes of all of them together show whether two ever held at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes_client import open_client
from ledger import read_whole_lines
from rrq_operator.cluster.election_lease import KubeLeaseStore
from rrq_operator.control.election import Leadership, lead

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator


NOTE_INTERVAL_SECONDS = 0.005


@dataclass(frozen=True)
class Note:
    """At this moment the candidate held the leadership, in this term of it."""

    at: float
    candidate: str
    term: int


@dataclass(frozen=True)
class Place:
    """Where candidates meet: one Lease, and one file for the notes of all."""

    kubeconfig: Path
    namespace: str
    notes: Path

    def read_notes(self) -> list[Note]:
        """All notes in the order of their moments."""
        notes = [Note(**json.loads(line)) for line in read_whole_lines(self.notes)]
        return sorted(notes, key=lambda note: note.at)

    def read_terms(self) -> list[tuple[str, int]]:
        """Who held, in order; a term that went on after another began appears twice."""
        terms: list[tuple[str, int]] = []
        for note in self.read_notes():
            if not terms or terms[-1] != (note.candidate, note.term):
                terms.append((note.candidate, note.term))
        return terms

    def find_leader(self, since: float) -> Note | None:
        """The first note since that moment."""
        return next((note for note in self.read_notes() if note.at >= since), None)


class CandidateProcess:
    """Controlled by signals; ends with the `running` block at the latest."""

    def __init__(self, name: str, place: Place) -> None:
        arguments = {
            "name": name,
            "kubeconfig": str(place.kubeconfig),
            "namespace": place.namespace,
            "notes": str(place.notes),
        }
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(arguments)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running(place: Place, *names: str) -> Iterator[dict[str, CandidateProcess]]:
    candidates: dict[str, CandidateProcess] = {}
    try:
        for name in names:
            candidates[name] = CandidateProcess(name, place)
        yield candidates
    finally:
        for candidate in candidates.values():
            candidate.kill()


async def run_candidate(arguments: dict[str, str]) -> None:
    terms = 0

    async def work(leadership: Leadership) -> None:
        nonlocal terms
        terms += 1
        while True:
            asked_at = time.monotonic()
            # Stopped before the question, it is answered with no; stopped after, the note has the right moment.
            if leadership.is_leading():
                note = {"at": asked_at, "candidate": arguments["name"], "term": terms}
                os.write(notes, json.dumps(note).encode() + b"\n")
            await asyncio.sleep(NOTE_INTERVAL_SECONDS)

    notes = os.open(arguments["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with await open_client(Path(arguments["kubeconfig"])) as client:
        store = KubeLeaseStore(client, arguments["namespace"], "rrq-operator")
        await lead(store, arguments["name"], work)


if __name__ == "__main__":
    asyncio.run(run_candidate(json.loads(sys.argv[1])))
