"""``rrq job list``: which jobs there are."""

import heapq
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from rrq.commands.formatting import NOTHING, format_duration, format_time
from rrq.commands.job_choice import JobFilter
from rrq.commands.options import json_option, limit_option, max_scan_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_scan_note, print_table
from rrq.commands.redis_access import run_with_store
from rrq.inspect.jobs import JobScan
from rrq.job import JobStatus
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_STATUSES = [status.value.lower() for status in JobStatus if status is not JobStatus.UNKNOWN]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class _Found:
    now: datetime
    newest: list[StoredJob]
    total: int
    is_complete: bool


@click.command("list")
@click.option("--status", type=click.Choice(_STATUSES, case_sensitive=False), help="Only jobs like this.")
@click.option("--queue", "queue_name", help="Only jobs of this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@limit_option
@max_scan_option
@settings_option
@json_option
def job_list(
    status: str | None,
    queue_name: str | None,
    function_name: str | None,
    limit: int,
    max_scan: int,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """List jobs with filters, the newest first."""
    wanted = JobFilter(queue_name, function_name, status)
    found = run_with_store(settings_path, lambda store: _find(store, wanted, limit, max_scan))
    if as_json:
        jobs = [job.to_json() for job in found.newest]
        print_json({"complete": found.is_complete, "total": found.total, "jobs": jobs})
        return
    if found.newest:
        columns = ("Job ID", "Function", "Queue", "Status", "Created", "Duration")
        print_table(Table("Jobs", columns, [_row(job, found.now) for job in found.newest]))
        print_line(f"Showing {len(found.newest)} of {found.total} total jobs")
    else:
        print_line("No jobs found")
    if not found.is_complete:
        print_scan_note(max_scan)


async def _find(store: JobStore, wanted: JobFilter, limit: int, max_scan: int) -> _Found:
    now = await store.read_time()
    # A heap of the newest: however many jobs there are, only those to be shown are kept.
    newest: list[tuple[datetime, str, StoredJob]] = []
    total = 0
    scan = JobScan(store, max_scan)
    async for job in scan:
        if not wanted.matches(store, job):
            continue
        total += 1
        heapq.heappush(newest, (job.created_at or _LONG_AGO, job.job_id, job))
        if len(newest) > limit:
            heapq.heappop(newest)
    ordered = [job for _, _, job in sorted(newest, key=lambda entry: entry[:2], reverse=True)]
    return _Found(now, ordered, total, scan.is_complete)


def _row(job: StoredJob, now: datetime) -> tuple[str, ...]:
    return (
        job.job_id,
        job.function_name or NOTHING,
        job.queue_name or NOTHING,
        job.status,
        format_time(job.created_at),
        format_duration(job.run_seconds(now)),
    )
