"""``rrq job``: list, show, trace, cancel and replay single jobs."""

from typing import Any

import click

from rrq.broker.messages import CancelCode
from rrq.client import JobRequest, RRQClient
from rrq.commands.formatting import NOTHING, Table, format_duration, format_time, printable
from rrq.commands.job_show import job_show, job_trace
from rrq.commands.options import as_option, cancel_options, json_option, limit_option, max_scan_option
from rrq.commands.output import print_json, print_line, print_scan_note, print_table
from rrq.commands.redis_access import RunOnStore, job_not_found, store_option
from rrq.commands.refusal import Refusal
from rrq.flow import JobFilter
from rrq.inspect.jobs import FoundJobs, StoredJobFilter, find_newest_jobs, read_stored_job
from rrq.job import Job, JobStatus
from rrq.jobs.job_hash import parse_job_hash
from rrq.jobs.stored_job import QUEUED_STATUSES
from rrq.store import JobStore

JOB_STATUSES = [status.value.lower() for status in JobStatus if status is not JobStatus.UNKNOWN]
_COLUMNS = ("Job ID", "Function", "Queue", "Status", "Created", "Duration")


@click.group()
def job() -> None:
    """Inspect and manage jobs."""


job.add_command(job_show)
job.add_command(job_trace)


@job.command("list")
@click.option(
    "--status", type=click.Choice(JOB_STATUSES, case_sensitive=False), help="Only jobs with this status."
)
@click.option("--queue", "queue_name", help="Only jobs of this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@limit_option
@max_scan_option()
@store_option
@json_option
def job_list(
    status: str | None,
    queue_name: str | None,
    function_name: str | None,
    limit: int,
    max_scan: int,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """List jobs with filters, the newest first."""
    queue_names = None if queue_name is None else (queue_name,)
    show_jobs(run, StoredJobFilter(queue_names, function_name, status), limit, max_scan, as_json)


def show_jobs(run: RunOnStore, wanted: StoredJobFilter, limit: int, max_scan: int, as_json: bool) -> None:
    found = run(lambda store: find_newest_jobs(store, wanted, limit, max_scan))
    if as_json:
        jobs = [stored.to_json() for stored in found.newest]
        print_json({"complete": found.is_complete, "total": found.total, "jobs": jobs})
        return
    if found.newest:
        print_table(Table("Jobs", _COLUMNS, _build_rows(found)))
        print_line(f"Showing {len(found.newest)} of {found.total} total jobs")
    else:
        print_line("No jobs found")
    if not found.is_complete:
        print_scan_note(max_scan)


def _build_rows(found: FoundJobs) -> list[tuple[str, ...]]:
    return [
        (
            stored.job_id,
            stored.function_name or NOTHING,
            stored.queue_name or NOTHING,
            stored.status,
            format_time(stored.created_at),
            format_duration(stored.run_seconds(found.now)),
        )
        for stored in found.newest
    ]


@job.command("replay")
@click.argument("job_id", metavar="ID")
@click.option("--queue", "queue_name", help="Queue of the new job. Default: the queue of the old one.")
@store_option
@json_option
def job_replay(job_id: str, queue_name: str | None, run: RunOnStore, as_json: bool) -> None:
    """Enqueue a copy of a job: same function, arguments and limits, new id.

    The copy has no unique key, so it does not wait for the lock of another job.
    """
    new_job = run(lambda store: _replay(store, job_id, queue_name))
    if as_json:
        print_json({"job_id": new_job.id, "replayed_from": job_id, "queue": new_job.queue_name})
    else:
        print_line(f"Job replayed with new ID: {new_job.id}")


async def _replay(store: JobStore, job_id: str, queue_name: str | None) -> Job:
    fields = await store.get_job(job_id)
    if fields is None:
        raise job_not_found(job_id)
    # Strict: a copy whose arguments could not be read would run without any.
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
    return await enqueue_one(store, request)


async def enqueue_one(store: JobStore, request: JobRequest) -> Job:
    client = RRQClient(store.settings, job_store=store)
    try:
        return (await client.enqueue_many([request]))[0]
    finally:
        await client.close()


@job.command("cancel")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--queue", "queue_name", help="Cancel all jobs that wait in this queue instead of single ones.")
@cancel_options
@as_option
@store_option
@json_option
def job_cancel(
    job_ids: tuple[str, ...],
    queue_name: str | None,
    function_name: str | None,
    due_for_seconds: int | None,
    dry_run: bool,
    is_confirmed: bool,
    actor: str,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Cancel jobs. The worker of a running job cancels it within a moment.

    With --queue it cancels the waiting jobs that match the filter; running jobs go on. It prints their number and asks
    first, unless --yes is given.
    """
    has_filter = function_name is not None or due_for_seconds is not None or dry_run
    if bool(job_ids) == (queue_name is not None):
        raise click.UsageError("Name either the ids of the jobs, or their queue with --queue.")
    if queue_name is None:
        if has_filter:
            raise click.UsageError("--function, --due-for and --dry-run need --queue.")
        _cancel_by_id(run, job_ids, actor, as_json)
        return
    chosen = JobFilter(queue_name, function_name, due_for_seconds)
    cancel_waiting(run, chosen, actor, is_dry_run=dry_run, is_confirmed=is_confirmed, as_json=as_json)


def cancel_waiting(
    run: RunOnStore,
    chosen: JobFilter,
    actor: str,
    *,
    is_dry_run: bool,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    """Print how many waiting jobs match, ask, and cancel them."""
    count = run(lambda store: store.cancel_where(chosen, only_count=True))
    what = f"waiting job(s) {_describe(chosen)}"
    cancelled = 0
    if is_dry_run or count == 0:
        message = f"DRY RUN: Would cancel {count} {what}" if is_dry_run else f"No {what}"
    # The question goes to stderr, where it cannot spoil JSON.
    elif is_confirmed or click.confirm(printable(f"Cancel {count} {what}?"), err=True):
        cancelled = run(lambda store: store.cancel_where(chosen, actor))
        message = f"Cancelled {cancelled} {what}"
    else:
        message = "Nothing was cancelled"
    if as_json:
        print_json({"queue": chosen.queue, "matching": count, "cancelled": cancelled, "dry_run": is_dry_run})
    else:
        print_line(message)


def _describe(chosen: JobFilter) -> str:
    function = "" if chosen.function is None else f" of function {chosen.function}"
    age = "" if chosen.due_for_seconds is None else f", due for {chosen.due_for_seconds:g} s or more"
    return f"in queue {chosen.queue}{function}{age}"


def _cancel_by_id(run: RunOnStore, job_ids: tuple[str, ...], actor: str, as_json: bool) -> None:
    async def cancel_all(store: JobStore) -> tuple[list[dict[str, Any]], list[str]]:
        done, refused = [], []
        for job_id in dict.fromkeys(job_ids):
            try:
                was_running = await _cancel(store, job_id)
            except Refusal as refusal:
                refused.append(refusal.message)
                continue
            await store.audit(actor, "cancel", f"job:{job_id}", {})
            done.append({"job_id": job_id, "cancelled": not was_running, "worker_told": was_running})
        return done, refused

    done, refused = run(cancel_all)
    if as_json and done:
        print_json(done[0] if len(job_ids) == 1 else done)
    elif not as_json:
        for entry in done:
            print_line(_describe_cancelled(entry))
    if refused:
        raise Refusal("\n".join(refused))


def _describe_cancelled(entry: dict[str, Any]) -> str:
    if entry["worker_told"]:
        return f"Job '{entry['job_id']}' is running; its worker will cancel it"
    return f"Job '{entry['job_id']}' cancelled successfully"


async def _cancel(store: JobStore, job_id: str) -> bool:
    """Return whether the job was running, so that its worker cancels it. Raises Refusal when it cannot be cancelled."""
    code, status = await store.cancel_job(job_id)
    if code is CancelCode.NOT_FOUND:
        raise job_not_found(job_id)
    if code is CancelCode.ENDED and status in QUEUED_STATUSES:
        raise Refusal(await _explain_missing_entry(store, job_id))
    if code is CancelCode.ENDED:
        raise Refusal(f"Can only cancel pending jobs. Job is currently: {status}")
    if code is CancelCode.CANNOT_TELL:
        raise Refusal(
            f"Can only cancel pending jobs. Job is currently: {status} (on a worker of RRQ 0.7, which cannot cancel)"
        )
    return code is CancelCode.TOLD


async def _explain_missing_entry(store: JobStore, job_id: str) -> str:
    """Return why a job with the status of a queued one could not be removed from its queue."""
    stored = await read_stored_job(store, job_id)
    if stored is not None and stored.queue_name is None:
        return "Job has no associated queue"
    return "Failed to remove job from queue"
