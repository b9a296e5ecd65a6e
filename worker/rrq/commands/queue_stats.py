"""``rrq queue stats``: what the stored jobs tell about each queue."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import click

from rrq.commands.formatting import format_duration
from rrq.commands.job_choice import short_queue_name
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_note, print_scan_note, print_table
from rrq.commands.redis_access import run_with_store
from rrq.inspect.counts import QueueTally
from rrq.inspect.dead_letters import DeadLetterScan
from rrq.inspect.jobs import JobScan, find_queue_names, observe_queues, read_served_queue_names
from rrq.store import JobStore

_COLUMNS = (
    *("Queue", "Total", "Pending", "Active", "Completed", "Failed", "DLQ", "Avg Wait", "Throughput"),
    "Orphaned",
)


@dataclass(frozen=True)
class _QueueStats:
    name: str
    pending: int
    orphaned: int
    """Of those active, jobs of workers whose lease has ended."""
    dead_letters: int
    tally: QueueTally

    @property
    def total(self) -> int:
        # What waits is counted in the queue itself, because the scan may not have seen all of it.
        ended = ("ACTIVE", "COMPLETED", "FAILED", "CANCELLED")
        return self.pending + sum(self.tally.statuses[status] for status in ended)


@dataclass(frozen=True)
class _Stats:
    queues: list[_QueueStats]
    is_complete: bool
    unknown: list[str]
    """Queues that were asked for, have nothing and were never served."""


@click.command("stats")
@click.option("--queue", "queue_names", multiple=True, help="Only this queue; may be repeated.")
@click.option(
    "--max-scan",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Most jobs to look at; 0 for all.",
)
@settings_option
@json_option
def queue_stats(
    queue_names: tuple[str, ...], max_scan: int, settings_path: str | None, as_json: bool
) -> None:
    """Show detailed statistics for each queue.

    Pending is exact. Orphaned jobs are those of workers whose lease has ended; they are counted up to 500. The other
    figures come from the jobs that were looked at. Throughput is that of the last hour.
    """
    stats = run_with_store(settings_path, lambda store: _read_stats(store, queue_names, max_scan))
    if as_json:
        print_json({"complete": stats.is_complete, "queues": [_to_json(queue) for queue in stats.queues]})
        return
    if not stats.queues:
        print_line("No queues found")
        return
    print_table(Table("Queue Statistics", _COLUMNS, [_row(queue) for queue in stats.queues]))
    if not stats.is_complete:
        print_scan_note(max_scan)
    for name in stats.unknown:
        print_note(f"Note: queue '{name}' has no jobs and no worker has served it yet. Is that its name?")


async def _read_stats(store: JobStore, queue_names: tuple[str, ...], max_scan: int) -> _Stats:
    now = await store.read_time()
    chosen = {store.keys.queue_name(name) for name in queue_names}
    tallies: dict[str, QueueTally] = defaultdict(QueueTally)
    scan = JobScan(store, max_scan)
    async for job in scan:
        tallies[short_queue_name(store, job)].add(job, now)
    dead: dict[str, int] = defaultdict(int)
    letters = DeadLetterScan(store, store.settings.default_dlq_name, most=max_scan)
    async for letter in letters:
        if letter.job is not None:
            dead[short_queue_name(store, letter.job)] += 1
    names = chosen or (
        {name async for name in find_queue_names(store)}
        | await read_served_queue_names(store)
        | set(tallies)
        | set(dead)
    )
    sizes = await store.batch_get_queue_sizes(sorted(names))
    seen = await observe_queues(store, names)
    orphaned = {name: queue.orphaned for name, queue in seen.items()}
    queues = [
        _QueueStats(name, size, orphaned.get(name, 0), dead[name], tallies[name])
        for name, size in sizes.items()
    ]
    served = await read_served_queue_names(store) if chosen else set()
    unknown = [queue.name for queue in queues if queue.name in chosen - served and not queue.total]
    return _Stats(queues, scan.is_complete and letters.is_complete, unknown)


def _row(stats: _QueueStats) -> tuple[str, ...]:
    statuses = stats.tally.statuses
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
        format_duration(stats.tally.average_wait_seconds),
        f"{stats.tally.completed_per_minute:.1f}/min",
        str(stats.orphaned),
    )


def _to_json(stats: _QueueStats) -> dict[str, Any]:
    statuses = stats.tally.statuses
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
        "average_wait_seconds": stats.tally.average_wait_seconds,
        "completed_per_minute": stats.tally.completed_per_minute,
    }
