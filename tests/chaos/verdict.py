"""Judges a run: ledger, faults and final state in, a report with its violations out. Pure.

Lost is what was acknowledged and never had its effect. Only two things excuse it, and both are counted apart: Redis
itself forgot it (its hash is gone, nobody started it after the fault, and its acknowledgement lies in the last moments
before a fault in which Redis may forget), or an RRQ 0.7.1 worker was the last to take it, and lost it. Times are
judged in `judged_times.py`, reruns in `reruns.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from chaos_ledger import EFFECT, STARTED, TAKEN
from evidence import MAIN
from judged_times import CHILD, POD, SUPERVISOR, JudgedTimes, spread_of
from reruns import find_reruns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evidence import Evidence, Injected
    from judged_times import Bars, Spread
    from reruns import Rerun

FEW = 5
AFTER_SECONDS = 10.0
# A few have nobody to hit: the pod was just being started again.
LEAST_INJECTED_SHARE = 0.95


@dataclass(frozen=True)
class KindReport:
    """What one kind of fault did."""

    kind: str
    injected: int
    reruns: int = 0
    repeated_effects: int = 0
    rerun: Spread | None = None
    due_again: Spread | None = None
    throughput_during: float | None = None
    throughput_after: float | None = None
    backlog_gone: Spread | None = None


@dataclass(frozen=True)
class Report:
    """What a run found; `violations` is empty when every promise held."""

    jobs: int
    effects: int
    faults: int
    outages: int
    lost: int
    lost_by_redis: int
    lost_by_legacy: int
    reruns: int
    reruns_by_fault: int
    repeated_by_fault: int
    reruns_of_legacy: int
    reruns_by_redis: int
    unexplained_reruns: int
    repeated_effects: int
    fenced: int
    poison: int
    poison_in_dead_letters: int
    refused: int
    legacy_jobs: int
    legacy_restarts: int
    stalled_seconds: float
    load_seconds: float
    usual_throughput: float
    due_again_child: Spread | None
    due_again_supervisor: Spread | None
    due_again_pod: Spread | None
    backlog_gone: Spread | None
    kinds: list[KindReport] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def _left_with_legacy(evidence: Evidence) -> set[str]:
    """Jobs that an 0.7.1 worker was the last to have: whatever one of ours started after that is ours to answer for."""
    taken: set[str] = set()
    for entry in evidence.ledger:
        if entry.event == TAKEN:
            taken.add(entry.job_id)
        elif entry.event == STARTED and entry.pid not in evidence.legacy_pids:
            taken.discard(entry.job_id)
    return taken


def find_shortfalls(
    planned: int, injected: int, left_out: int, jobs_planned: int, jobs: int
) -> Iterator[str]:
    """Yield what a run lacks of what was planned: one that did less has shown less.

    `left_out` are faults that this machine cannot have, which is no fault of the run.
    """
    possible = planned - left_out
    if injected < LEAST_INJECTED_SHARE * possible:
        yield f"only {injected} of {possible} planned faults were injected"
    if jobs < jobs_planned:
        yield f"only {jobs} of {jobs_planned} planned jobs were acknowledged"


def judge(evidence: Evidence, bars: Bars) -> Report:
    """Return what happened and every promise that was broken."""
    return _Judge(evidence, bars).judge()


class _Judge:
    def __init__(self, evidence: Evidence, bars: Bars) -> None:
        self._evidence = evidence
        self._bars = bars
        self._times = JudgedTimes(evidence, bars)
        self._violations = list(evidence.complaints)
        self._last_start = {entry.job_id: entry.at for entry in evidence.ledger if entry.event == STARTED}
        self._effects = Counter(entry.job_id for entry in evidence.ledger if entry.event == EFFECT)
        self._last_effect = {entry.job_id: entry.pid for entry in evidence.ledger if entry.event == EFFECT}
        self._taken = _left_with_legacy(evidence)
        self._poison = {job_id for fault in evidence.faults for job_id in fault.poison}

    def judge(self) -> Report:
        evidence = self._evidence
        lost, by_redis, by_legacy = self._judge_losses()
        reruns = list(find_reruns(evidence, self._bars.report_seconds))
        own = [rerun for rerun in reruns if not rerun.is_legacy]
        by_fault = [rerun for rerun in own if rerun.cause is not None]
        unexplained = [rerun for rerun in own if rerun.cause is None and not rerun.is_forgotten]
        for rerun in unexplained[:FEW]:
            self._violations.append(
                f"job {rerun.job_id} ran again without a cause: {rerun.cut}, then {rerun.successor}"
            )
        if len(unexplained) > FEW:
            self._violations.append(f"{len(unexplained)} attempts ran again without a cause")
        poison_seen = self._judge_dead_letters()
        self._judge_final_states()
        rates = self._rates()
        kinds = [self._judge_kind(kind, own, rates) for kind in sorted({f.kind for f in evidence.faults})]
        for kind in (CHILD, SUPERVISOR, POD):
            self._violations += self._times.find_late(kind)
        self._violations += self._times.find_backlogs()
        return Report(
            jobs=sum(len(part) for part in evidence.acknowledged.values()),
            effects=len(self._effects),
            faults=len(evidence.faults),
            outages=sum(fault.is_outage for fault in evidence.faults),
            lost=lost,
            lost_by_redis=by_redis,
            lost_by_legacy=by_legacy,
            reruns=len(own),
            reruns_by_fault=len(by_fault),
            repeated_by_fault=sum(rerun.had_effect for rerun in by_fault),
            reruns_of_legacy=len(reruns) - len(own),
            reruns_by_redis=sum(rerun.cause is None and rerun.is_forgotten for rerun in own),
            unexplained_reruns=len(unexplained),
            repeated_effects=sum(count - 1 for count in self._effects.values()),
            fenced=evidence.fenced,
            poison=len(self._poison),
            poison_in_dead_letters=poison_seen,
            refused=evidence.refused,
            legacy_jobs=len(
                {e.job_id for e in evidence.ledger if e.pid in evidence.legacy_pids and e.event == EFFECT}
            ),
            legacy_restarts=evidence.legacy_restarts,
            stalled_seconds=round(
                sum(stall.ended_at - stall.begun_at for stall in evidence.stalls if stall.part == MAIN), 1
            ),
            load_seconds=round(evidence.load_ended_at - evidence.load_begun_at, 1),
            usual_throughput=round(median(rates.values()), 1) if rates else 0.0,
            due_again_child=self._times.due_again(CHILD),
            due_again_supervisor=self._times.due_again(SUPERVISOR),
            due_again_pod=self._times.due_again(POD),
            backlog_gone=self._times.backlog_gone(evidence.faults),
            kinds=kinds,
            left_out=list(evidence.left_out),
            violations=self._violations,
        )

    # Jobs

    def _judge_losses(self) -> tuple[int, int, int]:
        lost, by_redis, by_legacy = [], [], []
        not_durable = 0
        for part, acknowledged in self._evidence.acknowledged.items():
            forgetful = [
                fault for fault in self._evidence.faults if fault.part == part and fault.loses is not None
            ]
            statuses = self._evidence.states[part].statuses
            for job_id, at in acknowledged.items():
                if job_id in self._effects or job_id in self._poison:
                    continue
                if statuses.get(job_id) is None and self._is_forgotten(job_id, at, forgetful):
                    by_redis.append(job_id)
                    not_durable += part in self._bars.durable_parts
                elif job_id in self._taken:
                    by_legacy.append(job_id)
                else:
                    lost.append(f"{job_id} ({part}, now {statuses.get(job_id)})")
        if lost:
            self._violations.append(f"{len(lost)} acknowledged jobs are lost: {', '.join(lost[:FEW])}")
        if not_durable:
            self._violations.append(
                f"{not_durable} acknowledged jobs are gone from Redis, which the durability asked for rules out"
            )
        return len(lost), len(by_redis), len(by_legacy)

    def _is_forgotten(self, job_id: str, acknowledged_at: float, forgetful: Sequence[Injected]) -> bool:
        # A job whose hash is gone may have been in hand when it went: an attempt that did not bring it to its end.
        last_start = self._last_start.get(job_id, acknowledged_at)
        return any(
            fault.loses is not None
            and fault.loses[0] <= acknowledged_at <= fault.loses[1]
            and last_start <= fault.ended_at
            for fault in forgetful
        )

    def _judge_dead_letters(self) -> int:
        dead = {job_id for state in self._evidence.states.values() for job_id in state.dead_letters}
        innocent, missing = dead - self._poison, self._poison - dead
        if innocent:
            self._violations.append(
                f"{len(innocent)} innocent jobs are among the dead letters: {sorted(innocent)[:FEW]}"
            )
        if missing:
            self._violations.append(
                f"{len(missing)} poison jobs are not among the dead letters: {sorted(missing)[:FEW]}"
            )
        return len(self._poison & dead)

    def _judge_final_states(self) -> None:
        for part, state in self._evidence.states.items():
            stuck = [
                f"{job_id} {status}"
                for job_id, status in state.statuses.items()
                if status not in ("COMPLETED", None)
                and job_id in self._effects
                and not self._is_stuck_with_legacy(job_id)
                and job_id not in self._poison
            ]
            if stuck:
                self._violations.append(
                    f"{len(stuck)} jobs of part {part} had their effect and never ended: {stuck[:FEW]}"
                )
            if state.left_keys:
                self._violations.append(
                    f"{len(state.left_keys)} keys of part {part} are left over: {list(state.left_keys)[:FEW]}"
                )

    def _is_stuck_with_legacy(self, job_id: str) -> bool:
        """What an 0.7.1 worker ran itself and could not report stays as it left it; what ours ran does not."""
        return job_id in self._taken and self._last_effect[job_id] in self._evidence.legacy_pids

    # Times

    def _rates(self) -> dict[int, int]:
        """Effects per second of the load, by the second."""
        begun_at, ended_at = self._evidence.load_begun_at, self._evidence.load_ended_at
        rates: dict[int, int] = dict.fromkeys(range(int(max(0.0, ended_at - begun_at))), 0)
        for entry in self._evidence.ledger:
            if entry.event == EFFECT and begun_at <= entry.at < ended_at:
                second = int(entry.at - begun_at)
                if second in rates:
                    rates[second] += 1
        return rates

    def _judge_kind(self, kind: str, reruns: Sequence[Rerun], rates: dict[int, int]) -> KindReport:
        faults = [fault for fault in self._evidence.faults if fault.kind == kind]
        caused = [
            (rerun, rerun.cause) for rerun in reruns if rerun.cause is not None and rerun.cause.kind == kind
        ]
        during, after = [], []
        for fault in faults:
            during += self._rates_between(rates, fault.begun_at, max(fault.ended_at, fault.begun_at + 1))
            after += self._rates_between(rates, fault.ended_at, fault.ended_at + AFTER_SECONDS)
        return KindReport(
            kind,
            len(faults),
            reruns=len(caused),
            repeated_effects=sum(rerun.had_effect for rerun, _ in caused),
            rerun=spread_of([max(0.0, rerun.successor.at - cause.begun_at) for rerun, cause in caused]),
            due_again=self._times.due_again(kind),
            throughput_during=round(sum(during) / len(during), 1) if during else None,
            throughput_after=round(sum(after) / len(after), 1) if after else None,
            backlog_gone=self._times.backlog_gone(faults),
        )

    def _rates_between(self, rates: dict[int, int], begin: float, end: float) -> list[int]:
        offset = self._evidence.load_begun_at
        return [
            rates[second] for second in range(int(begin - offset), int(end - offset) + 1) if second in rates
        ]
