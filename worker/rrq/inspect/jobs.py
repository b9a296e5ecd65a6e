"""Reads queues and jobs without changing them, for the command line and the dashboard.

Reads many records per round trip and finds keys with SCAN, never KEYS: Redis has one thread, and reading must not block
the workers.
"""

import asyncio
import contextlib
import heapq
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from rrq.broker.messages import QueueObservation
from rrq.jobs.codec import decode
from rrq.jobs.stored_job import LISTED_FIELDS, StoredJob, parse_listed_job, parse_stored_job
from rrq.store import JobStore

T = TypeVar("T")

#: Sorts what has no time before everything that has one.
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_JOBS_PER_ROUND_TRIP = 200
_KEYS_PER_SCAN = 1000
# A script gets at most a few thousand keys at once, and must not block Redis for long.
_QUEUES_PER_OBSERVATION = 500


@dataclass(frozen=True)
class QueuedJob:
    """One entry of a queue; ``job`` is None when no job is stored under its id."""

    job_id: str
    due_at_ms: float
    job: StoredJob | None


@dataclass(frozen=True)
class QueuePage:
    """Some entries of a queue, in the order in which they become due."""

    total: int
    entries: tuple[QueuedJob, ...]


@dataclass(frozen=True)
class StoredJobFilter:
    """Which stored jobs to show or change; None accepts every value."""

    queue_names: Collection[str] | None = None
    function_name: str | None = None
    status: str | None = None

    @property
    def accepts_all(self) -> bool:
        return self.queue_names is None and self.function_name is None and self.status is None

    def accepts(self, store: JobStore, job: StoredJob) -> bool:
        if self.status is not None and job.status != self.status.upper():
            return False
        if self.function_name is not None and job.function_name != self.function_name:
            return False
        if self.queue_names is None:
            return True
        return short_queue_name(store, job) in map(store.keys.queue_name, self.queue_names)


def short_queue_name(store: JobStore, job: StoredJob) -> str:
    """Return the queue of a job. Producers write the same queue in several ways, or leave it out."""
    return store.keys.queue_name(job.queue_name or store.settings.default_queue_name)


@dataclass(frozen=True)
class FoundJobs:
    """The newest jobs that a filter accepts, and how many it accepts in all."""

    now: datetime
    newest: list[StoredJob]
    total: int
    is_complete: bool
    """False when the scan stopped at its limit with more jobs to read."""


class JobScan:
    """Reads the stored jobs in no particular order, at most ``most`` of them (0 for all)."""

    def __init__(self, store: JobStore, most: int) -> None:
        self._store = store
        self._most = most
        self.is_complete = True
        """False once the scan has stopped at its limit with more jobs to read."""

    async def __aiter__(self) -> AsyncIterator[StoredJob]:
        # SCAN may return a key twice while Redis resizes its table.
        seen: set[str] = set()
        batch: list[str] = []
        prefix = self._store.keys.job_key("")
        async with contextlib.aclosing(find_keys(self._store, prefix, kind="hash")) as keys:
            async for key in keys:
                job_id = key.removeprefix(prefix)
                if job_id in seen:
                    continue
                if self._most and len(seen) >= self._most:
                    self.is_complete = False
                    break
                seen.add(job_id)
                batch.append(job_id)
                if len(batch) == _JOBS_PER_ROUND_TRIP:
                    for job in await self._read(batch):
                        yield job
                    batch = []
        for job in await self._read(batch):
            yield job

    async def _read(self, job_ids: Sequence[str]) -> list[StoredJob]:
        # A job may expire between the scan and the reading.
        return [job for job in await read_listed_jobs(self._store, job_ids) if job is not None]


async def find_newest_jobs(store: JobStore, wanted: StoredJobFilter, limit: int, max_scan: int) -> FoundJobs:
    """Read up to ``max_scan`` jobs (0 for all) and return the newest ``limit`` that the filter accepts."""
    now = await store.read_time()
    # A heap keeps only the jobs to show in memory, however many there are.
    newest: list[tuple[datetime, str, StoredJob]] = []
    total = 0
    scan = JobScan(store, max_scan)
    async for job in scan:
        if not wanted.accepts(store, job):
            continue
        total += 1
        heapq.heappush(newest, (job.created_at or LONG_AGO, job.job_id, job))
        if len(newest) > limit:
            heapq.heappop(newest)
    ordered = [job for _, _, job in sorted(newest, key=lambda entry: entry[:2], reverse=True)]
    return FoundJobs(now, ordered, total, scan.is_complete)


