"""Finds the jobs of one pool among all that its Redis stores."""

from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush

import click

from rrq.commands.formatting import NOTHING, format_duration, format_time
from rrq.commands.job_choice import JobFilter
from rrq.commands.output import Table
from rrq.inspect.jobs import JobScan
from rrq.job import JobStatus
from rrq.jobs.stored_job import StoredJob
from rrq_operator.plugin.pool_store import PoolStore

_STATUSES = [status.value.lower() for status in JobStatus if status is not JobStatus.UNKNOWN]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class FoundJobs:
    now: datetime
    newest: list[StoredJob]
    total: int
    is_complete: bool


def check_status(status: str | None) -> str | None:
    """Return the status if jobs can have it; here and not by click, so that --help need not load them."""
    if status is not None and status.lower() not in _STATUSES:
        raise click.BadParameter(f"{status!r} is none of {', '.join(_STATUSES)}.", param_hint="--status")
    return status


async def find_jobs(pool_store: PoolStore, wanted: JobFilter, limit: int, max_scan: int) -> FoundJobs:
    queues = pool_store.choose_queues(wanted.queue_name)
    now = await pool_store.store.read_time()
    # A heap of the newest: however many jobs there are, only those to be shown are kept.
    newest: list[tuple[datetime, str, StoredJob]] = []
    total = 0
    scan = JobScan(pool_store.store, max_scan)
    async for job in scan:
        if not pool_store.has(job, wanted, queues):
            continue
        total += 1
        heappush(newest, (job.created_at or _LONG_AGO, job.job_id, job))
        if len(newest) > limit:
            heappop(newest)
    ordered = [job for _, _, job in sorted(newest, key=lambda entry: entry[:2], reverse=True)]
    return FoundJobs(now, ordered, total, scan.is_complete)


def build_table(found: FoundJobs) -> Table:
    rows = [
        (
            job.job_id,
            job.function_name or NOTHING,
            job.queue_name or NOTHING,
            job.status,
            format_time(job.created_at),
            format_duration(job.run_seconds(found.now)),
        )
        for job in found.newest
    ]
    return Table("Jobs", ("Job ID", "Function", "Queue", "Status", "Created", "Duration"), rows)
