"""The lists of jobs on the dashboard: recent, queued, running, blocked and dead, each read one page at a time."""

import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from rrq.dashboard.reading import MOST_RUNNING, MOST_WORKERS, PAGE_SIZE, read_running
from rrq.dashboard.values import JobPage, JobQuery, ListedJob, matches
from rrq.inspect.jobs import read_listed_jobs
from rrq.jobs.codec import decode
from rrq.store import JobStore

SOURCES: Final = ("recent", "queued", "running", "blocked", "dead")
#: How many entries of a list a filter reads before it offers the next page.
MOST_FILTERED: Final = 2_000
_QUEUES_MERGED: Final = 100


#: Reads entries of a list from one position on, without their jobs.
ReadPart = Callable[[int, int], Awaitable[Sequence[ListedJob]]]


class JobLists:
    """Reads pages of each list."""

    def __init__(self, store: JobStore, get_queue_names: Callable[[], Sequence[str]]) -> None:
        self._store = store
        self._get_queue_names = get_queue_names

    async def read_page(self, query: JobQuery) -> JobPage:
        """Read one page; a filter may read up to ``MOST_FILTERED`` entries for it."""
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
            case "blocked":
                return await self._open_blocked()
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
        """All queues as one list by due time. A late page needs all earlier entries, so the list has an end."""
        opened = [await self._open_queue(name) for name in self._get_queue_names()[:_QUEUES_MERGED]]

        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            if offset >= MOST_FILTERED:
                return []
            parts = [await read_one(0, offset + limit) for size, read_one in opened if size]
            merged = heapq.merge(*parts, key=lambda entry: entry.due_at_ms or 0.0)
            return list(merged)[offset : offset + limit]

        return sum(size for size, _ in opened), read

    async def _open_blocked(self) -> tuple[int, ReadPart]:
        store = self._store
        flow = await store.read_flow()
        scopes = sorted(flow.blocked)

        async def read(offset: int, limit: int) -> Sequence[ListedJob]:
            found: list[ListedJob] = []
            for scope in scopes:
                size = flow.blocked[scope]
                if offset < size and len(found) < limit:
                    key = store.keys.blocked_key(scope)
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
        seen = await self._store.observe([], most_workers=MOST_WORKERS)
        by_worker = await read_running(self._store, list(seen.workers))
        running = [
            (started, ListedJob(job_id, None, worker_id=worker_id))
            for worker_id, jobs in by_worker.items()
            for job_id, started in jobs
        ]
        running.sort(key=lambda pair: pair[0])
        return [job for _, job in running[:MOST_RUNNING]]


def _in_memory(entries: Sequence[ListedJob]) -> tuple[int, ReadPart]:
    async def read(offset: int, limit: int) -> Sequence[ListedJob]:
        return entries[offset : offset + limit]

    return len(entries), read
