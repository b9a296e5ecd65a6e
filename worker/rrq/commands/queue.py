"""``rrq queue``: what is queued, where, and since when."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import click

from rrq.broker.messages import QueueObservation
from rrq.commands.formatting import NOTHING, Table, describe_page, format_duration, format_ms, shorten
from rrq.commands.options import json_option, limit_option, max_scan_option, offset_option
from rrq.commands.output import print_json, print_line, print_note, print_scan_note, print_table
from rrq.commands.redis_access import RunOnStore, store_option
from rrq.commands.refusal import Refusal
from rrq.inspect.counts import QueueCounts
from rrq.inspect.dead_letters import DeadLetterScan
from rrq.inspect.jobs import (
    JobScan,
    QueuedJob,
    QueuePage,
    find_queue_names,
    observe_queues,
    read_queue_page,
    read_served_queue_names,
    short_queue_name,
)
from rrq.runtime.suggestions import suggest
from rrq.store import JobStore

_LIST_COLUMNS = ("Queue Name", "Pending Jobs", "Next Job", "Oldest Job", "Orphaned")
_STATS_COLUMNS = (
    *("Queue", "Total", "Pending", "Active", "Completed", "Failed", "DLQ", "Avg Wait", "Throughput"),
    "Orphaned",
)
_SHOWN_ID_LENGTH = 8
_MOST_UNSERVED_SHOWN = 5


@click.group()
def queue() -> None:
    """Manage and inspect queues."""


@queue.command("list")
@click.option("--show-empty", is_flag=True, help="Also show queues that are served but have no jobs.")
@store_option
@json_option
def queue_list(show_empty: bool, run: RunOnStore, as_json: bool) -> None:
    """List all active queues, the largest first.

    Orphaned jobs belong to workers whose lease has ended. A worker, the operator or local mode returns them to their
    queue.
    """
    queues, unserved = run(_read_queues)
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
        print_table(Table("Active Queues", _LIST_COLUMNS, rows))
        total = sum(_size(queue) for _, queue in ordered)
        print_line(f"Total: {len(ordered)} queues, {total} pending jobs")
        for note in unserved:
            print_note(f"Note: {note}")


async def _read_queues(store: JobStore) -> tuple[dict[str, QueueObservation], list[str]]:
    """Return the queues, and a note for each queue with due jobs that no worker has ever served."""
    names = {name async for name in find_queue_names(store)}
    served = await read_served_queue_names(store)
    queues = await observe_queues(store, names | served)
    unserved = [name for name, queue in sorted(queues.items()) if name not in served and queue.due]
    return queues, [
        f"no worker has served queue '{name}' yet.{suggest(name, served)} Start one with --queue {name}, or "
        "enqueue with the _queue_name that workers serve."
        for name in unserved[:_MOST_UNSERVED_SHOWN]
    ]


@queue.command("inspect")
@click.argument("queue_name", metavar="NAME")
@limit_option
@offset_option
@store_option
@json_option
def queue_inspect(queue_name: str, limit: int, offset: int, run: RunOnStore, as_json: bool) -> None:
    """Show the jobs in a queue, in the order in which they become due."""
    page = run(lambda store: _read_page(store, queue_name, offset, limit))
    if as_json:
        entries = [_entry_json(entry) for entry in page.entries]
        print_json({"queue": queue_name, "total": page.total, "offset": offset, "jobs": entries})
    elif page.total == 0:
        print_line(f"Queue '{queue_name}' is empty")
    else:
        _print_page(queue_name, page, offset)


async def _read_page(store: JobStore, queue_name: str, offset: int, limit: int) -> QueuePage:
    page = await read_queue_page(store, queue_name, offset, limit)
    # Redis stores no empty queue, but a queue that workers serve exists without jobs.
    if page.total == 0 and store.keys.queue_name(queue_name) not in await read_served_queue_names(store):
        names = {name async for name in find_queue_names(store)} | await read_served_queue_names(store)
        raise Refusal(
            f"Queue '{queue_name}' not found. It has no jobs, and no worker has served it."
            f"{suggest(store.keys.queue_name(queue_name), names)} 'rrq queue list --show-empty' lists all queues."
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
        # Jobs start in the order of the score, so it is the only priority.
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
    # Due jobs that a pause or a limit of the queue blocks must not look like work for a worker.
    return "blocked" if queue.blocked >= queue.due else "now"


def _queue_json(name: str, queue: QueueObservation) -> dict[str, Any]:
    return {
        "queue": name,
        "pending": _size(queue),
        "due": queue.due,
        "blocked": queue.blocked,
        "orphaned": queue.orphaned,
        "scheduled": queue.due_soon + queue.later,
        "next_due_ms": queue.next_due_ms,
        "oldest_due_age_seconds": queue.oldest_due_age_seconds,
    }


@dataclass(frozen=True)
class _QueueStats:
    name: str
    pending: int
    orphaned: int
    """Active jobs of workers whose lease has ended."""
    dead_letters: int
    counts: QueueCounts

    @property
    def total(self) -> int:
        # Pending jobs are counted in the queue itself, because the scan may not have read all of them.
        ended = ("ACTIVE", "COMPLETED", "FAILED", "CANCELLED")
        return self.pending + sum(self.counts.statuses[status] for status in ended)


@dataclass(frozen=True)
class _Stats:
    queues: list[_QueueStats]
    is_complete: bool
    unknown: list[str]
    """Chosen queues that have no jobs and were never served."""


@queue.command("stats")
@click.option("--queue", "queue_names", multiple=True, help="Only this queue; may be repeated.")
@max_scan_option(1000)
@store_option
@json_option
def queue_stats(queue_names: tuple[str, ...], max_scan: int, run: RunOnStore, as_json: bool) -> None:
    """Show detailed statistics for each queue.

    Pending is exact. Orphaned jobs belong to workers whose lease has ended; they are counted up to 500. The other
    figures come from the jobs that were read. Throughput is the mean of the last hour.
    """
    stats = run(lambda store: _read_stats(store, queue_names, max_scan))
    if as_json:
        print_json({"complete": stats.is_complete, "queues": [_stats_json(queue) for queue in stats.queues]})
        return
    if not stats.queues:
        print_line("No queues found")
        return
    print_table(Table("Queue Statistics", _STATS_COLUMNS, [_stats_row(queue) for queue in stats.queues]))
    if not stats.is_complete:
        print_scan_note(max_scan)
    for name in stats.unknown:
        print_note(f"Note: queue '{name}' has no jobs and no worker has served it yet. Is that its name?")


async def _read_stats(store: JobStore, queue_names: tuple[str, ...], max_scan: int) -> _Stats:
    now = await store.read_time()
    chosen = {store.keys.queue_name(name) for name in queue_names}
    counts: dict[str, QueueCounts] = defaultdict(QueueCounts)
    scan = JobScan(store, max_scan)
    async for job in scan:
        counts[short_queue_name(store, job)].add(job, now)
    dead: dict[str, int] = defaultdict(int)
    letters = DeadLetterScan(store, store.settings.default_dlq_name, most=max_scan)
    async for letter in letters:
        if letter.job is not None:
            dead[short_queue_name(store, letter.job)] += 1
    names = chosen or (
        {name async for name in find_queue_names(store)}
        | await read_served_queue_names(store)
        | set(counts)
        | set(dead)
    )
    sizes = await store.batch_get_queue_sizes(sorted(names))
    seen = await observe_queues(store, names)
    orphaned = {name: queue.orphaned for name, queue in seen.items()}
    queues = [
        _QueueStats(name, size, orphaned.get(name, 0), dead[name], counts[name])
        for name, size in sizes.items()
    ]
    served = await read_served_queue_names(store) if chosen else set()
    unknown = [queue.name for queue in queues if queue.name in chosen - served and not queue.total]
    return _Stats(queues, scan.is_complete and letters.is_complete, unknown)


def _stats_row(stats: _QueueStats) -> tuple[str, ...]:
    statuses = stats.counts.statuses
    counts = (
        stats.total,
        stats.pending,
        statuses["ACTIVE"],
        statuses["COMPLETED"],
        statuses["FAILED"],
        stats.dead_letters,
    )
    return (
        stats.name,
        *map(str, counts),
        format_duration(stats.counts.average_wait_seconds),
        f"{stats.counts.completed_per_minute:.1f}/min",
        str(stats.orphaned),
    )


def _stats_json(stats: _QueueStats) -> dict[str, Any]:
    statuses = stats.counts.statuses
    return {
        "queue": stats.name,
        "total": stats.total,
        "pending": stats.pending,
        "active": statuses["ACTIVE"],
        "orphaned": stats.orphaned,
        "completed": statuses["COMPLETED"],
        "failed": statuses["FAILED"],
        "cancelled": statuses["CANCELLED"],
        "dead_letters": stats.dead_letters,
        "average_wait_seconds": stats.counts.average_wait_seconds,
        "completed_per_minute": stats.counts.completed_per_minute,
    }
