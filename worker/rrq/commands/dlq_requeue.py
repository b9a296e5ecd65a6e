"""``rrq dlq requeue``: give dead letters a fresh start."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import click

from rrq.commands.actor import as_option
from rrq.commands.dlq_choice import LetterChoice, find_letters
from rrq.commands.dlq_list import DEAD_LETTER_COLUMNS, dead_letter_row
from rrq.commands.job_choice import JobFilter, dlq_name_option
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_note, print_table
from rrq.commands.progress import showing_progress
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.inspect.dead_letters import group_by_queue, requeue_by_queue
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_SHOWN_IN_DRY_RUN = 10
_NAMED_IN_AUDIT = 20


@dataclass(frozen=True)
class _Order:
    """What the user asked for, with the names filled in."""

    choice: LetterChoice
    target_queue: str | None
    """None for the queue that each job came from."""
    actor: str
    is_dry_run: bool
    is_quiet: bool
    usual_dlq_name: str


@dataclass(frozen=True)
class _Done:
    order: _Order
    matching: list[StoredJob]
    queued: Mapping[str, int] = field(default_factory=dict)
    """How many were queued, by the name of the queue."""
    dropped: int = 0
    """Entries taken off the list because their jobs had expired."""

    @property
    def requeued(self) -> int:
        return sum(self.queued.values())


@click.command("requeue")
@dlq_name_option
@click.option("--target-queue", help="Queue to put them into. Default: the one that each came from.")
@click.option("--queue", "queue_name", help="Only jobs that came from this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option("--job-id", help="Only this job.")
@click.option("--limit", type=click.IntRange(min=1), help="Most jobs to requeue, the oldest first.")
@click.option("--all", "take_all", is_flag=True, help="Requeue every job on the list.")
@click.option("--dry-run", is_flag=True, help="Only show what would be requeued.")
@as_option
@settings_option
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
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Requeue jobs from DLQ back to a live queue, the oldest first, with all their attempts again."""
    wanted = JobFilter(queue_name, function_name)
    if not take_all and wanted.is_open and job_id is None:
        raise Refusal("Error: Must specify --all or at least one filter (--queue, --function, --job-id)")

    async def requeue(store: JobStore) -> _Done:
        choice = LetterChoice(
            dlq_name or store.settings.default_dlq_name, wanted, () if job_id is None else (job_id,), limit
        )
        return await _requeue(
            store, _Order(choice, target_queue, actor, dry_run, as_json, store.settings.default_dlq_name)
        )

    done = run_with_store(settings_path, requeue)
    if as_json:
        print_json(_to_json(done))
    else:
        _print(done)


async def _requeue(store: JobStore, order: _Order) -> _Done:
    letters, dlq_name = await find_letters(store, order.choice), order.choice.dlq_name
    matching = [letter.job for letter in letters if letter.job is not None]
    if order.is_dry_run or not letters:
        return _Done(order, matching)
    if matching and not order.is_quiet:
        print_line(f"Found {len(matching)} matching jobs to requeue")
    job_ids = [letter.job_id for letter in letters]
    groups = {order.target_queue: job_ids} if order.target_queue else None
    if groups is None:
        groups = group_by_queue(letters, store.settings.default_queue_name)
    with showing_progress("Requeueing", len(job_ids)) as advance:
        queued = await requeue_by_queue(store, dlq_name, groups, advance)
    done = _Done(order, matching, queued, len(letters) - len(matching))
    await _note(store, done, job_ids)
    return done


async def _note(store: JobStore, done: _Done, job_ids: list[str]) -> None:
    order, queues = done.order, ", ".join(sorted(done.queued))
    detail = {"jobs": done.requeued, "queue": queues, "ids": job_ids[:_NAMED_IN_AUDIT]}
    await store.audit(order.actor, "requeue", f"dlq:{store.keys.dlq_name(order.choice.dlq_name)}", detail)


def _print(done: _Done) -> None:
    order, count = done.order, len(done.matching)
    if count == 0:
        print_line(f"No matching jobs found in DLQ: {order.choice.dlq_name}")
        if order.choice.dlq_name != order.usual_dlq_name:
            print_note(
                f"Note: the settings name {order.usual_dlq_name} for dead letters; leave --dlq-name out to use that."
            )
    elif order.is_dry_run:
        print_line(f"DRY RUN: Would requeue {count} jobs")
        rows = [dead_letter_row(job) for job in done.matching[:_SHOWN_IN_DRY_RUN]]
        print_table(Table("Jobs to Requeue (Dry Run)", DEAD_LETTER_COLUMNS, rows))
    else:
        print_line(
            f"Successfully requeued {done.requeued} jobs from DLQ '{order.choice.dlq_name}' "
            f"to {_describe_queues(done)}"
        )
        if done.requeued < count:
            print_note(f"Note: {count - done.requeued} were left alone: they have been enqueued anew.")
    if done.dropped:
        print_note(f"Note: {done.dropped} entries were dropped because their jobs had expired.")


def _describe_queues(done: _Done) -> str:
    if done.order.target_queue:
        return f"queue '{done.order.target_queue}'"
    # Where nothing was queued, its jobs had expired or were enqueued anew.
    queued = {name: count for name, count in done.queued.items() if count} or done.queued
    if len(queued) == 1:
        return f"queue '{next(iter(queued))}'"
    return "queues " + ", ".join(f"'{name}' ({count})" for name, count in sorted(queued.items()))


def _to_json(done: _Done) -> dict[str, object]:
    return {
        "dlq": done.order.choice.dlq_name,
        "target_queue": done.order.target_queue,
        "queues": dict(done.queued),
        "dry_run": done.order.is_dry_run,
        "matching": len(done.matching),
        "requeued": done.requeued,
        "dropped": done.dropped,
        "job_ids": [job.job_id for job in done.matching],
    }
