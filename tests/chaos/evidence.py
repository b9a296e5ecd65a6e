"""All that a run has found out, before anybody judges it: what was really done to whom, and what became of the jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos_ledger import Entry
    from fault_plan import PlannedFault

MAIN = "main"
SENTINEL = "sentinel"
ZERO = "zero"
#: A fault that nobody planned: see `watch_for_stalls`.
STALL = "the machine stood still"


@dataclass(frozen=True)
class Injected:
    """One fault, in monotonic time.

    `pids`          the processes it hit
    `jobs`          these jobs are the fault: whichever process starts one of them is hit, each time
    `cuts`          the attempts in hand of those processes may run again because of it
    `cuts_from`     not before this moment, for a fault that leaves attempts or a lease some time to end
    `ends`          those processes are dead afterwards
    `hit_seconds`   how long one of `jobs` keeps its process from reporting, unless its effect says otherwise
    `is_outage`     everybody of that part was without Redis
    `disturbs_all`  everybody lost a connection, and perhaps an answer
    `loses`         Redis itself may have lost what it acknowledged between these two moments
    `poison`        these jobs have to end among the dead letters
    """

    number: int
    kind: str
    part: str
    begun_at: float
    ended_at: float
    pids: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    cuts: bool = False
    cuts_from: float | None = None
    ends: bool = False
    hit_seconds: float = 0.0
    is_outage: bool = False
    disturbs_all: bool = False
    loses: tuple[float, float] | None = None
    poison: tuple[str, ...] = ()


def ended_now(
    fault: PlannedFault, begun_at: float, pids: tuple[int, ...] = (), *, part: str = MAIN, **more: Any
) -> Injected:
    """Return the fault that was planned as one that is over by now."""
    return Injected(fault.number, fault.kind, part, begun_at, time.monotonic(), pids, **more)


class HalfDone(Exception):
    """A fault that happened and whose aftermath went wrong: it counts as injected, and as a complaint."""

    def __init__(self, injected: Injected) -> None:
        super().__init__(injected.kind)
        self.injected = injected


@dataclass(frozen=True)
class DueAgain:
    """How long the jobs of a dead process waited until others could claim them."""

    kind: str
    begun_at: float
    seconds: float | None
    jobs: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Jobs of the main part that were due and waited, at one moment; None when Redis gave no answer."""

    at: float
    backlog: int | None


@dataclass(frozen=True)
class PartState:
    """How Redis stands at the end: the status of each acknowledged job (None: its hash is gone), and what is left."""

    statuses: Mapping[str, str | None]
    dead_letters: Sequence[str] = ()
    left_keys: Sequence[str] = ()


@dataclass(frozen=True)
class Evidence:
    """`acknowledged` is per part, job id to moment; `ledger` is of all parts in the order of time."""

    acknowledged: Mapping[str, Mapping[str, float]]
    ledger: Sequence[Entry]
    faults: Sequence[Injected]
    states: Mapping[str, PartState]
    legacy_pids: frozenset[int] = frozenset()
    pids_by_part: Mapping[str, frozenset[int]] = field(default_factory=dict)
    due_again: Sequence[DueAgain] = ()
    samples: Sequence[Sample] = ()
    stalls: Sequence[Injected] = ()
    fenced: int = 0
    refused: int = 0
    legacy_restarts: int = 0
    load_begun_at: float = 0.0
    load_ended_at: float = 0.0
    jobs_per_second: float = 0.0
    lease_seconds: float = 15.0
    complaints: Sequence[str] = ()
    left_out: Sequence[str] = field(default_factory=tuple)
