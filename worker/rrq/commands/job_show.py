"""``rrq job show`` and ``rrq job trace``: everything about one job, and what happened to it in the order of time."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from rrq.commands.flow_text import describe_block
from rrq.commands.formatting import NOTHING, Table, format_duration, format_time, format_value
from rrq.commands.options import json_option
from rrq.commands.output import print_json, print_line, print_panel, print_table
from rrq.commands.redis_access import RunOnStore, read_chosen_job, store_option
from rrq.inspect.jobs import LONG_AGO, short_queue_name
from rrq.jobs.stored_job import QUEUED_STATUSES, StoredAttempt, StoredJob
from rrq.store import JobStore

_TIMES = (
    ("Created", "enqueue_time"),
    ("Scheduled", "next_scheduled_run_time"),
    ("Started", "start_time"),
    ("Completed", "completion_time"),
)
_TEXTS = (
    ("Unique Key", "job_unique_key"),
    ("Worker", "worker_id"),
    ("Timeout (s)", "job_timeout_seconds"),
    ("Result TTL (s)", "result_ttl_seconds"),
    ("Limit Key", "limit_key"),
    ("Batch", "batch_id"),
    ("Follows Job", "parent_id"),
    ("Cursor", "cursor"),
    ("Lost Workers", "losses"),
)
_SHOWN_ID_LENGTH = 8
_END_BY_STATUS = {"COMPLETED": "Completed", "FAILED": "Failed", "CANCELLED": "Cancelled"}
#: The stored count may be any number.
_MOST_RETRIES_LISTED = 100
_END_BY_OUTCOME = {"dead": "Dead-lettered", "back": "Handed Back"}


@click.command("show")
@click.argument("job_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Print the stored hash as JSON, every value as its text.")
@store_option
@json_option
def job_show(job_id: str, raw: bool, run: RunOnStore, as_json: bool) -> None:
    """Show detailed information about a job."""
    job, block = run(lambda store: _read(store, job_id))
    if raw:
        print_json(dict(job.fields))
    elif as_json:
        print_json(job.to_json() | {"blocked_by": block})
    else:
        print_panel("Job Information", _describe(job, block))


async def _read(store: JobStore, job_id: str) -> tuple[StoredJob, str | None]:
    """Return the job and, while a pause or a limit blocks it, which one."""
    job = await read_chosen_job(store, job_id)
    if job.status not in QUEUED_STATUSES:
        return job, None
    state = await store.read_flow()
    return job, describe_block(state, short_queue_name(store, job), job.function_name or "", job.blocked_by)


def _describe(job: StoredJob, block: str | None) -> Iterator[tuple[str, str]]:
    yield "Job ID", job.job_id
    yield "Status", job.status
    if block is not None:
        yield "Blocked By", block
    yield "Function", job.function_name or NOTHING
    yield "Queue", job.queue_name or NOTHING
    for label, name in _TIMES:
        if name in job.fields:
            yield label, format_time(job.time(name))
    if job.started_at is not None and job.completed_at is not None:
        yield "Duration", format_duration(job.run_seconds(job.completed_at))
    yield "Retries", f"{job.retries} of {job.fields.get('max_retries', NOTHING)}"
    if job.fields.get("progress"):
        yield "Progress", _describe_progress(job.json("progress"))
    if job.attempts:
        yield "Attempts Before", "\n".join(map(_describe_attempt, job.attempts))
    if job.chain:
        yield "Then", ", ".join(job.chain)
    for label, name in _TEXTS:
        if job.fields.get(name):
            yield label, job.fields[name]
    yield "Arguments", format_value(job.args or [])
    yield "Keyword Arguments", format_value(job.kwargs or {})
    if job.status == "COMPLETED":
        yield "Result", format_value(job.result)
    if job.described_error:
        yield "Error", job.described_error
    if job.fields.get("traceback"):
        yield "Traceback", job.fields["traceback"]


def _describe_progress(progress: object) -> str:
    """Return the progress as text: ``3 of 10 (30 %), rows imported``."""
    if not isinstance(progress, dict):
        return format_value(progress)
    done, total, note = progress.get("done"), progress.get("total"), progress.get("note")
    words = format_value(done)
    if total is not None:
        words += f" of {format_value(total)}"
        words += _describe_share(done, total)
    return f"{words}, {note}" if note else words


def _describe_share(done: object, total: object) -> str:
    if not isinstance(done, int | float) or not isinstance(total, int | float) or total <= 0:
        return ""
    try:
        return f" ({100 * done / total:.0f} %)"
    except OverflowError:
        # JSON has whole numbers of any length.
        return ""


def _describe_attempt(attempt: StoredAttempt) -> str:
    started, worker = format_time(attempt.started_at), attempt.worker or NOTHING
    took = None
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
    error = f": {attempt.described_error}" if attempt.described_error else ""
    return f"{started} by {worker}, {attempt.outcome or 'ended'} after {format_duration(took)}{error}"


@dataclass(frozen=True)
class _Event:
    """One thing that happened; the time is None where it was not stored."""

    name: str
    at: datetime | None
    details: str = ""


@click.command("trace")
@click.argument("job_id", metavar="ID")
@store_option
@json_option
def job_trace(job_id: str, run: RunOnStore, as_json: bool) -> None:
    """Show the timeline of a job."""
    job = run(lambda store: read_chosen_job(store, job_id))
    events = _build_timeline(job)
    total_seconds = _total_seconds(events)
    if as_json:
        timeline = [_event_json(event) for event in events]
        print_json({"job_id": job_id, "events": timeline, "total_duration_seconds": total_seconds})
        return
    rows = [(event.name, format_time(event.at), event.details) for event in events]
    title = f"Job Timeline: {job_id[:_SHOWN_ID_LENGTH]}..."
    print_table(Table(title, ("Event", "Time", "Details"), rows))
    if total_seconds is not None:
        print_line(f"Total Duration: {format_duration(total_seconds)}")


def _build_timeline(job: StoredJob) -> list[_Event]:
    """Return the known events in the order of time.

    A job stores its last attempts. Of earlier retries, and of all retries by workers of RRQ 0.7, only the number is
    stored; they are listed without a time, before the attempts.
    """
    events = [_Event("Created", job.created_at, f"in {job.queue_name or 'the default queue'}")]
    events += _forgotten_retries(job)
    events += _attempts(job)
    known_starts = {attempt.started_at for attempt in job.attempts}
    if job.started_at is not None and job.started_at not in known_starts:
        events.append(_start(job.started_at, job.fields.get("worker_id")))
    if job.status == "RETRYING" and job.attempts:
        events.append(_Event("Retry Due", job.due_at))
    if job.has_ended:
        reason = job.described_error if job.status == "FAILED" else None
        events.append(_Event(_END_BY_STATUS[job.status], job.completed_at, reason or ""))
    # An event without a time keeps its place behind the one before it.
    latest = LONG_AGO
    placed = []
    for event in events:
        latest = event.at or latest
        placed.append((latest, event))
    return [event for _, event in sorted(placed, key=lambda entry: entry[0])]


def _attempts(job: StoredJob) -> Iterator[_Event]:
    for number, attempt in enumerate(job.attempts, 1):
        if attempt.started_at is not None:
            yield _start(attempt.started_at, attempt.worker)
        # The end of a dead letter is in the fields of the job itself.
        is_final = number == len(job.attempts) and job.status == "FAILED" and attempt.outcome == "dead"
        if not is_final:
            name = _END_BY_OUTCOME.get(attempt.outcome, "Attempt Failed")
            yield _Event(name, attempt.ended_at, attempt.described_error)


def _start(at: datetime, worker: str | None) -> _Event:
    return _Event("Started", at, f"by {worker}" if worker else "")


def _forgotten_retries(job: StoredJob) -> list[_Event]:
    # The count of a dead-lettered job includes the attempt after which there was no retry.
    count = max(0, job.retries - 1) if job.status == "FAILED" else job.retries
    count -= sum(attempt.outcome == "retry" for attempt in job.attempts)
    if count <= 0:
        return []
    first = max(1, count - _MOST_RETRIES_LISTED)
    earlier = [_Event(f"Retry {number}", None) for number in range(first, count)]
    if job.attempts:
        return [*earlier, _Event(f"Retry {count}", None)]
    return [*earlier, _Event(f"Retry {count}", job.due_at, job.described_error or "")]


def _total_seconds(events: list[_Event]) -> float | None:
    # A retry may lie in the future.
    now = datetime.now(UTC)
    times = [min(event.at, now) for event in events if event.at is not None]
    return (max(times) - min(times)).total_seconds() if times else None


def _event_json(event: _Event) -> dict[str, Any]:
    at = None if event.at is None else event.at.isoformat()
    return {"event": event.name, "at": at, "details": event.details}
