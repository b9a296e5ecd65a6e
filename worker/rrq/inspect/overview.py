"""Reads an overview: queues, workers, pods and dead letters at one moment.

``rrq check`` and ``rrq monitor`` show it. Living workers come from the leases, in one call to Redis together with the
queues; RRQ 0.7 workers have no lease, only a health record.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any

from rrq.broker.messages import Observation, QueueObservation
from rrq.inspect.dead_letters import DeadLetter, count_dead_letters, read_newest_dead_letters
from rrq.inspect.jobs import (
    collect_within,
    find_keys,
    find_queue_names,
    read_in_batches,
    read_served_queue_names,
)
from rrq.store import JobStore

# A queue that no worker serves and an RRQ 0.7 worker are found only by a scan of all keys, which is repeated rarely and
# stopped early.
_DISCOVERY_INTERVAL_SECONDS = 15.0
_DISCOVERY_SECONDS = 2.0
_NEWEST_DEAD_LETTERS = 10
# The record of served queues is never cleared; a live view shows what is served now.
_SERVED_SECONDS = 300.0


class WorkerKind(StrEnum):
    LEASED = "leased"
    LEGACY = "rrq-0.7"
    """Writes a health record but has no lease: an RRQ 0.7 worker."""
    LOST = "lost"
    """Its lease has ended; only its health record is left."""


@dataclass(frozen=True)
class SeenWorker:
    """One worker; None where its kind does not report a value."""

    worker_id: str
    kind: WorkerKind
    health: dict[str, Any]
    ttl_seconds: int | None
    pod_uid: str = ""
    busy: int = 0
    capacity: int = 0
    is_draining: bool = False
    queues: tuple[str, ...] = ()
    lease_seconds: float | None = None

    @property
    def status(self) -> str:
        if self.kind is WorkerKind.LOST:
            return "lost"
        return str(self.health.get("status", "unknown"))

    @property
    def last_heartbeat(self) -> str:
        return str(self.health.get("timestamp", "unknown"))


@dataclass(frozen=True)
class PodSummary:
    """The workers of one pod; an empty uid stands for workers outside of pods."""

    pod_uid: str
    workers: int
    busy: int
    capacity: int
    is_draining: bool


@dataclass(frozen=True)
class Overview:
    now: datetime
    queues: dict[str, QueueObservation]
    workers: tuple[SeenWorker, ...]
    dead_letters: int
    newest_dead_letters: tuple[DeadLetter, ...]

    @property
    def pods(self) -> list[PodSummary]:
        return group_by_pod(self.workers)


class OverviewReader:
    """Reads the overview repeatedly; keeps what is costly to find."""

    def __init__(self, store: JobStore, queue_names: Collection[str] = ()) -> None:
        self._store = store
        self._chosen = {store.keys.queue_name(name) for name in queue_names}
        self._found: set[str] = set()
        self._health_ids: list[str] = []
        self._next_discovery_at = 0.0

    async def run_once(self) -> Overview:
        """Read the overview as it is now."""
        if monotonic() >= self._next_discovery_at:
            await self._discover()
        store, dlq_name = self._store, self._store.settings.default_dlq_name
        observation = await store.observe(sorted(self._chosen or self._found))
        workers = await read_workers(store, observation, self._health_ids)
        newest = await read_newest_dead_letters(store, dlq_name, _NEWEST_DEAD_LETTERS)
        return Overview(
            datetime.fromtimestamp(observation.now_ms / 1000, UTC),
            observation.queues,
            tuple(workers),
            await count_dead_letters(store, dlq_name),
            tuple(newest),
        )

    async def _discover(self) -> None:
        store = self._store
        if not self._chosen:
            with_entries, _ = await collect_within(find_queue_names(store), _DISCOVERY_SECONDS)
            # The default queue is shown even when it has never been used.
            default = store.keys.queue_name(store.settings.default_queue_name)
            served = await read_served_queue_names(store, max_age_seconds=_SERVED_SECONDS)
            self._found = {default, *with_entries, *served}
        self._health_ids, _ = await find_reporting_workers(store, _DISCOVERY_SECONDS)
        self._next_discovery_at = monotonic() + _DISCOVERY_INTERVAL_SECONDS


async def find_reporting_workers(store: JobStore, seconds: float) -> tuple[list[str], bool]:
    """Return the ids in health records, and whether the scan had time for all keys."""
    prefix = store.keys.health_key("")
    keys, is_complete = await collect_within(find_keys(store, prefix, kind="string"), seconds)
    return sorted(key.removeprefix(prefix) for key in set(keys)), is_complete


async def read_workers(
    store: JobStore, observation: Observation, health_ids: Sequence[str]
) -> list[SeenWorker]:
    """Return the workers that have a lease, and those of ``health_ids`` that have a health record."""
    ids = [*observation.workers, *(name for name in health_ids if name not in observation.workers)]

    def ask(pipe: Any, worker_id: str) -> None:
        pipe.get(store.keys.health_key(worker_id))
        pipe.ttl(store.keys.health_key(worker_id))
        pipe.exists(store.keys.worker_key(worker_id))

    replies = await read_in_batches(store, ids, ask, replies_each=3)
    workers = []
    for number, worker_id in enumerate(ids):
        text, ttl_seconds, has_record = replies[3 * number : 3 * number + 3]
        health, ttl = _parse_health(text), ttl_seconds if ttl_seconds >= 0 else None
        if worker_id in observation.workers:
            workers.append(_leased_worker(observation, worker_id, health, ttl))
        elif text is not None:
            workers.append(_worker_without_lease(worker_id, health, ttl, bool(has_record)))
    return workers


def group_by_pod(workers: Iterable[SeenWorker]) -> list[PodSummary]:
    """Add up the living workers of each pod; workers outside of pods come last, as one group."""
    pods: dict[str, list[SeenWorker]] = {}
    for worker in workers:
        if worker.kind is not WorkerKind.LOST:
            pods.setdefault(worker.pod_uid, []).append(worker)
    return [
        PodSummary(
            pod_uid,
            len(members),
            sum(worker.busy for worker in members),
            sum(worker.capacity for worker in members),
            any(worker.is_draining for worker in members),
        )
        for pod_uid, members in sorted(pods.items(), key=lambda pod: (not pod[0], pod[0]))
    ]


def _leased_worker(
    observation: Observation, worker_id: str, health: dict[str, Any], ttl_seconds: int | None
) -> SeenWorker:
    seen = observation.workers[worker_id]
    return SeenWorker(
        worker_id,
        WorkerKind.LEASED,
        health,
        ttl_seconds,
        seen.pod_uid,
        seen.busy,
        seen.capacity,
        seen.is_draining,
        seen.queues,
        (seen.lease_ends_ms - observation.now_ms) / 1000,
    )


def _worker_without_lease(
    worker_id: str, health: dict[str, Any], ttl_seconds: int | None, has_record: bool
) -> SeenWorker:
    queues = health.get("queues")
    return SeenWorker(
        worker_id,
        WorkerKind.LOST if has_record else WorkerKind.LEGACY,
        health,
        ttl_seconds,
        busy=_count(health.get("active_jobs")),
        capacity=_count(health.get("concurrency_limit")),
        queues=tuple(map(str, queues)) if isinstance(queues, list) else (),
    )


def _parse_health(text: bytes | None) -> dict[str, Any]:
    try:
        health = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return health if isinstance(health, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
