"""``rrq dlq requeue``, ``edit`` and ``delete``: what changes dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from rrq.commands.formatting import NOTHING, Table, format_time, format_value, printable, shorten
from rrq.commands.options import args_option, as_option, dlq_name_option, json_option, kwargs_option
from rrq.commands.output import print_json, print_line, print_note, print_table, show_progress
from rrq.commands.redis_access import RunOnStore, read_chosen_job, store_option
from rrq.commands.refusal import Refusal
from rrq.inspect.dead_letters import (
    LetterChoice,
    find_letters,
    group_by_queue,
    requeue_by_queue,
    requeue_dead_letters,
)
from rrq.inspect.jobs import StoredJobFilter, short_queue_name
from rrq.jobs.request import encode_arguments
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_LETTER_COLUMNS = ("Job ID", "Function", "Queue", "Error", "Failed At", "Retries")
_SHOWN_ID_LENGTH = 18
_SHOWN_ERROR_LENGTH = 50
_SHOWN_IN_DRY_RUN = 10
_IDS_IN_AUDIT = 20


def build_letter_table(title: str, jobs: Sequence[StoredJob]) -> Table:
    rows = [
        (
            shorten(job.job_id, _SHOWN_ID_LENGTH),
            job.function_name or NOTHING,
            job.queue_name or NOTHING,
            shorten(job.described_error, _SHOWN_ERROR_LENGTH),
            format_time(job.completed_at),
            str(job.retries),
        )
        for job in jobs
    ]
    return Table(title, _LETTER_COLUMNS, rows)


@dataclass(frozen=True)
class Requeue:
    """Which dead letters to requeue, and where to."""

    dlq_name: str | None
    """None for default_dlq_name of the settings."""
    wanted: StoredJobFilter
    job_id: str | None
    limit: int | None
    target_queue: str | None
    """None for the queue that each job came from."""
    actor: str
    is_dry_run: bool


@dataclass(frozen=True)
class _Requeued:
    order: Requeue
    dlq_name: str
    default_dlq_name: str
    matching: list[StoredJob]
    queued: Mapping[str, int] = field(default_factory=dict)
    """How many were queued, by the name of the queue."""
    dropped: int = 0
    """Entries that were removed from the list because their jobs had expired."""

    @property
    def count(self) -> int:
        return sum(self.queued.values())


@click.command("requeue")
@dlq_name_option
@click.option("--target-queue", help="Queue to requeue to. Default: the queue that each job came from.")
@click.option("--queue", "queue_name", help="Only jobs that came from this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option("--job-id", help="Only this job.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of jobs to requeue, the oldest first."
)
@click.option("--all", "take_all", is_flag=True, help="Requeue every job on the list.")
@click.option("--dry-run", is_flag=True, help="Only show what would be requeued.")
@as_option
@store_option
@json_option
def dlq_requeue(
    dlq_name: str | None,
    target_queue: str | None,
    queue_name: str | None,
    function_name: str | None,
    job_id: str | None,
    limit: int | None,
    take_all: bool,
    dry_run: bool,
    actor: str,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Requeue jobs from DLQ back to a live queue, the oldest first; their count of retries starts again."""
    wanted = StoredJobFilter(None if queue_name is None else (queue_name,), function_name)
    if not take_all and wanted.accepts_all and job_id is None:
        raise Refusal("Error: Must specify --all or at least one filter (--queue, --function, --job-id)")
    requeue_letters(run, Requeue(dlq_name, wanted, job_id, limit, target_queue, actor, dry_run), as_json)


def requeue_letters(run: RunOnStore, order: Requeue, as_json: bool) -> None:
    done = run(lambda store: _requeue(store, order, is_quiet=as_json))
    if as_json:
        print_json(_requeued_json(done))
    else:
        _print_requeued(done)


