"""``rrq dlq inspect``: why one job failed."""

from collections.abc import Iterator

import click

from rrq.commands.formatting import NOTHING, format_duration, format_time, format_value
from rrq.commands.job_choice import read_chosen_job
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_panel
from rrq.commands.redis_access import run_with_store
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore


@click.command("inspect")
@click.argument("job_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Print the stored hash as JSON, every value as its text.")
@settings_option
@json_option
def dlq_inspect(job_id: str, raw: bool, settings_path: str | None, as_json: bool) -> None:
    """Show a dead letter with its arguments, error and traceback."""
    job = run_with_store(settings_path, lambda store: _read(store, job_id))
    if raw:
        print_json(dict(job.fields))
    elif as_json:
        print_json(job.to_json())
    else:
        print_panel(f"Job Details: {job_id}", _describe(job))


async def _read(store: JobStore, job_id: str) -> StoredJob:
    return await read_chosen_job(store, job_id)


def _describe(job: StoredJob) -> Iterator[tuple[str, str]]:
    yield "Status", job.status
    yield "Function", job.function_name or NOTHING
    yield "Original Queue", job.queue_name or NOTHING
    yield "Retries", f"{job.retries} of {job.fields.get('max_retries', NOTHING)}"
    yield "Enqueued At", format_time(job.created_at)
    yield "Started At", format_time(job.started_at)
    yield "Failed At", format_time(job.completed_at)
    if job.started_at is not None and job.completed_at is not None:
        yield "Last Attempt Took", format_duration(job.run_seconds(job.completed_at))
    if job.fields.get("job_unique_key"):
        yield "Unique Key", job.fields["job_unique_key"]
    yield "Arguments", format_value(job.args or [])
    yield "Keyword Arguments", format_value(job.kwargs or {})
    yield "Error Information", job.described_error or NOTHING
    if job.fields.get("crash_history"):
        yield "Crashes", format_value(job.json("crash_history"))
    if job.fields.get("loss_history"):
        yield "Lost Workers", format_value(job.json("loss_history"))
    if job.fields.get("traceback"):
        yield "Traceback", job.fields["traceback"]
