"""What the dashboard asks the store, each question bounded and none of them a SCAN.

A queue, a worker or a job is found because the scripts have it on their books: served queues, leases, active sets,
queues by rank, the last jobs that ended, dead letters. How it is shown is the business of ``views.py``.
"""

import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from rrq.broker.cron_table import CronTable
from rrq.dashboard.values import (
    FoundJob,
    JobPage,
    JobQuery,
    ListedJob,
    Picture,
    WorkerFacts,
    WorkerPage,
    matches,
)
from rrq.flow import AuditEntry, FlowState, MinuteStats
from rrq.inspect.dead_letters import DeadLetterScan, count_dead_letters, find_dead_letter
from rrq.inspect.jobs import (
    read_in_batches,
    read_listed_jobs,
    read_served_queue_names,
    read_stored_job,
)
from rrq.inspect.overview import read_workers
from rrq.jobs.codec import decode
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

PAGE_SIZE: Final = 50
MINUTES_SHOWN: Final = 60
MOST_DEAD_LETTERS: Final = 5_000
DECISIONS_SHOWN: Final = 500
#: How many entries of a list a filter looks at before it says that there is more.
MOST_FILTERED: Final = 2_000
_MOST_QUEUES: Final = 500
_MOST_WORKERS: Final = 1_000
_MOST_RUNNING: Final = 2_000
_QUEUES_MERGED: Final = 100
_RECENT_JOBS: Final = 1_000
_NAMES_FRESH_SECONDS: Final = 5.0
_REPORTING_SECONDS: Final = 60.0
_SERVED_SECONDS: Final = 24 * 3600.0
_MINUTES_NAMED: Final = 15


