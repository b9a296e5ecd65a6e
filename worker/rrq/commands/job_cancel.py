"""``rrq job cancel``: some jobs by their ids, or all that wait in a queue and fit a filter."""

from typing import Any

import click

from rrq.broker.messages import CancelCode
from rrq.commands.actor import as_option
from rrq.commands.cancel_options import filter_options
from rrq.commands.formatting import printable
from rrq.commands.job_choice import job_not_found
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.flow import JobFilter
from rrq.inspect.jobs import read_stored_job
from rrq.jobs.stored_job import QUEUED_STATUSES
from rrq.store import JobStore


@click.command("cancel")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--queue", "queue_name", help="Instead of ids: all jobs that wait in this queue.")
@filter_options
@as_option
@settings_option
@json_option
def job_cancel(
    job_ids: tuple[str, ...],
    queue_name: str | None,
    function_name: str | None,
    due_for_seconds: int | None,
    dry_run: bool,
    is_confirmed: bool,
    actor: str,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Cancel jobs. One that is running already is cancelled by its worker, within a moment.

    With --queue jobs that wait are cancelled by what they are like; those that run go on. The number is shown first,
    and asked for, unless --yes is given.
    """
    has_filter = function_name is not None or due_for_seconds is not None or dry_run
    if bool(job_ids) == (queue_name is not None):
        raise click.UsageError("Name either jobs by their ids, or their queue by --queue.")
    if queue_name is None:
        if has_filter:
            raise click.UsageError("--function, --due-for and --dry-run go with --queue.")
        _cancel_by_id(settings_path, job_ids, actor, as_json)
        return
    chosen = JobFilter(queue_name, function_name, due_for_seconds)
    cancel_chosen(
        settings_path, chosen, actor, is_dry_run=dry_run, is_confirmed=is_confirmed, as_json=as_json
    )


def cancel_chosen(
    settings_path: str | None,
    chosen: JobFilter,
    actor: str,
    *,
    is_dry_run: bool,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    """Say how many waiting jobs fit, ask, and cancel them."""
    count = run_with_store(settings_path, lambda store: store.cancel_where(chosen, only_count=True))
    where = f"waiting job(s) {_describe(chosen)}"
    cancelled = 0
    if is_dry_run or count == 0:
        message = f"DRY RUN: Would cancel {count} {where}" if is_dry_run else f"No {where}"
    # The question goes to stderr, where it cannot spoil JSON.
    elif is_confirmed or click.confirm(printable(f"Cancel {count} {where}?"), err=True):
        cancelled = run_with_store(settings_path, lambda store: store.cancel_where(chosen, actor))
        message = f"Cancelled {cancelled} {where}"
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


def _cancel_by_id(settings_path: str | None, job_ids: tuple[str, ...], actor: str, as_json: bool) -> None:
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

    done, refused = run_with_store(settings_path, cancel_all)
    if as_json and done:
        print_json(done[0] if len(job_ids) == 1 else done)
    elif not as_json:
        for entry in done:
            print_line(_describe_cancelled(entry))
    if refused:
        raise Refusal("\n".join(refused))


def _describe_cancelled(entry: dict[str, Any]) -> str:
    if entry["worker_told"]:
        return f"Job '{entry['job_id']}' is running; its worker was told to cancel it"
    return f"Job '{entry['job_id']}' cancelled successfully"


async def _cancel(store: JobStore, job_id: str) -> bool:
    """Return whether the job was running and is now being stopped. Raises Refusal when it cannot be."""
    code, status = await store.cancel_job(job_id)
    if code is CancelCode.NOT_FOUND:
        raise job_not_found(job_id)
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
