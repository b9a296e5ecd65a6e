"""``rrq dlq list``: the dead letters, newest failure first."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import click

from rrq.commands.formatting import NOTHING, describe_page, format_time, shorten
from rrq.commands.job_choice import JobFilter, dlq_name_option
from rrq.commands.options import (
    json_option,
    limit_option,
    max_scan_option,
    offset_option,
    settings_option,
)
from rrq.commands.output import Table, print_json, print_line, print_note, print_scan_note, print_table
from rrq.commands.redis_access import run_with_store
from rrq.inspect.dead_letters import DeadLetterScan
from rrq.inspect.jobs import read_stored_jobs
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_SHOWN_ID_LENGTH = 18
_SHOWN_ERROR_LENGTH = 50
DEAD_LETTER_COLUMNS = ("Job ID", "Function", "Queue", "Error", "Failed At", "Retries")
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass
class _Found:
    dlq_name: str
    jobs: list[StoredJob] = field(default_factory=list)
    page: list[StoredJob] = field(default_factory=list)
    expired: int = 0
    is_complete: bool = True


@click.command("list")
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
    help="Jobs to read from Redis in one go.",
)
@max_scan_option
@settings_option
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
    settings_path: str | None,
    as_json: bool,
) -> None:
    """List jobs in the Dead Letter Queue, the newest failure first."""
    wanted = JobFilter(queue_name, function_name)

    async def read(store: JobStore) -> _Found:
        found = await _find(store, dlq_name, wanted, batch_size, max_scan)
        found.page = found.jobs[offset : offset + limit]
        if raw or as_json:
            found.page = await read_stored_jobs(store, [job.job_id for job in found.page])
        return found

    found = run_with_store(settings_path, read)
    if as_json:
        jobs = [job.to_json() for job in found.page]
        print_json(
            {
                "dlq": found.dlq_name,
                "total": len(found.jobs),
                "expired": found.expired,
                "complete": found.is_complete,
                "jobs": jobs,
            }
        )
    elif raw:
        for job in found.page:
            print_json({"id": job.job_id, **job.fields})
    else:
        _print_page(found, offset)
        _print_notes(found, max_scan)


async def _find(
    store: JobStore, dlq_name: str | None, wanted: JobFilter, batch_size: int, max_scan: int
) -> _Found:
    found = _Found(dlq_name or store.settings.default_dlq_name)
    letters = DeadLetterScan(store, found.dlq_name, most=max_scan, batch_size=batch_size)
    async for letter in letters:
        if letter.job is None:
            found.expired += 1
        elif wanted.matches(store, letter.job):
            found.jobs.append(letter.job)
    found.is_complete = letters.is_complete
    # The list is in the order of arrival, which is not quite that of failing.
    found.jobs.sort(key=lambda job: job.completed_at or _LONG_AGO, reverse=True)
    return found


def _print_page(found: _Found, offset: int) -> None:
    if not found.jobs:
        print_line(f"No jobs found in DLQ: {found.dlq_name}")
        return
    rows = [dead_letter_row(job) for job in found.page]
    print_table(Table(f"Jobs in DLQ: {found.dlq_name}", DEAD_LETTER_COLUMNS, rows))
    print_line(describe_page(offset, len(rows), len(found.jobs)))


def _print_notes(found: _Found, max_scan: int) -> None:
    if found.expired:
        print_note(f"Note: {found.expired} entries are not shown because their jobs have expired.")
    if not found.is_complete:
        print_scan_note(max_scan)


def dead_letter_row(job: StoredJob) -> tuple[str, ...]:
    return (
        shorten(job.job_id, _SHOWN_ID_LENGTH),
        job.function_name or NOTHING,
        job.queue_name or NOTHING,
        shorten(job.described_error, _SHOWN_ERROR_LENGTH),
        format_time(job.completed_at),
        str(job.retries),
    )
