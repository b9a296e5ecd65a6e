"""Judges a run: ledger, faults and final state in, a report with its violations out. Pure.

Lost is what was acknowledged and never had its effect. Only two things excuse it, and both are counted apart: Redis
itself forgot it (its hash is gone, nobody started it after the fault, and its acknowledgement lies in the last moments
before a fault in which Redis may forget), or an RRQ 0.7.1 worker took it from its queue and lost it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from chaos_ledger import EFFECT, STARTED, TAKEN
from injected import MAIN
from reruns import find_reruns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidence import Evidence
    from injected import Injected
    from reruns import Rerun

CHILD, POD = "child killed", "pod killed"
FEW = 5
RECONNECT_SECONDS = 2.0
AFTER_SECONDS = 10.0
# Jobs that wait for less than this are no backlog: at half capacity it is what one batch makes.
BACKLOG_SECONDS_OF_LOAD = 0.5


@dataclass(frozen=True)
class Bars:
    """What the times are held against."""

    child_due_again_seconds: float = 1.0
    pod_due_again_seconds: float = 20.0
    backlog_seconds: float = 30.0
    #: Where producers wait until a job is safe, and Redis may forget none that it acknowledged.
    durable_parts: frozenset[str] = frozenset()

    def with_room(self, factor: float) -> Bars:
        """Return the same bars for a machine that has other things to do; counts get no room."""
        return Bars(
            self.child_due_again_seconds * factor,
            self.pod_due_again_seconds * factor,
            self.backlog_seconds * factor,
            self.durable_parts,
        )


@dataclass(frozen=True)
class Spread:
    """Times in seconds."""

    count: int
    p50: float
    p99: float
    most: float


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
    load_seconds: float
    usual_throughput: float
    due_again_child: Spread | None
    due_again_pod: Spread | None
    backlog_gone: Spread | None
    kinds: list[KindReport] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def judge(evidence: Evidence, bars: Bars) -> Report:
    """Return what happened and every promise that was broken."""
    return _Judge(evidence, bars).judge()


class _Judge:
    def __init__(self, evidence: Evidence, bars: Bars) -> None:
        self._evidence = evidence
        self._bars = bars
        self._violations = list(evidence.complaints)
        self._last_start = {entry.job_id: entry.at for entry in evidence.ledger if entry.event == STARTED}
        self._effects = Counter(entry.job_id for entry in evidence.ledger if entry.event == EFFECT)
        self._taken = {entry.job_id for entry in evidence.ledger if entry.event == TAKEN}
        self._poison = {job_id for fault in evidence.faults for job_id in fault.poison}

    def judge(self) -> Report:
        evidence = self._evidence
        lost, by_redis, by_legacy = self._judge_losses()
        reruns = list(find_reruns(evidence))
        own = [rerun for rerun in reruns if not rerun.is_legacy]
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
        child, pod = self._judge_due_again(CHILD), self._judge_due_again(POD)
        return Report(
            jobs=sum(len(part) for part in evidence.acknowledged.values()),
            effects=len(self._effects),
            faults=len(evidence.faults),
            outages=sum(fault.is_outage for fault in evidence.faults),
            lost=lost,
            lost_by_redis=by_redis,
            lost_by_legacy=by_legacy,
            reruns=len(own),
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
            load_seconds=round(evidence.load_ended_at - evidence.load_begun_at, 1),
            usual_throughput=round(median(rates.values()), 1) if rates else 0.0,
            due_again_child=child,
            due_again_pod=pod,
            backlog_gone=self._judge_backlog(evidence.faults, is_judged=True),
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
                # What an 0.7.1 worker ran and could not report stays as it left it.
                if status not in ("COMPLETED", None)
                and job_id in self._effects
                and job_id not in self._taken
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

    # Times

    def _judge_due_again(self, kind: str) -> Spread | None:
        limit = {CHILD: self._bars.child_due_again_seconds, POD: self._bars.pod_due_again_seconds}[kind]
        spread = self._due_again(kind)
        if spread is not None and spread.p99 >= limit:
            self._violations.append(
                f"{kind}: jobs were due again after {spread.p99:.2f} s (p99), {limit:g} s are allowed"
            )
        never = [one for one in self._evidence.due_again if one.kind == kind and one.seconds is None]
        if never:
            self._violations.append(f"{kind}: the jobs of {len(never)} were never given back")
        return spread

    def _due_again(self, kind: str) -> Spread | None:
        """Times of those whose story no outage of Redis blurs; it has to be there for jobs to be given back."""
        # A certificate needs only the connection back; a lease is not swept for a whole one after an outage.
        blurred_seconds = RECONNECT_SECONDS if kind == CHILD else 2 * self._evidence.lease_seconds
        outages = [
            (fault.begun_at, fault.ended_at + blurred_seconds)
            for fault in self._evidence.faults
            if fault.part == MAIN
            and (fault.is_outage or fault.kind.startswith(("clock of Redis", "network", "replies")))
        ]
        return spread_of(
            [
                one.seconds
                for one in self._evidence.due_again
                if one.kind == kind
                and one.seconds is not None
                and not any(
                    begin <= one.begun_at + one.seconds and one.begun_at <= end for begin, end in outages
                )
            ]
        )

    def _judge_backlog(self, faults: Sequence[Injected], *, is_judged: bool = False) -> Spread | None:
        """How long after the end of each fault the jobs that had gathered were gone."""
        most = max(1.0, BACKLOG_SECONDS_OF_LOAD * self._evidence.jobs_per_second)
        calm = [
            sample.at
            for sample in self._evidence.samples
            if sample.backlog is not None and sample.backlog <= most
        ]
        if not self._evidence.samples:
            return None
        last_at = self._evidence.samples[-1].at
        times, late = [], []
        for fault in faults:
            if fault.part != MAIN:
                continue
            gone_at = next((at for at in calm if at >= fault.ended_at), None)
            seconds = (gone_at if gone_at is not None else last_at + 1e6) - fault.ended_at
            times.append(max(0.0, seconds))
            if seconds > self._bars.backlog_seconds:
                late.append(f"{fault.number} ({fault.kind})")
        if is_judged and late:
            self._violations.append(
                f"the backlog of {len(late)} faults was not gone within {self._bars.backlog_seconds:g} s: "
                f"{', '.join(late[:FEW])}"
            )
        return spread_of(times)

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
            due_again=self._due_again(kind),
            throughput_during=round(sum(during) / len(during), 1) if during else None,
            throughput_after=round(sum(after) / len(after), 1) if after else None,
            backlog_gone=self._judge_backlog(faults),
        )

    def _rates_between(self, rates: dict[int, int], begin: float, end: float) -> list[int]:
        offset = self._evidence.load_begun_at
        return [
            rates[second] for second in range(int(begin - offset), int(end - offset) + 1) if second in rates
        ]


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """Return the middle and the end of a set of times; None of none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Spread(
        len(ordered),
        round(ordered[(len(ordered) - 1) // 2], 3),
        round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        round(ordered[-1], 3),
    )


def count_by_kind(faults: Sequence[Injected]) -> dict[str, int]:
    """How often each kind was injected."""
    counts: dict[str, int] = defaultdict(int)
    for fault in faults:
        counts[fault.kind] += 1
    return dict(sorted(counts.items()))
