"""Why a job was started again: by a fault that really cut the attempt before, or for no reason that we know.

Pure. A rerun is explained only by a fault that hit the very process that ran the attempt, while it ran or while its
outcome could not yet be stored. Told apart from those is what Redis itself forgot: the attempt had ended within the
last moments before a crash or a fail-over, and another fault kept its process from saying so again in time; or the
attempt before it had failed within those moments, too, in another process, which had that to say again first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from chaos_ledger import EFFECT, KILLED, RAISED, STARTED
from evidence import STALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chaos_ledger import Entry
    from evidence import Evidence, Injected

# An outcome is on its way for a few milliseconds; a busy machine gets room, and a fault after that explains nothing.
REPORT_SECONDS = 0.5
RENEWALS_PER_LEASE = 3
# For so long the fleet waits after a restart of Redis for somebody who does not come back.
MOST_RENEWALS_AWAITED = 2
# After an outage: until everybody has connected again and sent what had gathered.
RECONNECT_SECONDS = 3.0


@dataclass(frozen=True)
class Rerun:
    """An attempt and the one after it.

    `cause`         the fault that cut it
    `is_forgotten`  nothing cut it: Redis lost the outcome that it may have acknowledged, or the attempt as a whole
    """

    job_id: str
    cut: Entry
    successor: Entry
    cause: Injected | None
    is_legacy: bool = False
    had_effect: bool = False
    is_forgotten: bool = False


class Hits:
    """Which faults hit which process, and when a process could not tell Redis how its jobs had ended."""

    def __init__(self, evidence: Evidence, report_seconds: float) -> None:
        self._report_seconds = report_seconds
        self._renewal_seconds = evidence.lease_seconds / RENEWALS_PER_LEASE
        self._by_pid: dict[int, list[Injected]] = defaultdict(list)
        self._outages = [fault for fault in evidence.faults if fault.is_outage or fault.disturbs_all]
        self._outages += evidence.stalls
        for fault in evidence.faults:
            for pid in fault.pids:
                self._by_pid[pid].append(fault)
        self._pids_by_part = evidence.pids_by_part
        self._add_jobs(evidence)

    def _add_jobs(self, evidence: Evidence) -> None:
        """Whom a bad job hits is known from the ledger: the process that starts it, and those that it kills."""
        bad = {job_id: fault for fault in evidence.faults for job_id in fault.jobs}
        ends = {
            (entry.job_id, entry.pid): entry.at
            for entry in evidence.ledger
            if entry.event == EFFECT and entry.job_id in bad
        }
        for entry in evidence.ledger:
            if entry.event in (STARTED, KILLED) and entry.job_id in bad:
                fault = bad[entry.job_id]
                ended_at = ends.get((entry.job_id, entry.pid), entry.at + fault.hit_seconds)
                hit = replace(fault, pids=(entry.pid,), begun_at=entry.at, ended_at=ended_at)
                self._by_pid[entry.pid].append(hit)

    def find_cause(self, cut: Entry, successor: Entry, end: Entry | None) -> Injected | None:
        """Return the fault that cut the attempt, before its successor and before Redis knew its outcome."""
        known_by = inf if end is None else self._reported_by(cut.pid, end.at)
        for fault in self._by_pid.get(cut.pid, ()):
            cuts_from = fault.begun_at if fault.cuts_from is None else fault.cuts_from
            if fault.cuts and cuts_from <= min(successor.at, known_by) and fault.ended_at >= cut.at:
                return fault
        return None

    def is_forgotten(self, successor: Entry, end: Entry | None) -> bool:
        """Tell whether the end of the attempt lies in what Redis itself lost, and nobody was there to say it again."""
        return end is not None and any(
            fault.loses is not None
            and fault.loses[0] <= end.at <= fault.loses[1] <= successor.at
            and self._was_kept_away(end, fault, successor)
            for fault in self._outages_of(end.pid)
        )

    def is_forgotten_with_the_one_before(self, before: Entry | None, cut: Entry, successor: Entry) -> bool:
        """Tell whether Redis lost this attempt and the failure of the one before it, which two processes had to say again.

        Only the failure says whose turn it is now. A process that made both attempts tells of both at once.
        """
        return (
            before is not None
            and before.pid != cut.pid
            and any(
                fault.loses is not None
                and fault.loses[0] - self._report_seconds <= before.at
                and cut.at <= fault.loses[1] <= successor.at
                for fault in self._outages_of(cut.pid)
            )
        )

    def _was_kept_away(self, end: Entry, outage: Injected, successor: Entry) -> bool:
        """Whether the process died before it can have been back, or was held up for longer than others wait for it."""
        back_by = outage.ended_at + self._renewal_seconds
        awaited_until = outage.ended_at + MOST_RENEWALS_AWAITED * self._renewal_seconds
        stalls = [stall for stall in self._outages_of(end.pid) if stall.kind == STALL]
        return any(
            end.at <= fault.ended_at
            and fault.begun_at <= min(back_by, successor.at)
            and (fault.ends or fault.ended_at >= awaited_until)
            for fault in (*self._by_pid.get(end.pid, ()), *stalls)
        )

    def _outages_of(self, pid: int) -> list[Injected]:
        return [fault for fault in self._outages if pid in self._pids_by_part.get(fault.part, ())]

    def _reported_by(self, pid: int, at: float) -> float:
        """Return the moment until which an outcome of `at` may have been unknown to Redis."""
        until = at + self._report_seconds
        troubles = [*self._outages_of(pid), *self._by_pid.get(pid, ())]
        while True:
            ends = [
                fault.ended_at + RECONNECT_SECONDS
                for fault in troubles
                # A job that leaves the loop free (hit_seconds 0) keeps nobody from anything.
                if fault.begun_at <= until < fault.ended_at + RECONNECT_SECONDS
                and not (fault.jobs and fault.begun_at == fault.ended_at)
            ]
            if not ends:
                return until
            until = max(ends)


def find_reruns(evidence: Evidence, report_seconds: float = REPORT_SECONDS) -> Iterator[Rerun]:
    """Yield every start that was not the first and that no orderly retry explains."""
    hits = Hits(evidence, report_seconds)
    by_job: dict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.ledger:
        by_job[entry.job_id].append(entry)
    for job_id, entries in by_job.items():
        starts = [entry for entry in entries if entry.event == STARTED]
        for cut, successor in pairwise(starts):
            raised, effect = _ended(RAISED, cut, entries), _ended(EFFECT, cut, entries)
            if raised is not None and successor.attempt == cut.attempt + 1:
                continue
            end = effect or raised
            before = _failed_before(cut, entries)
            yield Rerun(
                job_id,
                cut,
                successor,
                hits.find_cause(cut, successor, end),
                # What ours had in hand needs a cause, also when the 0.7.1 worker is the one who starts it again.
                is_legacy=cut.pid in evidence.legacy_pids,
                had_effect=effect is not None,
                is_forgotten=hits.is_forgotten(successor, end)
                or hits.is_forgotten_with_the_one_before(before, cut, successor),
            )


def _failed_before(start: Entry, entries: Sequence[Entry]) -> Entry | None:
    """Return the end of the attempt whose failure had this one follow it."""
    for entry in reversed(entries[: bisect_left(entries, start.at, key=lambda one: one.at)]):
        if entry.event == RAISED and entry.attempt == start.attempt - 1:
            return entry
    return None


def _ended(event: str, start: Entry, entries: Sequence[Entry]) -> Entry | None:
    """Return what the attempt that began with `start` recorded at its end."""
    for entry in entries[bisect_left(entries, start.at, key=lambda one: one.at) :]:
        if entry.event == event and entry.pid == start.pid and entry.attempt == start.attempt:
            return entry
    return None
