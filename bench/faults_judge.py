"""Decide from a ledger what a fault did: what was lost, what ran twice, how long the cut jobs waited.

Pure: lines in, verdict out. The ledger is a file outside Redis to which handlers append; a queue's own
opinion on a job is never asked.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ACKNOWLEDGED = "acknowledged"
STARTED = "started"
EFFECT = "effect"
FINISHED = "finished"


@dataclass(frozen=True)
class Line:
    """One step of one attempt; ``at`` in seconds of the machine's monotonic clock."""

    job: str
    event: str
    attempt: str
    pid: int
    at: float


@dataclass(frozen=True)
class Fault:
    """When it struck and whom: no victim means everybody, because it was Redis that went."""

    at: float
    victim_pid: int | None
    # What happens later than this is not looked at.
    watched_until: float


@dataclass(frozen=True)
class Verdict:
    """What became of the acknowledged jobs."""

    acknowledged: int
    # Started by the victim and not finished when the fault struck.
    cut: int
    # Not finished by the end of the watch, and how many of them were cut in mid-run.
    unfinished: int
    unfinished_cut: int
    effects_repeated: int
    finished_repeated: int
    # From the fault to the next start of each cut job that was started again, ascending.
    rerun_seconds: tuple[float, ...]
    # From the fault until every acknowledged job had finished once; None where some never did.
    all_done_seconds: float | None


def parse_ledger(text: str) -> list[Line]:
    """Return the lines of a ledger; a last line without its end is still being written and left out."""
    return [Line(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def select_jobs(lines: Iterable[Line], prefix: str) -> list[Line]:
    return [line for line in lines if line.job.startswith(f"{prefix}-")]


def find_attempts_in_hand(lines: Iterable[Line], at: float) -> dict[str, Line]:
    """Return by attempt the start of each one that had begun and not ended at this moment."""
    in_hand: dict[str, Line] = {}
    for line in lines:
        if line.at > at:
            continue
        if line.event == STARTED:
            in_hand[line.attempt] = line
        elif line.event == FINISHED:
            in_hand.pop(line.attempt, None)
    return in_hand


def judge(lines: Iterable[Line], fault: Fault) -> Verdict:
    """Return what became of every acknowledged job until the watch ended."""
    seen = [line for line in lines if line.at <= fault.watched_until]
    acknowledged = {line.job for line in seen if line.event == ACKNOWLEDGED}
    in_hand = find_attempts_in_hand(seen, fault.at)
    cut = {line.job for line in in_hand.values() if fault.victim_pid in (None, line.pid)}

    first_finish: dict[str, float] = {}
    first_rerun: dict[str, float] = {}
    for line in sorted(seen, key=lambda line: line.at):
        if line.event == FINISHED:
            first_finish.setdefault(line.job, line.at)
        if line.event == STARTED and line.at > fault.at and line.job in cut:
            first_rerun.setdefault(line.job, line.at)

    unfinished = acknowledged - first_finish.keys()
    return Verdict(
        acknowledged=len(acknowledged),
        cut=len(cut),
        unfinished=len(unfinished),
        unfinished_cut=len(unfinished & cut),
        effects_repeated=_count_repeated(seen, EFFECT),
        finished_repeated=_count_repeated(seen, FINISHED),
        rerun_seconds=tuple(sorted(at - fault.at for at in first_rerun.values())),
        all_done_seconds=None
        if unfinished or not acknowledged
        else max(0.0, max(first_finish[job] for job in acknowledged) - fault.at),
    )


def _count_repeated(lines: Iterable[Line], event: str) -> int:
    times = Counter(line.job for line in lines if line.event == event)
    return sum(count > 1 for count in times.values())
