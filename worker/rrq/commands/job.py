"""``rrq job``: look at single jobs, cancel them, run them once more."""

import click

from rrq.client import JobRequest, RRQClient
from rrq.commands.job_list import job_list
from rrq.commands.job_show import job_show
from rrq.commands.job_trace import job_trace
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.decoding import parse_job_hash
from rrq.inspection import read_stored_job
from rrq.job import Job
from rrq.messages import CancelCode
from rrq.store import JobStore
from rrq.stored_job import QUEUED_STATUSES


@click.group()
def job() -> None:
    """Inspect and manage jobs."""


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
        raise Refusal(f"Job '{job_id}' not found")
    # Strict: a copy whose arguments could not be read would run with none.
    old = parse_job_hash(job_id, fields)
    request = JobRequest(
        old.function_name,
        old.job_args,
        old.job_kwargs,
        queue_name or old.queue_name,
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


@job.command("cancel")
@click.argument("job_id", metavar="ID")
@settings_option
@json_option
def job_cancel(job_id: str, settings_path: str | None, as_json: bool) -> None:
    """Cancel a job. One that is running already is cancelled by its worker, within a moment."""
    was_running = run_with_store(settings_path, lambda store: _cancel(store, job_id))
    if as_json:
        print_json({"job_id": job_id, "cancelled": not was_running, "worker_told": was_running})
    elif was_running:
        print_line(f"Job '{job_id}' is running; its worker was told to cancel it")
    else:
        print_line(f"Job '{job_id}' cancelled successfully")


async def _cancel(store: JobStore, job_id: str) -> bool:
    """Return whether the job was running and is now being stopped. Raises Refusal when it cannot be."""
    code, status = await store.cancel_job(job_id)
    if code is CancelCode.NOT_FOUND:
        raise Refusal(f"Job '{job_id}' not found")
    if code is CancelCode.ENDED and status in QUEUED_STATUSES:
        raise Refusal(await _explain_missing_entry(store, job_id))
    if code is CancelCode.ENDED:
        raise Refusal(f"Can only cancel pending jobs. Job is currently: {status}")
    if code is CancelCode.CANNOT_TELL:
        raise Refusal(
            f"Can only cancel pending jobs. Job is currently: {status} (on a worker that cannot be "
            "told, as of RRQ 0.7)"
        )
    return code is CancelCode.TOLD


async def _explain_missing_entry(store: JobStore, job_id: str) -> str:
    """Say why a job that calls itself queued could not be taken off its queue."""
    stored = await read_stored_job(store, job_id)
    if stored is not None and stored.queue_name is None:
        return "Job has no associated queue"
    return "Failed to remove job from queue"
