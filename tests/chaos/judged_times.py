"""Judges the times of a run: when the jobs of the dead were due again, and when a backlog was gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evidence import MAIN, STALL
from reruns import RENEWALS_PER_LEASE, REPORT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evidence import DueAgain, Evidence, Injected

CHILD, SUPERVISOR, POD = "child killed", "supervisor killed", "pod killed"
FEW = 5
RECONNECT_SECONDS = 2.0
# A kind that was injected so often where it could be measured, and never was, is one that nobody judges.
OFTEN = 3
# Jobs that wait for less than this are no backlog: at half capacity it is what one batch makes.
BACKLOG_SECONDS_OF_LOAD = 0.5
NEVER_SECONDS = 1e6
# Of a grace period and what comes after it: so long an orphan may try to end its jobs before it is ended.
DRAIN_SECONDS = 12.0
# For a sweep to be noticed as due, to come and to be done; what is left of a short lease is too little for that.
LEAST_SWEEP_SECONDS = 2.0


@dataclass(frozen=True)
class Bars:
    """What is promised with the default lease of 15 s.

    `report_seconds` is how long an outcome may be on its way to Redis when nothing is in its way.
    """

    child_due_again_seconds: float = 1.0
    supervisor_due_again_seconds: float = 20.0
    pod_due_again_seconds: float = 20.0
    backlog_seconds: float = 30.0
    report_seconds: float = REPORT_SECONDS
    #: Where producers wait until a job is safe, and Redis may forget none that it acknowledged.
    durable_parts: frozenset[str] = frozenset()


def build_bars(lease_seconds: float, room: float = 1.0, durable_parts: frozenset[str] = frozenset()) -> Bars:
    """Return the bars of a run.

    `room` stretches what takes longer on a machine that has other things to do. The time that a lease or a grace period
    takes by itself is the same everywhere, and counts get no room.
    """
    renewal_seconds = lease_seconds / RENEWALS_PER_LEASE
    return Bars(
        child_due_again_seconds=room,
        supervisor_due_again_seconds=DRAIN_SECONDS + (renewal_seconds + 3.0) * room,
        pod_due_again_seconds=lease_seconds + max(LEAST_SWEEP_SECONDS, renewal_seconds) * room,
        backlog_seconds=30.0 * room,
        report_seconds=REPORT_SECONDS * room,
        durable_parts=durable_parts,
    )


@dataclass(frozen=True)
class Spread:
    """Times in seconds."""

    count: int
    p50: float
    p99: float
    most: float


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


def _puts_off_seconds(outage: Injected) -> float:
    """How much later a backlog may be gone because of an outage in its middle, and no longer than that.

    Nothing is done while Redis is away and until everybody is back, or while the machine stands still. What comes in meanwhile needs as long again at half
    of the capacity.
    """
    return 2 * (outage.ended_at - outage.begun_at) + (RECONNECT_SECONDS if outage.is_outage else 0.0)


class JudgedTimes:
    """What the times say, and which of them broke a bar."""

    def __init__(self, evidence: Evidence, bars: Bars) -> None:
        self._evidence = evidence
        self._bars = bars
        self._most_waiting = max(1.0, BACKLOG_SECONDS_OF_LOAD * evidence.jobs_per_second)
        #: When nothing could be done, be it that Redis was away or that the machine itself stood still.
        self._outages = sorted(
            (
                fault
                for fault in (*evidence.faults, *evidence.stalls)
                if fault.part == MAIN and (fault.is_outage or fault.kind == STALL)
            ),
            key=lambda outage: outage.begun_at,
        )

    # Due again

    def due_again(self, kind: str) -> Spread | None:
        """Times of those whose story no outage of Redis blurs; it has to be there for jobs to be given back."""
        return spread_of(
            [
                one.seconds
                for one in self._evidence.due_again
                if one.kind == kind and one.seconds is not None and not self._is_blurred(one, one.seconds)
            ]
        )

    def find_late(self, kind: str) -> Iterator[str]:
        """Yield what is wrong about the jobs of processes that died in this way."""
        limit = {
            CHILD: self._bars.child_due_again_seconds,
            SUPERVISOR: self._bars.supervisor_due_again_seconds,
            POD: self._bars.pod_due_again_seconds,
        }[kind]
        spread = self.due_again(kind)
        if spread is not None and spread.p99 >= limit:
            yield f"{kind}: jobs were due again after {spread.p99:.2f} s (p99), {limit:g} s are allowed"
        never = [one for one in self._evidence.due_again if one.kind == kind and one.seconds is None]
        if never:
            yield f"{kind}: the jobs of {len(never)} were never given back"
        clear = self._count_clear(kind)
        if spread is None and clear >= OFTEN:
            yield f"{kind}: {clear} were injected away from every outage, and the time of none was measured"

    def _count_clear(self, kind: str) -> int:
        """How many faults of the kind had their lease to run out in while nothing else was wrong with Redis."""
        lease_seconds = self._evidence.lease_seconds
        return sum(
            not any(
                begin <= fault.begun_at + lease_seconds and fault.begun_at <= end
                for begin, end in self._blurs(kind)
            )
            for fault in self._evidence.faults
            if fault.kind == kind
        )

    def _blurs(self, kind: str) -> list[tuple[float, float]]:
        # A certificate needs only the connection back; a lease is not swept for a whole one after an outage.
        after_seconds = RECONNECT_SECONDS if kind == CHILD else 2 * self._evidence.lease_seconds
        return [
            (fault.begun_at, fault.ended_at + after_seconds)
            for fault in self._evidence.faults
            if fault.part == MAIN and (fault.is_outage or fault.kind.startswith("clock of Redis"))
        ] + [(stall.begun_at, stall.ended_at + RECONNECT_SECONDS) for stall in self._evidence.stalls]

    def _is_blurred(self, one: DueAgain, seconds: float) -> bool:
        # The network of a pod matters to its own jobs only: whoever else sweeps has a network of its own. So does its
        # supervisor: one that is killed before it has told of its child leaves the jobs to the end of the lease.
        own_kinds = ("network", "replies", *((SUPERVISOR, POD) if one.kind == CHILD else ()))
        own = [
            (fault.begun_at, fault.ended_at + RECONNECT_SECONDS)
            for fault in self._evidence.faults
            if fault.kind.startswith(own_kinds) and set(fault.pids) & set(one.pids)
        ]
        return any(
            begin <= one.begun_at + seconds and one.begun_at <= end
            for begin, end in (*self._blurs(one.kind), *own)
        )

    # Backlog

    def backlog_gone(self, faults: Sequence[Injected]) -> Spread | None:
        """How long after the end of each fault the jobs that had gathered were gone."""
        return spread_of([max(0.0, seconds) for _, seconds in self._backlogs(faults)])

    def find_backlogs(self) -> Iterator[str]:
        """Yield which backlogs stayed: those of a fault, and those that grew later, for whatever reason."""
        bar = self._bars.backlog_seconds
        late = [
            f"{fault.number} ({fault.kind})"
            for fault, seconds in self._backlogs(self._evidence.faults)
            if fault.ended_at + seconds > self._gone_by(fault)
        ]
        if late:
            yield f"the backlog of {len(late)} faults was not gone within {bar:g} s: {', '.join(late[:FEW])}"
        for begin, end in self._stretches():
            allowed = bar + sum(
                _puts_off_seconds(outage)
                for outage in self._outages
                if outage.begun_at <= end and outage.ended_at >= begin
            )
            if end - begin > allowed:
                at = begin - self._evidence.load_begun_at
                yield (
                    f"more jobs waited than {self._most_waiting:g} for {end - begin:.0f} s from {at:.0f} s on, "
                    f"{allowed:.0f} s are allowed"
                )

    def _gone_by(self, fault: Injected) -> float:
        """Return until when the jobs that gathered in a fault have to be gone: later where Redis goes away meanwhile."""
        until = fault.ended_at + self._bars.backlog_seconds
        for outage in self._outages:
            if outage is not fault and outage.ended_at > fault.ended_at and outage.begun_at <= until:
                until += _puts_off_seconds(outage)
        return until

    def _backlogs(self, faults: Sequence[Injected]) -> Iterator[tuple[Injected, float]]:
        if not self._evidence.samples:
            return
        calm = [
            sample.at
            for sample in self._evidence.samples
            if sample.backlog is not None and sample.backlog <= self._most_waiting
        ]
        for fault in faults:
            if fault.part == MAIN:
                gone_at = next((at for at in calm if at >= fault.ended_at), fault.ended_at + NEVER_SECONDS)
                yield fault, gone_at - fault.ended_at

    def _stretches(self) -> Iterator[tuple[float, float]]:
        """Yield from when to when too many waited, or Redis did not say how many."""
        begun_at: float | None = None
        last_at = 0.0
        for sample in self._evidence.samples:
            is_calm = sample.backlog is not None and sample.backlog <= self._most_waiting
            if is_calm:
                if begun_at is not None:
                    yield begun_at, last_at
                begun_at = None
                continue
            begun_at = sample.at if begun_at is None else begun_at
            last_at = sample.at
        if begun_at is not None:
            yield begun_at, last_at
