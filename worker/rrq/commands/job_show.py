"""``rrq job show``: everything about one job."""

from collections.abc import Iterator

import click

from rrq.commands.flow_words import describe_wait
from rrq.commands.formatting import NOTHING, format_duration, format_time, format_value
from rrq.commands.job_choice import read_chosen_job, short_queue_name
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_panel
from rrq.commands.redis_access import run_with_store
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


@click.command("show")
@click.argument("job_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Print the stored hash as JSON, every value as its text.")
@settings_option
@json_option
def job_show(job_id: str, raw: bool, settings_path: str | None, as_json: bool) -> None:
    """Show detailed information about a job."""
    job, wait = run_with_store(settings_path, lambda store: _read(store, job_id))
    if raw:
        print_json(dict(job.fields))
    elif as_json:
        print_json(job.to_json() | {"waits_for": wait})
    else:
        print_panel("Job Information", _describe(job, wait))


async def _read(store: JobStore, job_id: str) -> tuple[StoredJob, str | None]:
    """Return the job and, while it is held back, by what."""
    job = await read_chosen_job(store, job_id)
    if job.status not in QUEUED_STATUSES:
        return job, None
    state = await store.read_flow()
    return job, describe_wait(state, short_queue_name(store, job), job.function_name or "", job.blocked_by)


def _describe(job: StoredJob, wait: str | None) -> Iterator[tuple[str, str]]:
    yield "Job ID", job.job_id
    yield "Status", job.status
    if wait is not None:
        yield "Waits", wait
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
    """Return how far a job has come: ``3 of 10 (30 %), rows imported``."""
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
