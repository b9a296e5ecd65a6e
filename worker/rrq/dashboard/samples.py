"""The numbers of one moment and of the last hour, for tiles and charts. Pure.

Times are milliseconds since 1970, durations seconds; an unknown value is null, never zero.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rrq.dashboard.values import DashboardSnapshot, Json
from rrq.dashboard.views import build_queue_rows, mean_seconds
from rrq.flow import MinuteStats

_MINUTES_KEPT: Final = 60
_TOP_QUEUES: Final = 8
_OUTCOMES: Final = ("done", "retry", "dead", "cancelled", "back")


class MinuteDepths:
    """How deep the queues were in each of the last minutes, which Redis does not store."""

    def __init__(self) -> None:
        self._minutes: dict[int, tuple[int, int]] = {}

    def add(self, snapshot: DashboardSnapshot) -> None:
        minute = snapshot.now_ms // 60_000
        due, running = self._minutes.get(minute, (0, 0))
        self._minutes[minute] = max(due, count_due(snapshot)), max(running, count_running(snapshot))
        self._minutes = {kept: seen for kept, seen in self._minutes.items() if kept > minute - _MINUTES_KEPT}

    def get(self, minute: int) -> tuple[int, int] | None:
        return self._minutes.get(minute)


def count_due(snapshot: DashboardSnapshot) -> int:
    return sum(queue.due for queue in snapshot.queues.values())


def count_running(snapshot: DashboardSnapshot) -> int:
    return sum(worker.busy for worker in snapshot.workers.values())


def build_sample(previous: DashboardSnapshot | None, snapshot: DashboardSnapshot) -> Json:
    """Return the numbers of one moment; rates are relative to the previous snapshot."""
    ages = [queue.oldest_due_age_seconds for queue in snapshot.queues.values()]
    known_ages = [age for age in ages if age is not None]
    rows = sorted(build_queue_rows(snapshot, with_minutes=False), key=lambda row: (-row["due"], row["name"]))
    return {
        "at_ms": snapshot.now_ms,
        "rates": _build_rates(previous, snapshot),
        "wait_seconds": _build_live_wait(previous, snapshot),
        "due": count_due(snapshot),
        "later": sum(queue.due_soon + queue.later for queue in snapshot.queues.values()),
        "orphaned": sum(queue.orphaned for queue in snapshot.queues.values()),
        "blocked": sum(snapshot.flow.blocked.values()),
        "oldest_seconds": max(known_ages, default=None),
        "running": count_running(snapshot),
        "capacity": sum(worker.capacity for worker in snapshot.workers.values()),
        "workers": len(snapshot.workers),
        "draining": sum(worker.is_draining for worker in snapshot.workers.values()),
        "dead_letters": snapshot.dead_letters,
        "paused": sum(pause.state == "paused" for pause in snapshot.flow.pauses.values()),
        "queue_count": len(rows),
        "queues": rows[:_TOP_QUEUES],
        "minutes": [_build_minute(stats) for stats in snapshot.minutes[-2:]],
    }


def build_history(snapshot: DashboardSnapshot, samples: Sequence[Json], depths: MinuteDepths) -> Json:
    """Return what a newly opened page needs."""
    minutes = []
    for stats in snapshot.minutes:
        depth = depths.get(stats.minute)
        due, running = depth if depth is not None else (None, None)
        minutes.append({**_build_minute(stats), "due": due, "running": running})
    # Only the newest sample is shown in full; the others are only points in charts.
    short = [{**sample, "queues": [], "minutes": []} for sample in samples[:-1]]
    return {"minutes": minutes, "samples": [*short, *samples[-1:]]}


def _build_rates(previous: DashboardSnapshot | None, snapshot: DashboardSnapshot) -> Json | None:
    if previous is None or snapshot.now_ms <= previous.now_ms:
        return None
    seconds = (snapshot.now_ms - previous.now_ms) / 1000
    rates: Json = {}
    for name in _OUTCOMES:
        ended = snapshot.counters.get(name, 0) - previous.counters.get(name, 0)
        if ended < 0:
            # Redis was restarted, so the rate of this second is unknown.
            return None
        rates[name] = ended / seconds
    return rates


def _build_live_wait(previous: DashboardSnapshot | None, snapshot: DashboardSnapshot) -> float | None:
    if previous is None:
        return None
    before = {stats.minute: _add_up(stats) for stats in previous.minutes[-2:]}
    started = waited_ms = 0
    for stats in snapshot.minutes[-2:]:
        now, then = _add_up(stats), before.get(stats.minute, Counter())
        started += now["started"] - then["started"]
        waited_ms += now["wait_ms"] - then["wait_ms"]
    return waited_ms / started / 1000 if started > 0 else None


def _build_minute(stats: MinuteStats) -> Json:
    total = _add_up(stats)
    slowest = max((queue.get("wait_max_ms", 0) for queue in stats.queues.values()), default=0)
    return {
        "at_ms": stats.minute * 60_000,
        **{name: stats.ended.get(name, 0) for name in _OUTCOMES},
        "started": total["started"],
        "wait_seconds": mean_seconds(total, "wait_ms", total["started"]),
        "wait_max_seconds": slowest / 1000 if total["started"] else None,
    }


def _add_up(stats: MinuteStats) -> Counter[str]:
    total: Counter[str] = Counter()
    for queue in stats.queues.values():
        total.update(queue)
    return total
