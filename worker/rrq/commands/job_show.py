"""``rrq job show``: everything about one job."""

from collections.abc import Iterator

import click

from rrq.commands.formatting import NOTHING, format_duration, format_time, format_value
from rrq.commands.job_choice import read_chosen_job
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_panel
from rrq.commands.redis_access import run_with_store
from rrq.stored_job import StoredJob

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
)


@click.command("show")
@click.argument("job_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Print the stored hash as JSON, every value as its text.")
@settings_option
@json_option
def job_show(job_id: str, raw: bool, settings_path: str | None, as_json: bool) -> None:
    """Show detailed information about a job."""
    job = run_with_store(settings_path, lambda store: read_chosen_job(store, job_id))
    if raw:
        print_json(dict(job.fields))
    elif as_json:
        print_json(job.to_json())
    else:
        print_panel("Job Information", _describe(job))


def _describe(job: StoredJob) -> Iterator[tuple[str, str]]:
    yield "Job ID", job.job_id
    yield "Status", job.status
    yield "Function", job.function_name or NOTHING
    yield "Queue", job.queue_name or NOTHING
    for label, name in _TIMES:
        if name in job.fields:
            yield label, format_time(job.time(name))
    if job.started_at is not None and job.completed_at is not None:
        yield "Duration", format_duration(job.run_seconds(job.completed_at))
    yield "Retries", f"{job.retries} of {job.fields.get('max_retries', NOTHING)}"
    for label, name in _TEXTS:
        if job.fields.get(name):
            yield label, job.fields[name]
    yield "Arguments", format_value(job.args or [])
    yield "Keyword Arguments", format_value(job.kwargs or {})
    if job.status == "COMPLETED":
        yield "Result", format_value(job.result)
    if job.last_error:
        yield "Error", job.last_error
    if job.fields.get("traceback"):
        yield "Traceback", job.fields["traceback"]
