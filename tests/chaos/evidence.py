"""All that a run has found out, before anybody judges it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos_ledger import Entry
    from injected import DueAgain, Injected, Sample


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