async def find_keys(store: JobStore, prefix: str, *, kind: str | None = None) -> AsyncGenerator[str]:
    """Yield the keys that start with ``prefix``, which is taken literally."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    async for key in find_keys_like(store, pattern, kind=kind):
        yield decode(key)


async def find_keys_like(store: JobStore, pattern: str, *, kind: str | None = None) -> AsyncIterator[bytes]:
    """Yield the keys that match a pattern of Redis, as bytes: a key need not be text."""
    scan: Any = store.redis.scan_iter(match=pattern, count=_KEYS_PER_SCAN, _type=kind)
    async for key in scan:
        yield key


async def collect_within(found: AsyncIterator[str], seconds: float) -> tuple[list[str], bool]:
    """Return what was found in the time given, and whether that is everything."""
    collected: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            async for item in found:
                collected.append(item)  # noqa: PERF401  a comprehension would lose them all at the timeout
    except TimeoutError:
        return collected, False
    return collected, True


async def find_queue_names(store: JobStore) -> AsyncIterator[str]:
    """Yield the short names of the queues that have entries."""
    async for key in find_keys(store, store.keys.queue_key(""), kind="zset"):
        yield store.keys.queue_name(key)


async def read_served_queue_names(store: JobStore, max_age_seconds: float | None = None) -> set[str]:
    """Return the short names of queues that workers have served, ever or lately, empty or not."""
    oldest: float | str = "-inf"
    if max_age_seconds is not None:
        oldest = (await store.read_time()).timestamp() - max_age_seconds
    members = await store.redis.zrangebyscore(store.keys.active_queues, oldest, "+inf")
    return {store.keys.queue_name(decode(member)) for member in members}


async def observe_queues(store: JobStore, names: Iterable[str]) -> dict[str, QueueObservation]:
    """Observe any number of queues with calls of bounded size."""
    queues: dict[str, QueueObservation] = {}
    for part in in_batches(sorted(names), _QUEUES_PER_OBSERVATION):
        queues |= (await store.observe(part)).queues
    return queues


async def read_queue_page(store: JobStore, queue_name: str, offset: int, limit: int) -> QueuePage:
    """Read ``limit`` entries of a queue with their jobs."""
    key = store.keys.queue_key(queue_name)
    async with store.redis.pipeline(transaction=True) as pipe:
        pipe.zcard(key)
        pipe.zrange(key, offset, offset + limit - 1, withscores=True)
        total, members = await pipe.execute()
    job_ids = [decode(member) for member, _ in members]
    jobs = await read_listed_jobs(store, job_ids)
    scores = [float(score) for _, score in members]
    entries = (QueuedJob(*entry) for entry in zip(job_ids, scores, jobs, strict=True))
    return QueuePage(total, tuple(entries))


async def read_listed_jobs(store: JobStore, job_ids: Sequence[str]) -> list[StoredJob | None]:
    """Read what lists show of some jobs; None for an id without a job."""

    def ask(pipe: Any, job_id: str) -> None:
        pipe.hmget(store.keys.job_key(job_id), LISTED_FIELDS)

    replies = await read_in_batches(store, job_ids, ask)
    # No version of RRQ writes a hash without any of these fields, so it counts as no job.
    return [
        parse_listed_job(job_id, values) if isinstance(values, list) and any(values) else None
        for job_id, values in zip(job_ids, replies, strict=True)
    ]


async def read_stored_job(store: JobStore, job_id: str) -> StoredJob | None:
    """Read one job with all its fields; None when there is none."""
    fields: Any = await store.redis.hgetall(store.keys.job_key(job_id))
    return parse_stored_job(job_id, fields) if fields else None


async def read_stored_jobs(store: JobStore, job_ids: Sequence[str]) -> list[StoredJob]:
    """Read some jobs with all their fields; skips those that have expired."""

    def ask(pipe: Any, job_id: str) -> None:
        pipe.hgetall(store.keys.job_key(job_id))

    replies = await read_in_batches(store, job_ids, ask)
    pairs = zip(job_ids, replies, strict=True)
    return [parse_stored_job(job_id, fields) for job_id, fields in pairs if fields]


async def read_in_batches(
    store: JobStore, items: Sequence[T], ask: Callable[[Any, T], None], replies_each: int = 1
) -> list[Any]:
    """Return the replies to what ``ask`` sends for each item, many items per round trip.

    A key of the wrong type answers None for itself alone.
    """
    replies: list[Any] = []
    for batch in in_batches(items, max(1, _JOBS_PER_ROUND_TRIP // replies_each)):
        async with store.redis.pipeline(transaction=False) as pipe:
            for item in batch:
                ask(pipe, item)
            replies += await pipe.execute(raise_on_error=False)
    return [_without_wrong_type(reply) for reply in replies]


def in_batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _without_wrong_type(reply: Any) -> Any:
    if not isinstance(reply, Exception):
        return reply
    if "WRONGTYPE" in str(reply):
        return None
    raise reply
