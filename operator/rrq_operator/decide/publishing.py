"""What Redis is told of pools, for dashboards: what is new since the last time, and no more. Pure.

The latest of each pool is told within a second of any change. Its history gets an entry when its size or the reason for
it changes, and every few seconds while only figures do, so that it reaches back for hours.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rrq.flow import PoolReport

#: No pool is told of more often.
_SHORTEST_SECONDS = 1.0
_FIGURES_SECONDS = 15.0
#: Also what stays the same is told again, or nobody could tell a quiet pool from one that nobody looks after.
_FRESH_SECONDS = 60.0
#: After so long without news of it a pool is taken for gone: it was deleted while no operator ran.
_STALE_MS = 600_000


@dataclass(frozen=True)
class Publication:
    """What to tell now."""

    reports: tuple[PoolReport, ...] = ()
    decided: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reports or self.gone)


class Publisher:
    """Remembers what was told of the pools of one Redis. Times are monotonic."""

    def __init__(self) -> None:
        self._latest: dict[str, PoolReport] = {}
        self._told: dict[str, tuple[PoolReport, float]] = {}
        self._decided: dict[str, tuple[PoolReport, float]] = {}
        self._gone: set[str] = set()

    def note(self, report: PoolReport) -> None:
        """Take in how a pool stands."""
        self._latest[report.pool] = report
        self._gone.discard(report.pool)

    def forget(self, pool: str) -> None:
        """Have a pool forgotten that is gone or has left this Redis."""
        for known in (self._latest, self._told, self._decided):
            known.pop(pool, None)
        self._gone.add(pool)

    def note_strangers(self, published: Iterable[PoolReport], now_ms: int) -> None:
        """Have those of others forgotten that nobody has told of for long."""
        for report in published:
            if report.pool not in self._latest and report.at_ms < now_ms - _STALE_MS:
                self._gone.add(report.pool)

    def take(self, now: float) -> Publication:
        """Return what is to be told now; it is offered again until it is confirmed."""
        reports = tuple(report for report in self._latest.values() if self._is_news(report, now))
        decided = frozenset(report.pool for report in reports if self._is_decision(report, now))
        return Publication(reports, decided, tuple(sorted(self._gone)))

    def confirm(self, told: Publication, now: float) -> None:
        """Note that this was told."""
        for report in told.reports:
            # One that was forgotten meanwhile stays so.
            if report.pool in self._latest:
                self._told[report.pool] = report, now
                if report.pool in told.decided:
                    self._decided[report.pool] = report, now
        self._gone.difference_update(told.gone)

    def _is_news(self, report: PoolReport, now: float) -> bool:
        if report.pool not in self._told:
            return True
        before, at = self._told[report.pool]
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