async def _requeue(store: JobStore, order: Requeue, *, is_quiet: bool) -> _Requeued:
    default_dlq_name = store.settings.default_dlq_name
    dlq_name = order.dlq_name or default_dlq_name
    job_ids = () if order.job_id is None else (order.job_id,)
    letters = await find_letters(store, LetterChoice(dlq_name, order.wanted, job_ids, order.limit))
    matching = [letter.job for letter in letters if letter.job is not None]
    if order.is_dry_run or not letters:
        return _Requeued(order, dlq_name, default_dlq_name, matching)
    if matching and not is_quiet:
        print_line(f"Found {len(matching)} matching jobs to requeue")
    found_ids = [letter.job_id for letter in letters]
    groups = (
        {order.target_queue: found_ids}
        if order.target_queue
        else group_by_queue(letters, store.settings.default_queue_name)
    )
    with show_progress("Requeueing", len(found_ids)) as advance:
        queued = await requeue_by_queue(store, dlq_name, groups, advance)
    detail = {"jobs": queued.total(), "queue": ", ".join(sorted(queued)), "ids": found_ids[:_IDS_IN_AUDIT]}
    await store.audit(order.actor, "requeue", f"dlq:{store.keys.dlq_name(dlq_name)}", detail)
    dropped = len(letters) - len(matching)
    return _Requeued(order, dlq_name, default_dlq_name, matching, queued, dropped)


def _print_requeued(done: _Requeued) -> None:
    order, count = done.order, len(done.matching)
    if count == 0:
        print_line(f"No matching jobs found in DLQ: {done.dlq_name}")
        if done.dlq_name != done.default_dlq_name:
            print_note(
                f"Note: the settings name {done.default_dlq_name} for dead letters; leave out --dlq-name to use it."
            )
    elif order.is_dry_run:
        print_line(f"DRY RUN: Would requeue {count} jobs")
        print_table(build_letter_table("Jobs to Requeue (Dry Run)", done.matching[:_SHOWN_IN_DRY_RUN]))
    else:
        print_line(
            f"Successfully requeued {done.count} jobs from DLQ '{done.dlq_name}' to {_describe_queues(done)}"
        )
        if done.count < count:
            print_note(
                f"Note: {count - done.count} were skipped, because they were enqueued again in the meantime."
            )
    if done.dropped:
        print_note(f"Note: {done.dropped} entries were removed because their jobs had expired.")


def _describe_queues(done: _Requeued) -> str:
    if done.order.target_queue:
        return f"queue '{done.order.target_queue}'"
    # A queue with a count of 0 is left out, unless there is no other.
    queued = {name: count for name, count in done.queued.items() if count} or done.queued
    if len(queued) == 1:
        return f"queue '{next(iter(queued))}'"
    return "queues " + ", ".join(f"'{name}' ({count})" for name, count in sorted(queued.items()))


def _requeued_json(done: _Requeued) -> dict[str, object]:
    return {
        "dlq": done.dlq_name,
        "target_queue": done.order.target_queue,
        "queues": dict(done.queued),
        "dry_run": done.order.is_dry_run,
        "matching": len(done.matching),
        "requeued": done.count,
        "dropped": done.dropped,
        "job_ids": [job.job_id for job in done.matching],
    }


@dataclass(frozen=True)
class _Edit:
    job_id: str
    dlq_name: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    requeues: bool
    actor: str


