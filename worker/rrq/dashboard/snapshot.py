"""Reads a snapshot of queues, workers and counters, again and again, without a SCAN.

A queue is found because a script has recorded it: as served, in the counters of a minute, or under a pause or a limit.
"""

from time import monotonic
from typing import Final

from rrq.dashboard.values import DashboardSnapshot
from rrq.flow import FlowState, MinuteStats
from rrq.inspect.dead_letters import count_dead_letters
from rrq.inspect.jobs import read_served_queue_names
from rrq.store import JobStore

MINUTES_SHOWN: Final = 60
_MOST_QUEUES: Final = 500
_MOST_WORKERS: Final = 1_000
_NAMES_FRESH_SECONDS: Final = 5.0
_SERVED_SECONDS: Final = 24 * 3600.0
_MINUTES_NAMED: Final = 15


class SnapshotReader:
    """Reads snapshots repeatedly; keeps what does not change within a second."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._names: list[str] = []
        self._names_until = 0.0
        self._minutes: dict[int, MinuteStats] = {}

    async def run_once(self) -> DashboardSnapshot:
        """Read the snapshot of now."""
        store = self._store
        flow = await store.read_flow()
        await self._read_minutes()
        if monotonic() >= self._names_until:
            self._names = await self._find_names(flow)
            self._names_until = monotonic() + _NAMES_FRESH_SECONDS
        seen = await store.observe(self._names, most_workers=_MOST_WORKERS)
        return DashboardSnapshot(
            seen.now_ms,
            seen.queues,
            seen.workers,
            await store.read_counters(),
            await count_dead_letters(store, store.settings.default_dlq_name),
            flow,
            tuple(self._minutes[minute] for minute in sorted(self._minutes)),
        )

    async def _read_minutes(self) -> None:
        # Past minutes do not change. After a break all missing minutes are read at once.
        this_minute = int((await self._store.read_time()).timestamp()) // 60
        newest = max(self._minutes, default=0)
        missing = min(MINUTES_SHOWN, this_minute - newest + 2)
        for stats in await self._store.read_stats(missing):
            self._minutes[stats.minute] = stats
        self._minutes = {
            minute: stats for minute, stats in self._minutes.items() if minute > this_minute - MINUTES_SHOWN
        }

    async def _find_names(self, flow: FlowState) -> list[str]:
        store = self._store
        served = await read_served_queue_names(store, max_age_seconds=_SERVED_SECONDS)
        recent_minutes = sorted(self._minutes)[-_MINUTES_NAMED:]
        named = {name for minute in recent_minutes for name in self._minutes[minute].queues}
        controlled = {
            target.removeprefix("queue:")
            for target in (*flow.pauses, *flow.limits)
            if target.startswith("queue:")
        }
        default = store.keys.queue_name(store.settings.default_queue_name)
        return [default, *sorted((served | named | controlled) - {default})][:_MOST_QUEUES]
