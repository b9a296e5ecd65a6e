"""``rrq queue``: what is queued, where, and since when."""

from typing import Any

import click

from rrq.broker.messages import QueueObservation
from rrq.commands.formatting import NOTHING, describe_page, format_duration, format_ms, shorten
from rrq.commands.options import json_option, limit_option, offset_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_note, print_table
from rrq.commands.queue_stats import queue_stats
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.inspect.jobs import (
    QueuedJob,
    QueuePage,
    find_queue_names,
    observe_queues,
    read_queue_page,
    read_served_queue_names,
)
from rrq.runtime.suggestions import suggest
from rrq.store import JobStore

_COLUMNS = ("Queue Name", "Pending Jobs", "Next Job", "Oldest Job", "Orphaned")
_SHOWN_ID_LENGTH = 8
_MOST_UNSERVED_TOLD = 5


@click.group()
def queue() -> None:
    """Manage and inspect queues."""


queue.add_command(queue_stats)


@queue.command("list")
@click.option("--show-empty", is_flag=True, help="Also show queues that are served but have no jobs.")
@settings_option
@json_option
def queue_list(show_empty: bool, settings_path: str | None, as_json: bool) -> None:
    """List all active queues, the largest first.

    Orphaned jobs are those of workers whose lease has ended. A worker, the operator or local mode gives them back to
    their queue.
    """
    queues, unserved = run_with_store(settings_path, _read_queues)
    shown = {name: queue for name, queue in queues.items() if show_empty or _size(queue) or queue.orphaned}
    ordered = sorted(shown.items(), key=lambda entry: (-_size(entry[1]), entry[0]))
    if as_json:
        print_json([_queue_json(name, queue) for name, queue in ordered])
    elif not queues:
        print_line("No active queues found")
    elif not ordered:
        print_line("No queues to display")
    else:
        rows = [_queue_row(name, queue) for name, queue in ordered]
        print_table(Table("Active Queues", _COLUMNS, rows))
        total = sum(_size(queue) for _, queue in ordered)
        print_line(f"Total: {len(ordered)} queues, {total} pending jobs")
        for note in unserved:
            print_note(f"Note: {note}")


async def _read_queues(store: JobStore) -> tuple[dict[str, QueueObservation], list[str]]:
    """Return the queues, and what to say of those that nobody has ever served."""
    names = {name async for name in find_queue_names(store)}
    served = await read_served_queue_names(store)
    queues = await observe_queues(store, names | served)
    unserved = [name for name, queue in sorted(queues.items()) if name not in served and queue.due]
    return queues, [
        f"no worker has served queue '{name}' yet.{suggest(name, served)} Start one with --queue {name}, or "
        "enqueue with the _queue_name that workers serve."
        for name in unserved[:_MOST_UNSERVED_TOLD]
    ]


@queue.command("inspect")
@click.argument("queue_name", metavar="NAME")
@limit_option
@offset_option
@settings_option
@json_option
def queue_inspect(queue_name: str, limit: int, offset: int, settings_path: str | None, as_json: bool) -> None:
    """Show the jobs in a queue, in the order in which they become due."""
    page = run_with_store(settings_path, lambda store: _read_page(store, queue_name, offset, limit))
    if as_json:
        entries = [_entry_json(entry) for entry in page.entries]
        print_json({"queue": queue_name, "total": page.total, "offset": offset, "jobs": entries})
    elif page.total == 0:
        print_line(f"Queue '{queue_name}' is empty")
    else:
        _print_page(queue_name, page, offset)


async def _read_page(store: JobStore, queue_name: str, offset: int, limit: int) -> QueuePage:
    page = await read_queue_page(store, queue_name, offset, limit)
    # Redis keeps no empty queues; one that is served is there all the same.
    if page.total == 0 and store.keys.queue_name(queue_name) not in await read_served_queue_names(store):
        names = {name async for name in find_queue_names(store)} | await read_served_queue_names(store)
        raise Refusal(
            f"Queue '{queue_name}' not found. It has no jobs, and no worker has served it."
            f"{suggest(store.keys.queue_name(queue_name), names)} 'rrq queue list --show-empty' shows those there are."
        )
    return page


def _print_page(queue_name: str, page: QueuePage, offset: int) -> None:
    columns = ("#", "Job ID", "Function", "Status", "Scheduled", "Retries", "Priority")
    rows = [_entry_row(offset + number, entry) for number, entry in enumerate(page.entries, 1)]
    print_table(Table(f"Jobs in Queue: {queue_name}", columns, rows))
    last = offset + len(rows)
    print_line(describe_page(offset, len(rows), page.total))
    if last < page.total:
        print_line(f"Use --offset {last} to see more")


def _entry_row(number: int, entry: QueuedJob) -> tuple[str, ...]:
    job = entry.job
    return (
        str(number),
        shorten(entry.job_id, _SHOWN_ID_LENGTH),
        (job.function_name if job else None) or NOTHING,
        job.status if job else "MISSING",
        format_ms(entry.due_at_ms),
        str(job.retries) if job else NOTHING,
        # The score decides who comes first, so it is the only priority there is.
        f"{entry.due_at_ms:.0f}",
    )


def _entry_json(entry: QueuedJob) -> dict[str, Any]:
    job = None if entry.job is None else entry.job.to_json()
    return {"job_id": entry.job_id, "due_at_ms": entry.due_at_ms, "job": job}


def _size(queue: QueueObservation) -> int:
    return queue.due + queue.due_soon + queue.later


def _queue_row(name: str, queue: QueueObservation) -> tuple[str, ...]:
    upcoming = NOTHING if queue.next_due_ms is None else format_ms(queue.next_due_ms)
    age = queue.oldest_due_age_seconds
    return (
        name,
        str(_size(queue)),
        _first_due(queue) if queue.due else upcoming,
        NOTHING if age is None else f"due for {format_duration(age)}",
        str(queue.orphaned) if queue.orphaned else NOTHING,
    )


def _first_due(queue: QueueObservation) -> str:
    # What is due and may not start, by a pause or a limit of the queue, must not look like work for a worker.
    return "held back" if queue.blocked >= queue.due else "now"


def _queue_json(name: str, queue: QueueObservation) -> dict[str, Any]:
    return {
        "queue": name,
        "pending": _size(queue),
        "due": queue.due,
        "held": queue.blocked,
        "orphaned": queue.orphaned,
        "scheduled": queue.due_soon + queue.later,
        "next_due_ms": queue.next_due_ms,
        "oldest_due_age_seconds": queue.oldest_due_age_seconds,
    }
