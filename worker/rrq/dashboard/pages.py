"""The data of the pages: takes the parameters of a request and returns values of ``views.py``.

Pages that ask the same at almost the same time share one reading of Redis.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from rrq.dashboard.dead_groups import build_dead_letters, build_group_page
from rrq.dashboard.feed import Feed, SharedReads
from rrq.dashboard.job_lists import SOURCES, JobLists
from rrq.dashboard.job_views import ValueRules, build_job, build_job_page
from rrq.dashboard.reading import (
    DECISIONS_SHOWN,
    PAGE_SIZE,
    read_audit_page,
    read_cron,
    read_dead_letters,
    read_job,
    read_recent_jobs,
    read_worker_page,
)
from rrq.dashboard.snapshot import SnapshotReader
from rrq.dashboard.values import DashboardSnapshot, JobQuery
from rrq.dashboard.views import (
    build_audit_rows,
    build_controls,
    build_cron_rows,
    build_decisions,
    build_pool_rows,
    build_queue_rows,
    build_worker_rows,
)
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_FRESH_SECONDS: Final = 1.0
# Grouping reads up to five thousand jobs.
_DEAD_LETTERS_FRESH_SECONDS: Final = 5.0
_LONGEST_NAME: Final = 512

Answer = Callable[[web.Request], Awaitable[Mapping[str, Any]]]


class Pages:
    """Everything that is shown, except the live feed."""

    def __init__(self, store: JobStore, feed: Feed, rules: ValueRules) -> None:
        self._store = store
        self._feed = feed
        self._rules = rules
        self._shared = SharedReads()
        self._lists = JobLists(store, self._queue_names)

    def by_path(self) -> Mapping[str, Answer]:
        return {
            "queues": self.queues,
            "controls": self.controls,
            "workers": self.workers,
            "jobs": self.jobs,
            "job": self.job,
            "dead-letters": self.dead_letters,
            "dead-letters/{group}": self.dead_group,
            "cron": self.cron,
            "pools": self.pools,
            "decisions": self.decisions,
            "audit": self.audit,
        }

    def forget_all(self) -> None:
        """Read everything again at the next request, after a change."""
        self._shared.forget_all()

    async def queues(self, _: web.Request) -> Mapping[str, Any]:
        snapshot = self._feed.fresh_snapshot or await self._read_snapshot()
        return {"now_ms": snapshot.now_ms, "queues": build_queue_rows(snapshot)}

    async def _read_snapshot(self) -> DashboardSnapshot:
        return await self._shared.get("snapshot", _FRESH_SECONDS, SnapshotReader(self._store).run_once)

    async def controls(self, _: web.Request) -> Mapping[str, Any]:
        async def read() -> Mapping[str, Any]:
            return build_controls(await self._store.read_flow(), await read_recent_jobs(self._store))

        return await self._shared.get("controls", _FRESH_SECONDS, read)

    async def workers(self, _: web.Request) -> Mapping[str, Any]:
        async def read() -> Mapping[str, Any]:
            return {"workers": build_worker_rows(await read_worker_page(self._store))}

        return await self._shared.get("workers", _FRESH_SECONDS, read)

    async def jobs(self, request: web.Request) -> Mapping[str, Any]:
        source = request.query.get("source", SOURCES[0])
        if source not in SOURCES:
            raise web.HTTPBadRequest(reason=f"There is no such list; choose one of {', '.join(SOURCES)}.")
        query = JobQuery(
            source,
            _short(request, "queue"),
            _short(request, "text"),
            _short(request, "status").upper(),
            _offset(request),
        )

        async def read() -> Mapping[str, Any]:
            page = await self._lists.read_page(query)
            return build_job_page(page, self._store.keys, await self._store.read_time(), self._queue_names())

        return await self._shared.get(query, _FRESH_SECONDS, read)

    async def job(self, request: web.Request) -> Mapping[str, Any]:
        job_id = _short(request, "id")

        async def read() -> Mapping[str, Any] | None:
            found = await read_job(self._store, job_id)
            if found is None:
                return None
            return build_job(found, self._store.keys, await self._store.read_time(), self._rules)

        job = await self._shared.get(("job", job_id), _FRESH_SECONDS, read)
        if job is None:
            raise web.HTTPNotFound(reason="There is no such job. It may have expired.")
        return job

    async def dead_letters(self, _: web.Request) -> Mapping[str, Any]:
        jobs, total = await self._read_dead_letters()
        return build_dead_letters(jobs, total, self._store.keys)

    async def dead_group(self, request: web.Request) -> Mapping[str, Any]:
        jobs, _ = await self._read_dead_letters()
        now, keys = await self._store.read_time(), self._store.keys
        page = build_group_page(jobs, request.match_info["group"], _offset(request), PAGE_SIZE, keys, now)
        if page is None:
            raise web.HTTPNotFound(reason="This group has no dead letters left.")
        return page

    async def _read_dead_letters(self) -> tuple[list[StoredJob], int]:
        return await self._shared.get(
            "dead letters", _DEAD_LETTERS_FRESH_SECONDS, lambda: read_dead_letters(self._store)
        )

    async def cron(self, _: web.Request) -> Mapping[str, Any]:
        async def read() -> Mapping[str, Any]:
            tables, fired_ms = await read_cron(self._store)
            default, now = self._store.settings.default_queue_name, await self._store.read_time()
            return {"entries": build_cron_rows(tables, fired_ms, self._store.keys, default, now)}

        return await self._shared.get("cron", _FRESH_SECONDS, read)

    async def pools(self, _: web.Request) -> Mapping[str, Any]:
        async def read() -> Mapping[str, Any]:
            return {"pools": build_pool_rows(await self._store.read_pools(), await self._store.read_flow())}

        return await self._shared.get("pools", _FRESH_SECONDS, read)

    async def decisions(self, request: web.Request) -> Mapping[str, Any]:
        pool = _short(request, "pool")

        async def read() -> Mapping[str, Any]:
            return {"decisions": build_decisions(await self._store.read_decisions(pool, DECISIONS_SHOWN))}

        return await self._shared.get(("decisions", pool), _FRESH_SECONDS, read)

    async def audit(self, request: web.Request) -> Mapping[str, Any]:
        before = _short(request, "before") or None

        async def read() -> Mapping[str, Any]:
            entries = await read_audit_page(self._store, before)
            next_before = entries[-1].entry_id if len(entries) == PAGE_SIZE else None
            return {"entries": build_audit_rows(entries), "next_before": next_before}

        return await self._shared.get(("audit", before), _FRESH_SECONDS, read)

    def _queue_names(self) -> list[str]:
        return list(self._feed.snapshot.queues) if self._feed.snapshot is not None else []


def _short(request: web.Request, name: str) -> str:
    value = request.query.get(name, "").strip()
    if len(value) > _LONGEST_NAME:
        raise web.HTTPBadRequest(reason=f"{name} is longer than {_LONGEST_NAME} characters.")
    return value


def _offset(request: web.Request) -> int:
    text = request.query.get("offset", "0")
    if not text.isdecimal() or len(text) > 9:
        raise web.HTTPBadRequest(reason="offset must be a position in a list.")
    return int(text)
