"""``rrq job``: look at single jobs, cancel them, run them once more."""

import click

from rrq.client import JobRequest, RRQClient
from rrq.commands.job_cancel import job_cancel
from rrq.commands.job_choice import job_not_found
from rrq.commands.job_list import job_list
from rrq.commands.job_show import job_show
from rrq.commands.job_trace import job_trace
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.redis_access import run_with_store
from rrq.job import Job
from rrq.jobs.job_hash import parse_job_hash
from rrq.store import JobStore


@click.group()
def job() -> None:
    """Inspect and manage jobs."""


job.add_command(job_cancel)
job.add_command(job_list)
job.add_command(job_show)
job.add_command(job_trace)


@job.command("replay")
@click.argument("job_id", metavar="ID")
@click.option("--queue", "queue_name", help="Queue for the new job. Default: the queue of the old one.")
@settings_option
@json_option
def job_replay(job_id: str, queue_name: str | None, settings_path: str | None, as_json: bool) -> None:
    """Enqueue a copy of a job: same function, arguments and limits, new id.

    The copy has no unique key: it was asked for by name and should not wait for the lock of another.
    """
    new_job = run_with_store(settings_path, lambda store: _replay(store, job_id, queue_name))
    if as_json:
        print_json({"job_id": new_job.id, "replayed_from": job_id, "queue": new_job.queue_name})
    else:
        print_line(f"Job replayed with new ID: {new_job.id}")


async def _replay(store: JobStore, job_id: str, queue_name: str | None) -> Job:
    fields = await store.get_job(job_id)
    if fields is None:
        raise job_not_found(job_id)
    # Strict: a copy whose arguments could not be read would run with none.
    old = parse_job_hash(job_id, fields)
    request = JobRequest(
        old.function_name,
        old.job_args,
        old.job_kwargs,
        queue_name=queue_name or old.queue_name,
        max_retries=old.max_retries,
        job_timeout_seconds=old.job_timeout_seconds,
        result_ttl_seconds=old.result_ttl_seconds,
        trace_context=old.trace_context,
    )
    client = RRQClient(store.settings, job_store=store)
    try:
        return (await client.enqueue_many([request]))[0]
    finally:
        await client.close()
