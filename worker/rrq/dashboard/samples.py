"""The numbers of one moment and of the last hour, for tiles and charts. Pure.

Times are milliseconds since 1970, durations seconds; what is not known is null and never zero.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rrq.dashboard.values import Json, Picture
from rrq.dashboard.views import build_queue_rows, mean_seconds
from rrq.flow import MinuteStats

_MINUTES_KEPT: Final = 60
_TOP_QUEUES: Final = 8
_OUTCOMES: Final = ("done", "retry", "dead", "cancelled", "back")


class MinuteDepths:
    """How deep the queues were in each of the last minutes: nobody else keeps that."""

    def __init__(self) -> None:
        self._minutes: dict[int, tuple[int, int]] = {}

    def add(self, picture: Picture) -> None:
        minute = picture.now_ms // 60_000
        due, running = self._minutes.get(minute, (0, 0))
        self._minutes[minute] = max(due, count_due(picture)), max(running, count_running(picture))
        self._minutes = {kept: seen for kept, seen in self._minutes.items() if kept > minute - _MINUTES_KEPT}

    def get(self, minute: int) -> tuple[int, int] | None:
        return self._minutes.get(minute)


def count_due(picture: Picture) -> int:
    return sum(queue.due for queue in picture.queues.values())


def count_running(picture: Picture) -> int:
    return sum(worker.busy for worker in picture.workers.values())


def build_sample(previous: Picture | None, picture: Picture) -> Json:
    """Return the numbers of one moment; rates are since the picture before."""
    ages = [queue.oldest_due_age_seconds for queue in picture.queues.values()]
    known_ages = [age for age in ages if age is not None]
    rows = sorted(build_queue_rows(picture, with_minutes=False), key=lambda row: (-row["due"], row["name"]))
    return {
        "at_ms": picture.now_ms,
        "rates": _build_rates(previous, picture),
        "wait_seconds": _build_live_wait(previous, picture),
        "due": count_due(picture),
        "later": sum(queue.due_soon + queue.later for queue in picture.queues.values()),
        "orphaned": sum(queue.orphaned for queue in picture.queues.values()),
        "parked": sum(picture.flow.blocked.values()),
        "oldest_seconds": max(known_ages, default=None),
        "running": count_running(picture),
        "capacity": sum(worker.capacity for worker in picture.workers.values()),
        "workers": len(picture.workers),
        "draining": sum(worker.is_draining for worker in picture.workers.values()),
        "dead_letters": picture.dead_letters,
        "paused": sum(pause.state == "paused" for pause in picture.flow.pauses.values()),
        "queue_count": len(rows),
        "queues": rows[:_TOP_QUEUES],
        "minutes": [_build_minute(stats) for stats in picture.minutes[-2:]],
    }


def build_history(picture: Picture, samples: Sequence[Json], depths: MinuteDepths) -> Json:
    """Return what a page needs that has just been opened."""
    minutes = []
    for stats in picture.minutes:
        depth = depths.get(stats.minute)
        due, running = depth if depth is not None else (None, None)
        minutes.append({**_build_minute(stats), "due": due, "running": running})
    # Only the newest sample is shown in full; the others are points in charts.
    short = [{**sample, "queues": [], "minutes": []} for sample in samples[:-1]]
    return {"minutes": minutes, "samples": [*short, *samples[-1:]]}


def _build_rates(previous: Picture | None, picture: Picture) -> Json | None:
    if previous is None or picture.now_ms <= previous.now_ms:
        return None
    seconds = (picture.now_ms - previous.now_ms) / 1000
    rates: Json = {}
    for name in _OUTCOMES:
        ended = picture.counters.get(name, 0) - previous.counters.get(name, 0)
        if ended < 0:
            # Redis began anew, so nothing is known about this second.
            return None
        rates[name] = ended / seconds
    return rates


def _build_live_wait(previous: Picture | None, picture: Picture) -> float | None:
    if previous is None:
        return None
    before = {stats.minute: _add_up(stats) for stats in previous.minutes[-2:]}
    started = waited_ms = 0
    for stats in picture.minutes[-2:]:
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
