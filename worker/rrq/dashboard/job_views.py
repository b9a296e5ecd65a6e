"""Jobs as lists show them, and one job with everything about it. Pure.

Times are milliseconds since 1970, durations seconds; an unknown value is null, never zero.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rrq.broker.keys import Keys
from rrq.dashboard.values import LONGEST_LINE, FoundJob, JobPage, Json, ListedJob, first_line, to_ms
from rrq.jobs.stored_job import StoredAttempt, StoredJob

_LONGEST_VALUE: Final = 64 * 1024


@dataclass(frozen=True)
class ValueRules:
    """Whether arguments and results of jobs leave the server."""

    hides_values: bool = False


def build_job_page(page: JobPage, keys: Keys, now: datetime, queue_names: Sequence[str]) -> Json:
    return {
        "queues": sorted(queue_names),
        "jobs": [build_job_row(entry, keys, now) for entry in page.jobs],
        "total": page.total,
        "looked_at": page.looked_at,
        "next_offset": page.next_offset,
    }


def build_job_row(entry: ListedJob, keys: Keys, now: datetime) -> Json:
    """Return what lists show; of a job that has expired, only the id is known."""
    extra = {"due_ms": entry.due_at_ms, "worker": entry.worker_id, "scope": entry.scope}
    if entry.job is None:
        return {"id": entry.job_id, "is_gone": True, **extra}
    row = _describe_job(entry.job, keys, now)
    return {**row, **{name: value for name, value in extra.items() if value is not None}}


def _describe_job(job: StoredJob, keys: Keys, now: datetime) -> Json:
    return {
        "id": job.job_id,
        "is_gone": False,
        "function": job.function_name,
        "queue": keys.queue_name(job.queue_name) if job.queue_name else None,
        "status": job.status,
        "created_ms": to_ms(job.created_at),
        "due_ms": to_ms(job.due_at),
        "started_ms": to_ms(job.started_at),
        "ended_ms": to_ms(job.completed_at),
        "retries": job.retries,
        "max_retries": job.number("max_retries"),
        "error": first_line(job.described_error),
        "run_seconds": job.run_seconds(now),
        "wait_seconds": job.wait_seconds(),
        "worker": job.fields.get("worker_id"),
        "scope": job.blocked_by,
    }


def build_job(found: FoundJob, keys: Keys, now: datetime, rules: ValueRules) -> Json:
    """Return everything about one job."""
    job = found.job
    return {
        **_describe_job(job, keys, now),
        "is_dead_letter": found.is_dead_letter,
        "error": job.described_error,
        "traceback": job.fields.get("traceback"),
        "timeout_seconds": job.number("job_timeout_seconds"),
        "result_ttl_seconds": job.number("result_ttl_seconds"),
        "unique_key": job.fields.get("job_unique_key"),
        "batch_id": job.fields.get("batch_id"),
        "parent_id": job.fields.get("parent_id"),
        "progress": _progress(job),
        "chain": job.chain,
        "timeline": build_timeline(job, now),
        "args": build_value(job.args, rules),
        "kwargs": build_value(job.kwargs, rules),
        "result": build_value(job.result, rules) if job.status == "COMPLETED" else None,
    }


def build_value(value: Any, rules: ValueRules) -> Json:
    """Return arguments or a result as text, cut if too long, or that they are hidden."""
    if rules.hides_values:
        return {"is_hidden": True, "is_cut": False, "text": None}
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return {"is_hidden": False, "is_cut": len(text) > _LONGEST_VALUE, "text": text[:_LONGEST_VALUE]}


def _progress(job: StoredJob) -> Json | None:
    progress = job.json("progress")
    if not isinstance(progress, dict):
        return None
    return {
        "done": _number(progress.get("done")),
        "total": _number(progress.get("total")),
        "note": str(progress.get("note") or "")[:LONGEST_LINE],
        "at_ms": _parse_ms(progress.get("at")),
    }


def build_timeline(job: StoredJob, now: datetime) -> list[Json]:
    """Return the events of a job in the order of time: enqueued, each attempt, and its state."""
    events: list[Json] = [_event("enqueued", job.created_at)]
    events += [_describe_attempt(attempt) for attempt in job.attempts]
    worker = job.fields.get("worker_id")
    if job.status == "ACTIVE":
        events.append({**_event("running", job.started_at), "worker": worker, "until_ms": to_ms(now)})
    elif job.status == "COMPLETED":
        events.append({**_event("done", job.started_at, job.completed_at), "worker": worker})
    elif job.status in ("PENDING", "RETRYING"):
        kind = "blocked" if job.blocked_by else "due"
        events.append(_event(kind, job.due_at))
    elif not any(event["kind"] in ("dead", "cancelled") for event in events):
        kind = "dead" if job.status == "FAILED" else "cancelled"
        error = first_line(job.described_error) if kind == "dead" else None
        events.append({**_event(kind, job.started_at, job.completed_at), "worker": worker, "error": error})
    return [event for event in events if event["at_ms"] is not None or event.get("ended_ms") is not None]


def _describe_attempt(attempt: StoredAttempt) -> Json:
    return {
        **_event(attempt.outcome or "ended", attempt.started_at, attempt.ended_at),
        "worker": attempt.worker or None,
        "error": first_line(attempt.described_error),
    }


def _event(kind: str, at: datetime | None, ended: datetime | None = None) -> Json:
    return {"kind": kind, "at_ms": to_ms(at), "ended_ms": to_ms(ended), "worker": None, "error": None}


def _parse_ms(value: object) -> int | None:
    """Parse a time as the scripts write it; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return to_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _number(value: object) -> int | float | None:
    return value if isinstance(value, int | float) else None