@click.command("edit")
@click.argument("job_id", metavar="ID")
@args_option
@kwargs_option
@click.option("--requeue", is_flag=True, help="Requeue the job to the queue that it came from.")
@dlq_name_option
@as_option
@store_option
@json_option
def dlq_edit(
    job_id: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    requeue: bool,
    dlq_name: str | None,
    actor: str,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Change the arguments of a dead letter; keeps those for which no option is given."""
    if args is None and kwargs is None:
        raise click.UsageError("Give --args, --kwargs or both.")
    edit = _Edit(job_id, dlq_name, args, kwargs, requeue, actor)
    new_args, new_kwargs, queue = run(lambda store: _edit(store, edit))
    if as_json:
        print_json({"job_id": job_id, "job_args": new_args, "job_kwargs": new_kwargs, "requeued_to": queue})
        return
    print_line(f"Job '{job_id}' has new arguments: {format_value(new_args)} {format_value(new_kwargs)}")
    if queue is not None:
        print_line(f"Job '{job_id}' is back in queue '{queue}'")


async def _edit(store: JobStore, edit: _Edit) -> tuple[list[Any], dict[str, Any], str | None]:
    """Return the new arguments, and the queue that the job was requeued to, if any."""
    job = await read_chosen_job(store, edit.job_id)
    dlq_name = store.keys.dlq_name(edit.dlq_name or store.settings.default_dlq_name)
    args = edit.args if edit.args is not None else _stored(job, job.args, list, "--args")
    kwargs = edit.kwargs if edit.kwargs is not None else _stored(job, job.kwargs, dict, "--kwargs")
    encoded = encode_arguments(args, kwargs, job.function_name or "")
    if not await store.edit_dead_letter(dlq_name, edit.job_id, *encoded, edit.actor):
        raise Refusal(f"Job '{edit.job_id}' is not in DLQ {dlq_name}, so its arguments stay as they are")
    if not edit.requeues:
        return args, kwargs, None
    queue = short_queue_name(store, job)
    if not await requeue_dead_letters(store, dlq_name, queue, [edit.job_id]):
        raise Refusal(
            f"Job '{edit.job_id}' has new arguments, but was not requeued: it was enqueued again in the meantime"
        )
    await store.audit(
        edit.actor, "requeue", f"dlq:{dlq_name}", {"jobs": 1, "queue": queue, "ids": [edit.job_id]}
    )
    return args, kwargs, queue


def _stored(job: StoredJob, value: Any, kind: type, option: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise Refusal(f"The stored arguments of job '{job.job_id}' cannot be read; give {option} too")
    return value


@click.command("delete")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@dlq_name_option
@click.option("--queue", "queue_name", help="Only jobs that came from this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option("--all", "take_all", is_flag=True, help="Delete every job on the list.")
@click.option("--dry-run", is_flag=True, help="Only print how many jobs would be deleted.")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@as_option
@store_option
@json_option
def dlq_delete(
    job_ids: tuple[str, ...],
    dlq_name: str | None,
    queue_name: str | None,
    function_name: str | None,
    take_all: bool,
    dry_run: bool,
    is_confirmed: bool,
    actor: str,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Delete dead letters for good, with arguments, error and history.

    It prints their number and asks first, unless --yes is given.
    """
    wanted = StoredJobFilter(None if queue_name is None else (queue_name,), function_name)
    if not take_all and wanted.accepts_all and not job_ids:
        raise Refusal("ERROR: Choose the jobs with ids, --queue, --function, or --all.")

    async def find(store: JobStore) -> tuple[str, list[str]]:
        name = store.keys.dlq_name(dlq_name or store.settings.default_dlq_name)
        letters = await find_letters(store, LetterChoice(name, wanted, job_ids))
        return name, [letter.job_id for letter in letters]

    name, found = run(find)
    count, deleted = len(found), 0
    if dry_run or not found:
        message = (
            f"DRY RUN: Would delete {count} jobs" if dry_run else f"No matching jobs found in DLQ: {name}"
        )
    # The question goes to stderr, where it cannot spoil JSON.
    elif is_confirmed or click.confirm(printable(f"Delete {count} jobs of DLQ {name} for good?"), err=True):
        deleted = run(lambda store: store.delete_dead_letters(name, found, actor))
        message = f"Deleted {deleted} jobs from DLQ '{name}'"
    else:
        message = "Nothing was deleted"
    if as_json:
        print_json({"dlq": name, "dry_run": dry_run, "matching": count, "deleted": deleted, "job_ids": found})
    else:
        print_line(message)
