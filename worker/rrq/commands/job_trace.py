"""``rrq job trace``: what happened to a job, in the order in which it happened."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from rrq.commands.formatting import format_duration, format_time
from rrq.commands.job_choice import read_chosen_job
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_table
from rrq.commands.redis_access import run_with_store
from rrq.jobs.stored_job import StoredJob

_SHOWN_ID_LENGTH = 8
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_END_BY_STATUS = {"COMPLETED": "Completed", "FAILED": "Failed", "CANCELLED": "Cancelled"}
#: The count may be that of a foreign hand.
_MOST_RETRIES_LISTED = 100
_END_BY_OUTCOME = {"dead": "Dead-lettered", "back": "Handed Back"}


@dataclass(frozen=True)
class Event:
    """One thing that happened; the time is None where nobody wrote it down."""

    name: str
    at: datetime | None
    details: str = ""


@click.command("trace")
@click.argument("job_id", metavar="ID")
@settings_option
@json_option
def job_trace(job_id: str, settings_path: str | None, as_json: bool) -> None:
    """Show the timeline of a job."""
    job = run_with_store(settings_path, lambda store: read_chosen_job(store, job_id))
    events = build_timeline(job)
    total_seconds = _total_seconds(events)
    if as_json:
        timeline = [_to_json(event) for event in events]
        print_json({"job_id": job_id, "events": timeline, "total_duration_seconds": total_seconds})
        return
    rows = [(event.name, format_time(event.at), event.details) for event in events]
    title = f"Job Timeline: {job_id[:_SHOWN_ID_LENGTH]}..."
    print_table(Table(title, ("Event", "Time", "Details"), rows))
    if total_seconds is not None:
        print_line(f"Total Duration: {format_duration(total_seconds)}")


def build_timeline(job: StoredJob) -> list[Event]:
    """Return what is known to have happened, in time order.

    A job remembers its last attempts. Of retries before those, and of all retries by workers of RRQ 0.7, the number
    is known and not the time; they are listed where they must have been.
    """
    events = [Event("Created", job.created_at, f"in {job.queue_name or 'the default queue'}")]
    events += _forgotten_retries(job)
    events += _attempts(job)
    told = {attempt.started_at for attempt in job.attempts}
    if job.started_at is not None and job.started_at not in told:
        events.append(_start(job.started_at, job.fields.get("worker_id")))
    if job.status == "RETRYING" and job.attempts:
        events.append(Event("Retry Due", job.due_at))
    if job.has_ended:
        reason = job.described_error if job.status == "FAILED" else None
        events.append(Event(_END_BY_STATUS[job.status], job.completed_at, reason or ""))
    # An event without a time keeps its place behind the one before it.
    latest = _LONG_AGO
    placed = []
    for event in events:
        latest = event.at or latest
        placed.append((latest, event))
    return [event for _, event in sorted(placed, key=lambda entry: entry[0])]


def _attempts(job: StoredJob) -> Iterator[Event]:
    for number, attempt in enumerate(job.attempts, 1):
        if attempt.started_at is not None:
            yield _start(attempt.started_at, attempt.worker)
        # Of the end of a dead letter its own fields tell.
        is_final = number == len(job.attempts) and job.status == "FAILED" and attempt.outcome == "dead"
        if not is_final:
            name = _END_BY_OUTCOME.get(attempt.outcome, "Attempt Failed")
            yield Event(name, attempt.ended_at, attempt.described_error)


def _start(at: datetime, worker: str | None) -> Event:
    return Event("Started", at, f"by {worker}" if worker else "")


def _forgotten_retries(job: StoredJob) -> list[Event]:
    # The count of a dead-lettered job includes the attempt after which there was no retry.
    count = max(0, job.retries - 1) if job.status == "FAILED" else job.retries
    count -= sum(attempt.outcome == "retry" for attempt in job.attempts)
    if count <= 0:
        return []
    first = max(1, count - _MOST_RETRIES_LISTED)
    earlier = [Event(f"Retry {number}", None) for number in range(first, count)]
    if job.attempts:
        return [*earlier, Event(f"Retry {count}", None)]
    return [*earlier, Event(f"Retry {count}", job.due_at, job.described_error or "")]


def _total_seconds(events: list[Event]) -> float | None:
    # A retry may lie in the future.
    now = datetime.now(UTC)
    times = [min(event.at, now) for event in events if event.at is not None]
    return (max(times) - min(times)).total_seconds() if times else None


def _to_json(event: Event) -> dict[str, Any]:
    at = None if event.at is None else event.at.isoformat()
    return {"event": event.name, "at": at, "details": event.details}
