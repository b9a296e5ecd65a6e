"""Ledgers that were doctored: two good jobs, and whatever a test adds to show that the judge sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bars import Bars
from chaos_ledger import EFFECT, STARTED, Entry
from evidence import Evidence, PartState
from injected import MAIN, Injected
from verdict import judge

if TYPE_CHECKING:
    from verdict import Report

LEASE_SECONDS = 3.0
CHILD, OTHER, LEGACY = 11, 12, 99


def run_of(job_id: str, at: float, pid: int = CHILD, seconds: float = 0.2, attempt: int = 1) -> list[Entry]:
    return [
        Entry(STARTED, job_id, attempt, pid, at),
        Entry(EFFECT, job_id, attempt, pid, at + seconds),
    ]


def build(
    *entries: Entry,
    jobs: dict[str, float] | None = None,
    statuses: dict[str, str | None] | None = None,
    faults: list[Injected] | None = None,
    dead_letters: tuple[str, ...] = (),
    left_keys: tuple[str, ...] = (),
    part: str = MAIN,
    **more: Any,
) -> Evidence:
    """Two good jobs, and whatever the test adds."""
    jobs = {"good-1": 0.5, "good-2": 0.6} | (jobs or {})
    good = [*run_of("good-1", 1.0), *run_of("good-2", 1.1, OTHER)]
    ledger = sorted([*good, *entries], key=lambda entry: entry.at)
    state = PartState(dict.fromkeys(jobs, "COMPLETED") | (statuses or {}), dead_letters, left_keys)
    options: dict[str, Any] = {
        "legacy_pids": frozenset({LEGACY}),
        "pids_by_part": {part: frozenset({CHILD, OTHER, LEGACY})},
        "load_ended_at": 60.0,
        "jobs_per_second": 50.0,
        "lease_seconds": LEASE_SECONDS,
    }
    return Evidence({part: jobs}, ledger, faults or [], {part: state}, **options | more)


def fault(kind: str, begun_at: float, ended_at: float | None = None, **more: Any) -> Injected:
    return Injected(
        1, kind, more.pop("part", MAIN), begun_at, begun_at if ended_at is None else ended_at, **more
    )


def verdict(evidence: Evidence, bars: Bars | None = None) -> Report:
    return judge(evidence, bars or Bars())


def killed(at: float, pid: int = CHILD) -> Injected:
    return fault("child killed", at, pids=(pid,), cuts=True)
