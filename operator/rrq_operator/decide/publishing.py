"""Which reports on pools are published in Redis, for dashboards: those that are new since the last time. Pure.

The latest report on each pool is published within a second of any change. The history of a pool gets an entry when its size
or the reason for it changes, and every few seconds while only figures do, so that it reaches back for hours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rrq.broker.messages import Observation
from rrq.flow import PoolReport
from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.api.spec import Pool

#: No pool is published more often.
_SHORTEST_SECONDS = 1.0
_FIGURES_SECONDS = 15.0
#: Also what stays the same is published again, or a quiet pool would look like one that no operator looks after.
_FRESH_SECONDS = 60.0
#: A pool that no operator has published for so long counts as gone: it was deleted while no operator ran.
_STALE_MS = 600_000


def build_report(
    pool: Pool, queues: Sequence[str], status: PoolStatus, seen: Observation | None
) -> PoolReport | None:
    """Return the report on a pool; None while its queues cannot be read."""
    if seen is None:
        return None
    decision = status.last_decision
    return PoolReport(
        pool=pool.qualified_name,
        type=pool.spec.type,
        queues=tuple(queues),
        replicas=status.replicas or 0,
        ready=status.ready_replicas or 0,
        desired=status.desired_replicas or 0,
        due=status.due,
        blocked=status.blocked,
        busy=sum(worker.busy for worker in seen.workers.values()),
        reason=status.reason or "",
        words="" if decision is None else decision.words or "",
        at_ms=seen.now_ms,
        is_paused=pool.pause_target in seen.paused,
    )


@dataclass(frozen=True)
class Publication:
    """What to publish now."""

    reports: tuple[PoolReport, ...] = ()
    decided: frozenset[str] = frozenset()
    """The pools whose history gets an entry."""
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reports or self.gone)


class Publisher:
    """Remembers what was published of the pools of one Redis. Times are monotonic."""

    def __init__(self) -> None:
        self._latest: dict[str, PoolReport] = {}
        self._published: dict[str, tuple[PoolReport, float]] = {}
        self._decided: dict[str, tuple[PoolReport, float]] = {}
        self._gone: set[str] = set()

    def note(self, report: PoolReport) -> None:
        """Take in how a pool stands."""
        self._latest[report.pool] = report
        self._gone.discard(report.pool)

    def forget(self, pool: str) -> None:
        """Have a pool removed that is gone or has left this Redis."""
        for known in (self._latest, self._published, self._decided):
            known.pop(pool, None)
        self._gone.add(pool)

    def note_strangers(self, published: Iterable[PoolReport], now_ms: int) -> None:
        """Have pools of other operators removed that were not published for long."""
        for report in published:
            if report.pool not in self._latest and report.at_ms < now_ms - _STALE_MS:
                self._gone.add(report.pool)

    def take(self, now: float) -> Publication:
        """Return what is to be published now; it is offered again until it is confirmed."""
        reports = tuple(report for report in self._latest.values() if self._is_news(report, now))
        decided = frozenset(report.pool for report in reports if self._is_decision(report, now))
        return Publication(reports, decided, tuple(sorted(self._gone)))

    def confirm(self, published: Publication, now: float) -> None:
        """Note that this was published."""
        for report in published.reports:
            # One that was forgotten meanwhile stays so.
            if report.pool in self._latest:
                self._published[report.pool] = report, now
                if report.pool in published.decided:
                    self._decided[report.pool] = report, now
        self._gone.difference_update(published.gone)

    def _is_news(self, report: PoolReport, now: float) -> bool:
        if report.pool not in self._published:
            return True
        before, at = self._published[report.pool]
        if now - at >= _FRESH_SECONDS:
            return True
        return now - at >= _SHORTEST_SECONDS and replace(report, at_ms=before.at_ms) != before

    def _is_decision(self, report: PoolReport, now: float) -> bool:
        if report.pool not in self._decided:
            return True
        before, at = self._decided[report.pool]
        if _shape(report) != _shape(before):
            return True
        return now - at >= _FIGURES_SECONDS and (report.due, report.busy) != (before.due, before.busy)


def _shape(report: PoolReport) -> tuple[int, int, int, str]:
    return report.replicas, report.ready, report.desired, report.reason
