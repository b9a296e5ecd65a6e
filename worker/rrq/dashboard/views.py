"""Turns queues, controls, workers, cron, pools and audit into the JSON of the page. Pure.

Jobs are in ``job_views.py``, dead letters in ``dead_groups.py``, charts in ``samples.py``. Times are milliseconds since
1970, durations seconds; an unknown value is null, never zero.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from rrq.broker.cron_table import CronTable
from rrq.broker.keys import Keys
from rrq.cron import cron_digest
from rrq.dashboard.values import DashboardSnapshot, Json, WorkerPage, to_ms
from rrq.flow import AuditEntry, FlowState, Limit, Pause, PoolDecision, PoolReport
from rrq.jobs.stored_job import StoredJob

_SPARK_MINUTES: Final = 30
_JOBS_PER_WORKER: Final = 100


def build_queue_rows(snapshot: DashboardSnapshot, *, with_minutes: bool = True) -> list[Json]:
    """Return all queues of the snapshot, by name."""
    rows = []
    for name, queue in snapshot.queues.items():
        recent = _count_recent(snapshot, name)
        row: Json = {
            "name": name,
            "due": queue.due,
            "later": queue.due_soon + queue.later,
            "blocked": queue.blocked,
            "orphaned": queue.orphaned,
            "oldest_seconds": queue.oldest_due_age_seconds,
            "next_due_ms": queue.next_due_ms,
            "workers": sum(name in worker.queues for worker in snapshot.workers.values()),
            "pause": _pause_json(snapshot.flow.pauses.get(f"queue:{name}")),
            "limit": _limit_json(snapshot.flow.limits.get(f"queue:{name}")),
            "started_per_minute": recent["per_minute"],
            "wait_seconds": recent["wait_seconds"],
            "dead_last_hour": sum(stats.queues.get(name, {}).get("dead", 0) for stats in snapshot.minutes),
        }
        if with_minutes:
            # Without the current minute, which would look as if the work had stopped.
            row["started_minutes"] = [
                stats.queues.get(name, {}).get("started", 0)
                for stats in snapshot.minutes[-_SPARK_MINUTES - 1 : -1]
            ]
        rows.append(row)
    return sorted(rows, key=lambda row: row["name"])


def _count_recent(snapshot: DashboardSnapshot, name: str) -> Json:
    """Add up the current minute and the one before, which together are between one and two minutes."""
    total: Counter[str] = Counter()
    for stats in snapshot.minutes[-2:]:
        total.update(stats.queues.get(name, {}))
    elapsed_minutes = 1 + snapshot.now_ms % 60_000 / 60_000
    return {
        "per_minute": total["started"] / elapsed_minutes,
        "wait_seconds": mean_seconds(total, "wait_ms", total["started"]),
    }


def build_controls(flow: FlowState, recent: Iterable[StoredJob | None]) -> Json:
    """Return pauses and limits, and the functions to control: those that ran recently or have a pause or a limit."""
    counts = Counter(job.function_name for job in recent if job is not None and job.function_name)
    named = {
        target.removeprefix("function:")
        for target in (*flow.pauses, *flow.limits)
        if target.startswith("function:")
    }
    functions = [
        {
            "name": name,
            "recent": counts[name],
            "pause": _pause_json(flow.pauses.get(f"function:{name}")),
            "limit": _limit_json(flow.limits.get(f"function:{name}")),
            "running": flow.slots.get(f"f:{name}"),
            "blocked": _count_blocked(flow, name),
        }
        for name in sorted(counts.keys() | named)
    ]
    pauses = [
        {"target": target, **(_pause_json(pause) or {})} for target, pause in sorted(flow.pauses.items())
    ]
    return {"functions": functions, "pauses": pauses}


def _count_blocked(flow: FlowState, function: str) -> int:
    own = flow.blocked.get(f"f:{function}", 0)
    return own + sum(count for scope, count in flow.blocked.items() if scope.startswith(f"k:{function}:"))


def _pause_json(pause: Pause | None) -> Json | None:
    if pause is None:
        return None
    return {"state": pause.state, "by": pause.by, "at_ms": to_ms(pause.at), "reason": pause.reason}


def _limit_json(limit: Limit | None) -> Json | None:
    if limit is None:
        return None
    return {
        "concurrency": limit.concurrency,
        "key": limit.key,
        "per_key": limit.per_key,
        "rate": limit.rate,
        "per_seconds": limit.per_seconds,
        "burst": limit.burst,
    }


def mean_seconds(total: Mapping[str, int], name: str, count: int) -> float | None:
    return total[name] / count / 1000 if count else None


def build_worker_rows(page: WorkerPage) -> list[Json]:
    """Return all living workers with what they run, the busiest first."""
    rows = [
        {
            "id": worker.worker_id,
            "kind": worker.kind,
            "status": worker.status,
            "pod": worker.pod_uid,
            "busy": worker.busy,
            "capacity": worker.capacity,
            "is_draining": worker.is_draining,
            "queues": list(worker.queues),
            "lease_seconds": worker.lease_seconds,
            "ended": worker.ended,
            "registered_ms": worker.registered_ms,
            "jobs": [
                {
                    "id": job_id,
                    "function": _function_of(page.jobs.get(job_id)),
                    "started_ms": int(started_seconds * 1000),
                }
                for job_id, started_seconds in worker.running[:_JOBS_PER_WORKER]
            ],
        }
        for worker in page.workers
    ]
    return sorted(rows, key=lambda row: (-row["busy"], row["id"]))


def _function_of(job: StoredJob | None) -> str | None:
    return job.function_name if job is not None else None


def build_cron_rows(
    tables: Iterable[CronTable], fired_ms: Mapping[str, int], keys: Keys, default_queue: str, now: datetime
) -> list[Json]:
    """Return every entry of every application, the next one first."""
    rows = []
    for table in tables:
        for entry in table.entries:
            queue = keys.queue_name(entry.queue_name or default_queue)
            next_run = entry.next_after(now)
            rows.append(
                {
                    "function": entry.function_name,
                    "schedule": entry.schedule,
                    "time_zone": entry.timezone,
                    "queue": queue,
                    "unique": entry.unique,
                    "next_ms": to_ms(next_run),
                    "last_ms": fired_ms.get(cron_digest(entry, queue)),
                    "served_queues": list(table.queues),
                    "renewed_ms": table.renewed_at_ms,
                }
            )
    return sorted(rows, key=lambda row: (row["next_ms"] is None, row["next_ms"], row["function"]))


def build_pool_rows(pools: Iterable[PoolReport], flow: FlowState) -> list[Json]:
    """Return the pools by name, each with the latest decision about its size."""
    return [
        {
            **_build_decision(pool),
            "pool": pool.pool,
            "type": pool.type,
            "queues": list(pool.queues),
            "blocked": pool.blocked,
            "is_paused": pool.is_paused or f"pool:{pool.pool}" in flow.pauses,
            "pause": _pause_json(flow.pauses.get(f"pool:{pool.pool}")),
        }
        for pool in pools
    ]


def build_decisions(decisions: Sequence[PoolDecision]) -> list[Json]:
    """Return the decisions about a pool, the newest first."""
    return [_build_decision(decision) for decision in reversed(decisions)]


def _build_decision(decision: PoolReport | PoolDecision) -> Json:
    names = ("at_ms", "replicas", "ready", "desired", "due", "busy", "reason", "words")
    return {name: getattr(decision, name) for name in names}


def build_audit_rows(entries: Iterable[AuditEntry]) -> list[Json]:
    return [
        {
            "id": entry.entry_id,
            "at_ms": to_ms(entry.at),
            "actor": entry.actor,
            "action": entry.action,
            "object": entry.object,
            "detail": dict(entry.detail),
        }
        for entry in entries
    ]
