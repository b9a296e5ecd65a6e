"""Looking into queues and jobs without changing them, for the command line.

Reads many records per round trip and finds keys with SCAN, never KEYS: Redis is one thread, and whoever
looks must not stand in the way of those who work.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rrq.broker.messages import QueueObservation
from rrq.jobs.codec import decode
from rrq.jobs.stored_job import LISTED_FIELDS, StoredJob, parse_listed_job, parse_stored_job
from rrq.store import JobStore

T = TypeVar("T")

_JOBS_PER_ROUND_TRIP = 200
_KEYS_PER_SCAN = 1000
# A script gets at most a few thousand keys at once, and must not hold up Redis for long.
_QUEUES_PER_OBSERVATION = 500


@dataclass(frozen=True)
class QueuedJob:
    """One entry of a queue; ``job`` is None when the entry is all there is."""

    job_id: str
    due_at_ms: float
    job: StoredJob | None


@dataclass(frozen=True)
class QueuePage:
    """Some entries of a queue, in the order in which they become due."""

    total: int
    entries: tuple[QueuedJob, ...]


class JobScan:
    """Goes through the stored jobs in no particular order, at most ``most`` of them (0 for all)."""

    def __init__(self, store: JobStore, most: int) -> None:
        self._store = store
        self._most = most
        self.is_complete = True
        """False once the scan has stopped at its limit with more jobs to see."""

    async def __aiter__(self) -> AsyncIterator[StoredJob]:
        # SCAN may name a key twice while Redis makes its table larger or smaller.
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
        # A job may expire between the scan and the look.
        return [job for job in await read_listed_jobs(self._store, job_ids) if job is not None]


async def find_keys(store: JobStore, prefix: str, *, kind: str | None = None) -> AsyncGenerator[str]:
    """Yield the keys that start with ``prefix``, which is taken literally."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    async for key in find_keys_like(store, pattern, kind=kind):
        yield decode(key)


async def find_keys_like(store: JobStore, pattern: str, *, kind: str | None = None) -> AsyncIterator[bytes]:
    """Yield the keys that match a pattern of Redis, as they are: not all of them need be text."""
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
    """Look at any number of queues; each call to Redis is bounded."""
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
    # A hash with none of these fields is as good as none: no version of RRQ writes such a thing.
    return [
        parse_listed_job(job_id, values) if isinstance(values, list) and any(values) else None
        for job_id, values in zip(job_ids, replies, strict=True)
    ]


async def read_stored_job(store: JobStore, job_id: str) -> StoredJob | None:
    """Read one job with all its fields; None when there is none."""
    fields: Any = await store.redis.hgetall(store.keys.job_key(job_id))
    return parse_stored_job(job_id, fields) if fields else None


async def read_stored_jobs(store: JobStore, job_ids: Sequence[str]) -> list[StoredJob]:
    """Read some jobs with all their fields; those that are gone are left out."""

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