class PictureReader:
    """Reads the picture again and again; remembers what does not change within a second."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._names: list[str] = []
        self._names_until = 0.0
        self._minutes: dict[int, MinuteStats] = {}

    async def run_once(self) -> Picture:
        """Read the picture as it is now."""
        store = self._store
        flow = await store.read_flow()
        await self._read_minutes()
        if monotonic() >= self._names_until:
            self._names = await self._find_names(flow)
            self._names_until = monotonic() + _NAMES_FRESH_SECONDS
        seen = await store.observe(self._names, most_workers=_MOST_WORKERS)
        return Picture(
            seen.now_ms,
            seen.queues,
            seen.workers,
            await store.read_counters(),
            await count_dead_letters(store, store.settings.default_dlq_name),
            flow,
            tuple(self._minutes[minute] for minute in sorted(self._minutes)),
        )

    async def _read_minutes(self) -> None:
        # What is past does not change; after a pause the gap is read as a whole.
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
        lately = sorted(self._minutes)[-_MINUTES_NAMED:]
        named = {name for minute in lately for name in self._minutes[minute].queues}
        controlled = {
            target.removeprefix("queue:")
            for target in (*flow.pauses, *flow.limits)
            if target.startswith("queue:")
        }
        default = store.keys.queue_name(store.settings.default_queue_name)
        return [default, *sorted((served | named | controlled) - {default})][:_MOST_QUEUES]


#: A part of a list: its entries from one position on, without what their jobs say.
ReadPart = Callable[[int, int], Awaitable[Sequence[ListedJob]]]


class JobLists:
    """The lists of jobs that there are."""

    def __init__(self, store: JobStore, get_queue_names: Callable[[], Sequence[str]]) -> None:
        self._store = store
        self._get_queue_names = get_queue_names

    async def read_page(self, query: JobQuery) -> JobPage:
        """Read one page; a filter may look at ``MOST_FILTERED`` entries for it."""
        total, read_part = await self._open(query)
        wanted: list[ListedJob] = []
        position = query.offset
        while len(wanted) < PAGE_SIZE and position - query.offset < MOST_FILTERED:
            part = await read_part(position, PAGE_SIZE)
            if not part:
                break
            jobs = await read_listed_jobs(self._store, [entry.job_id for entry in part])
            for entry, job in zip(part, jobs, strict=True):
                position += 1
                if matches(query, self._store.keys, entry.job_id, job):
                    wanted.append(replace(entry, job=job))
                    if len(wanted) == PAGE_SIZE:
                        break
        next_offset = position if position < total else None
        return JobPage(wanted, total, position - query.offset, next_offset)

    async def _open(self, query: JobQuery) -> tuple[int, ReadPart]:
        match query.source:
            case "queued" if query.queue:
                return await self._open_queue(query.queue)
            case "queued":
                return await self._open_queues()
            case "running":
                return _in_memory(await self._read_running())
            case "parked":
                return await self._open_parked()
            case "dead":
                return await self._open_list(self._store.keys.dlq_key(self._store.settings.default_dlq_name))
            case _:
                return await self._open_list(self._store.keys.recent)

    async def _open_queue(self, name: str) -> tuple[int, ReadPart]:
        store, key = self._store, self._store.keys.queue_key(name)

        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            members: Any = await store.redis.zrange(key, offset, offset + limit - 1, withscores=True)
            return [ListedJob(decode(member), None, float(score)) for member, score in members]

        return int(await store.redis.zcard(key)), read

    async def _open_queues(self) -> tuple[int, ReadPart]:
        """All queues as one list by due time. A page far behind means reading all before it, so it has an end."""
        opened = [await self._open_queue(name) for name in self._get_queue_names()[:_QUEUES_MERGED]]

        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            if offset >= MOST_FILTERED:
                return []
            parts = [await read_one(0, offset + limit) for size, read_one in opened if size]
            merged = heapq.merge(*parts, key=lambda entry: entry.due_at_ms or 0.0)
            return list(merged)[offset : offset + limit]

        return sum(size for size, _ in opened), read

    async def _open_parked(self) -> tuple[int, ReadPart]:
        store = self._store
        flow = await store.read_flow()
        scopes = sorted(flow.blocked)

        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            found: list[ListedJob] = []
            for scope in scopes:
                size = flow.blocked[scope]
                if offset < size and len(found) < limit:
                    key = store.keys.parked_key(scope)
                    last = offset + limit - len(found) - 1
                    members: Any = await store.redis.zrange(key, offset, last, withscores=True)
                    found += [
                        ListedJob(decode(member), None, float(score), scope=scope)
                        for member, score in members
                    ]
                offset = max(0, offset - size)
            return found

        return sum(flow.blocked.values()), read

    async def _open_list(self, key: str) -> tuple[int, ReadPart]:
        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            entries: Any = await self._store.redis.lrange(key, offset, offset + limit - 1)
            return [ListedJob(decode(entry), None) for entry in entries]

        return int(await self._store.redis.llen(key)), read

    async def _read_running(self) -> list[ListedJob]:
        seen = await self._store.observe([], most_workers=_MOST_WORKERS)
        by_worker = await read_running(self._store, list(seen.workers))
        running = [
            (started, ListedJob(job_id, None, worker_id=worker_id))
            for worker_id, jobs in by_worker.items()
            for job_id, started in jobs
        ]
        running.sort(key=lambda pair: pair[0])
        return [job for _, job in running[:_MOST_RUNNING]]


def _in_memory(entries: Sequence[ListedJob]) -> tuple[int, ReadPart]:
    async def read(offset: int, limit: int) -> Sequence[ListedJob]:
        return entries[offset : offset + limit]

    return len(entries), read


async def read_running(store: JobStore, worker_ids: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    """Return what workers have in hand: job ids with their start in Unix seconds, the oldest first."""

    def ask(pipe: Any, worker_id: str) -> None:
        pipe.zrange(store.keys.active_jobs_key(worker_id), 0, _MOST_RUNNING - 1, withscores=True)

    replies = await read_in_batches(store, worker_ids, ask)
    return {
        worker_id: [(decode(member), float(score)) for member, score in reply or ()]
        for worker_id, reply in zip(worker_ids, replies, strict=True)
    }


async def read_worker_page(store: JobStore) -> WorkerPage:
    """Read the living workers and what each of them runs."""
    seen = await store.observe([], most_workers=_MOST_WORKERS)
    # Those of RRQ 0.7 have no lease, but they are on this list while they report.
    oldest = seen.now_ms / 1000 - _REPORTING_SECONDS
    reporting: Any = await store.redis.zrangebyscore(
        store.keys.active_workers, oldest, "+inf", start=0, num=_MOST_WORKERS
    )
    workers = await read_workers(store, seen, [decode(member) for member in reporting])
    running = await read_running(store, [worker.worker_id for worker in workers])
    job_ids = [job_id for jobs in running.values() for job_id, _ in jobs][:_MOST_RUNNING]
    jobs = await read_listed_jobs(store, job_ids)
    facts = []
    for worker in workers:
        observed = seen.workers.get(worker.worker_id)
        facts.append(
            WorkerFacts(
                worker.worker_id,
                worker.kind.value,
                worker.status,
                worker.pod_uid,
                worker.busy,
                worker.capacity,
                worker.is_draining,
                worker.queues,
                worker.lease_seconds,
                observed.ended if observed is not None else None,
                observed.registered_ms if observed is not None else None,
                tuple(running[worker.worker_id]),
            )
        )
    found = {job_id: job for job_id, job in zip(job_ids, jobs, strict=True) if job is not None}
    return WorkerPage(facts, found)


async def read_job(store: JobStore, job_id: str) -> FoundJob | None:
    job = await read_stored_job(store, job_id)
    if job is None:
        return None
    # Looking an id up in the list costs Redis its length, so only for a job that can be there.
    letter = None
    if job.status == "FAILED":
        letter = await find_dead_letter(store, store.settings.default_dlq_name, job_id)
    return FoundJob(job, letter is not None)


async def read_dead_letters(store: JobStore) -> tuple[list[StoredJob], int]:
    """Return the newest dead letters that are still stored, and how many entries the list has."""
    name = store.settings.default_dlq_name
    scan = DeadLetterScan(store, name, most=MOST_DEAD_LETTERS, batch_size=500)
    jobs = [letter.job async for letter in scan if letter.job is not None]
    return jobs, await count_dead_letters(store, name)


async def read_cron(store: JobStore) -> tuple[tuple[CronTable, ...], dict[str, int]]:
    """Return the cron tables of all applications, and when each entry fired last (ms) by its digest."""
    tables = await store.read_cron_tables()
    fired: Any = await store.redis.hgetall(store.keys.cron_last)
    return tables, _parse_numbers(fired)


async def read_recent_jobs(store: JobStore) -> list[StoredJob | None]:
    """Return the jobs that ended last, for what they say about the functions that there are."""
    return await read_listed_jobs(store, await store.read_recent(0, _RECENT_JOBS))


async def read_audit_page(store: JobStore, before: str | None) -> list[AuditEntry]:
    return await store.read_audit(PAGE_SIZE, before)


def _parse_numbers(reply: Mapping[bytes, bytes]) -> dict[str, int]:
    """Read a hash of whole numbers; what is none is left out, for it is not known."""
    return {decode(name): int(value) for name, value in reply.items() if value.lstrip(b"-").isdigit()}
