"""``rrq dlq``: list, count, inspect and change the jobs that failed for good."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from rrq.commands.dlq_changes import build_letter_table, dlq_delete, dlq_edit, dlq_requeue
from rrq.commands.formatting import (
    NOTHING,
    Table,
    describe_page,
    format_duration,
    format_time,
    format_value,
)
from rrq.commands.options import dlq_name_option, json_option, limit_option, max_scan_option, offset_option
from rrq.commands.output import print_json, print_line, print_note, print_panel, print_scan_note, print_table
from rrq.commands.redis_access import RunOnStore, read_chosen_job, store_option
from rrq.inspect.counts import DeadLetterCounts
from rrq.inspect.dead_letters import DeadLetterScan, count_dead_letters
from rrq.inspect.jobs import LONG_AGO, StoredJobFilter, read_stored_jobs, short_queue_name
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_MOST_PATTERNS = 10


@click.group()
def dlq() -> None:
    """Manage Dead Letter Queue (DLQ) jobs."""


dlq.add_command(dlq_requeue)
dlq.add_command(dlq_edit)
dlq.add_command(dlq_delete)


@dataclass(frozen=True)
class LetterPage:
    """Which part of a dead letter list to show."""

    dlq_name: str | None
    limit: int
    offset: int = 0
    max_scan: int = 10_000
    batch_size: int = 100
    with_all_fields: bool = False


@dataclass
class _Found:
    dlq_name: str
    jobs: list[StoredJob] = field(default_factory=list)
    page: list[StoredJob] = field(default_factory=list)
    expired: int = 0
    is_complete: bool = True


@dlq.command("list")
@click.option("--queue", "queue_name", help="Only jobs that came from this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@limit_option
@offset_option
@dlq_name_option
@click.option("--raw", is_flag=True, help="Print one JSON object per job.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of jobs to read from Redis in one round trip.",
)
@max_scan_option()
@store_option
@json_option
def dlq_list(
    queue_name: str | None,
    function_name: str | None,
    limit: int,
    offset: int,
    dlq_name: str | None,
    raw: bool,
    batch_size: int,
    max_scan: int,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """List jobs in the Dead Letter Queue, the newest failure first."""
    wanted = StoredJobFilter(None if queue_name is None else (queue_name,), function_name)
    page = LetterPage(dlq_name, limit, offset, max_scan, batch_size, with_all_fields=raw or as_json)
    if not raw or as_json:
        show_dead_letters(run, wanted, page, as_json)
        return
    for job in run(lambda store: _find(store, wanted, page)).page:
        print_json({"id": job.job_id, **job.fields})


def show_dead_letters(run: RunOnStore, wanted: StoredJobFilter, page: LetterPage, as_json: bool) -> None:
    found = run(lambda store: _find(store, wanted, page))
    if as_json:
        print_json(
            {
                "dlq": found.dlq_name,
                "total": len(found.jobs),
                "expired": found.expired,
                "complete": found.is_complete,
                "jobs": [job.to_json() for job in found.page],
            }
        )
        return
    if found.jobs:
        print_table(build_letter_table(f"Jobs in DLQ: {found.dlq_name}", found.page))
        print_line(describe_page(page.offset, len(found.page), len(found.jobs)))
    else:
        print_line(f"No jobs found in DLQ: {found.dlq_name}")
    if found.expired:
        print_note(f"Note: {found.expired} entries are not shown because their jobs have expired.")
    if not found.is_complete:
        print_scan_note(page.max_scan)


async def _find(store: JobStore, wanted: StoredJobFilter, page: LetterPage) -> _Found:
    found = _Found(page.dlq_name or store.settings.default_dlq_name)
    letters = DeadLetterScan(store, found.dlq_name, most=page.max_scan, batch_size=page.batch_size)
    async for letter in letters:
        if letter.job is None:
            found.expired += 1
        elif wanted.accepts(store, letter.job):
            found.jobs.append(letter.job)
    found.is_complete = letters.is_complete
    # The list has the order of arrival, which differs a little from the order of the failures.
    found.jobs.sort(key=lambda job: job.completed_at or LONG_AGO, reverse=True)
    found.page = found.jobs[page.offset : page.offset + page.limit]
    if page.with_all_fields:
        found.page = await read_stored_jobs(store, [job.job_id for job in found.page])
    return found


@dataclass
class _Stats:
    dlq_name: str
    total: int
    expired: int = 0
    is_complete: bool = True
    counts: DeadLetterCounts = field(default_factory=DeadLetterCounts)


@dlq.command("stats")
@dlq_name_option
@max_scan_option()
@store_option
@json_option
def dlq_stats(dlq_name: str | None, max_scan: int, run: RunOnStore, as_json: bool) -> None:
    """Show DLQ statistics and error patterns."""
    stats = run(lambda store: _read_stats(store, dlq_name, max_scan))
    if as_json:
        print_json(_stats_json(stats))
    elif stats.total == 0:
        print_line(f"DLQ '{stats.dlq_name}' is empty")
    else:
        _print_stats(stats, max_scan)


async def _read_stats(store: JobStore, dlq_name: str | None, max_scan: int) -> _Stats:
    name = dlq_name or store.settings.default_dlq_name
    stats = _Stats(name, await count_dead_letters(store, name))
    letters = DeadLetterScan(store, name, most=max_scan)
    async for letter in letters:
        if letter.job is None:
            stats.expired += 1
        else:
            stats.counts.add(letter.job, short_queue_name(store, letter.job))
    stats.is_complete = letters.is_complete
    return stats


def _print_stats(stats: _Stats, max_scan: int) -> None:
    counts = stats.counts
    average = counts.average_retries
    overall = [
        ("Total Jobs", str(stats.total)),
        ("Oldest Job", format_time(counts.oldest)),
        ("Newest Job", format_time(counts.newest)),
        ("Average Retries", NOTHING if average is None else f"{average:.1f}"),
    ]
    print_table(Table(f"DLQ Statistics: {stats.dlq_name}", ("Metric", "Value"), overall))
    print_table(_build_ranking("Jobs by Original Queue", "Queue", counts.queues))
    print_table(_build_ranking("Jobs by Function", "Function", counts.functions))
    print_table(_build_ranking("Top Error Patterns", "Error", counts.errors, _MOST_PATTERNS))
    if stats.expired:
        print_note(f"Note: {stats.expired} entries are only ids, because their jobs have expired.")
    if not stats.is_complete:
        print_scan_note(max_scan)


def _build_ranking(title: str, column: str, counts: Counter[str], most: int | None = None) -> Table:
    return Table(title, (column, "Jobs"), [(name, str(count)) for name, count in counts.most_common(most)])


def _stats_json(stats: _Stats) -> dict[str, object]:
    counts = stats.counts
    return {
        "dlq": stats.dlq_name,
        "total": stats.total,
        "expired": stats.expired,
        "complete": stats.is_complete,
        "oldest": None if counts.oldest is None else counts.oldest.isoformat(),
        "newest": None if counts.newest is None else counts.newest.isoformat(),
        "average_retries": counts.average_retries,
        "by_queue": dict(counts.queues.most_common()),
        "by_function": dict(counts.functions.most_common()),
        "error_patterns": dict(counts.errors.most_common(_MOST_PATTERNS)),
    }


@dlq.command("inspect")
@click.argument("job_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Print the stored hash as JSON, every value as its text.")
@store_option
@json_option
def dlq_inspect(job_id: str, raw: bool, run: RunOnStore, as_json: bool) -> None:
    """Show a dead letter with its arguments, error and traceback."""
    show_dead_letter(run, job_id, raw, as_json)


def show_dead_letter(run: RunOnStore, job_id: str, raw: bool, as_json: bool) -> None:
    job = run(lambda store: read_chosen_job(store, job_id))
    if raw:
        print_json(dict(job.fields))
    elif as_json:
        print_json(job.to_json())
    else:
        print_panel(f"Job Details: {job_id}", _describe(job))


def _describe(job: StoredJob) -> Iterator[tuple[str, str]]:
    yield "Status", job.status
    yield "Function", job.function_name or NOTHING
    yield "Original Queue", job.queue_name or NOTHING
    yield "Retries", f"{job.retries} of {job.fields.get('max_retries', NOTHING)}"
    yield "Enqueued At", format_time(job.created_at)
    yield "Started At", format_time(job.started_at)
    yield "Failed At", format_time(job.completed_at)
    if job.started_at is not None and job.completed_at is not None:
        yield "Last Attempt Took", format_duration(job.run_seconds(job.completed_at))
    if job.fields.get("job_unique_key"):
        yield "Unique Key", job.fields["job_unique_key"]
    yield "Arguments", format_value(job.args or [])
    yield "Keyword Arguments", format_value(job.kwargs or {})
    yield "Error Information", job.described_error or NOTHING
    if job.fields.get("crash_history"):
        yield "Crashes", format_value(job.json("crash_history"))
    if job.fields.get("loss_history"):
        yield "Lost Workers", format_value(job.json("loss_history"))
    if job.fields.get("traceback"):
        yield "Traceback", job.fields["traceback"]
