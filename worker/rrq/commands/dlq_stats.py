"""``rrq dlq stats``: what the dead letters have in common."""

from collections import Counter
from dataclasses import dataclass, field

import click

from rrq.commands.formatting import NOTHING, format_time
from rrq.commands.job_choice import dlq_name_option, short_queue_name
from rrq.commands.options import json_option, max_scan_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_note, print_scan_note, print_table
from rrq.commands.redis_access import run_with_store
from rrq.inspect.counts import DeadLetterTally
from rrq.inspect.dead_letters import DeadLetterScan, count_dead_letters
from rrq.store import JobStore

_MOST_PATTERNS = 10


@dataclass
class _Stats:
    dlq_name: str
    total: int
    expired: int = 0
    is_complete: bool = True
    tally: DeadLetterTally = field(default_factory=DeadLetterTally)


@click.command("stats")
@dlq_name_option
@max_scan_option
@settings_option
@json_option
def dlq_stats(dlq_name: str | None, max_scan: int, settings_path: str | None, as_json: bool) -> None:
    """Show DLQ statistics and error patterns."""
    stats = run_with_store(settings_path, lambda store: _read(store, dlq_name, max_scan))
    if as_json:
        print_json(_to_json(stats))
    elif stats.total == 0:
        print_line(f"DLQ '{stats.dlq_name}' is empty")
    else:
        _print(stats, max_scan)


async def _read(store: JobStore, dlq_name: str | None, max_scan: int) -> _Stats:
    name = dlq_name or store.settings.default_dlq_name
    stats = _Stats(name, await count_dead_letters(store, name))
    letters = DeadLetterScan(store, name, most=max_scan)
    async for letter in letters:
        if letter.job is None:
            stats.expired += 1
            continue
        stats.tally.add(letter.job, short_queue_name(store, letter.job))
    stats.is_complete = letters.is_complete
    return stats


def _print(stats: _Stats, max_scan: int) -> None:
    tally = stats.tally
    average = tally.average_retries
    overall = [
        ("Total Jobs", str(stats.total)),
        ("Oldest Job", format_time(tally.oldest)),
        ("Newest Job", format_time(tally.newest)),
        ("Average Retries", NOTHING if average is None else f"{average:.1f}"),
    ]
    print_table(Table(f"DLQ Statistics: {stats.dlq_name}", ("Metric", "Value"), overall))
    print_table(_ranking("Jobs by Original Queue", "Queue", tally.queues))
    print_table(_ranking("Jobs by Function", "Function", tally.functions))
    print_table(_ranking("Top Error Patterns", "Error", tally.errors, _MOST_PATTERNS))
    if stats.expired:
        print_note(f"Note: of {stats.expired} entries only the id is left, because their jobs have expired.")
    if not stats.is_complete:
        print_scan_note(max_scan)


def _ranking(title: str, column: str, counts: Counter[str], most: int | None = None) -> Table:
    return Table(title, (column, "Jobs"), [(name, str(count)) for name, count in counts.most_common(most)])


def _to_json(stats: _Stats) -> dict[str, object]:
    tally = stats.tally
    return {
        "dlq": stats.dlq_name,
        "total": stats.total,
        "expired": stats.expired,
        "complete": stats.is_complete,
        "oldest": None if tally.oldest is None else tally.oldest.isoformat(),
        "newest": None if tally.newest is None else tally.newest.isoformat(),
        "average_retries": tally.average_retries,
        "by_queue": dict(tally.queues.most_common()),
        "by_function": dict(tally.functions.most_common()),
        "error_patterns": dict(tally.errors.most_common(_MOST_PATTERNS)),
    }
