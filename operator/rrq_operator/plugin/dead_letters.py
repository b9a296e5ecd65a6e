"""What ``kubectl rrq dlq`` does: the commands of ``rrq dlq``, kept to the queues of one pool."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rrq.commands.dlq_inspect import dlq_inspect
from rrq.commands.dlq_list import DEAD_LETTER_COLUMNS, dead_letter_row
from rrq.commands.dlq_requeue import dlq_requeue
from rrq.commands.job_choice import JobFilter, read_chosen_job, short_queue_name
from rrq.commands.output import Table, print_json, print_line, print_scan_note, print_table
from rrq.commands.refusal import Refusal
from rrq.inspect.dead_letters import DeadLetterScan
from rrq.inspect.jobs import read_stored_jobs
from rrq.jobs.stored_job import StoredJob
from rrq.settings import RRQSettings
from rrq_operator.plugin.options import Access
from rrq_operator.plugin.pool_store import PoolStore, open_pool_store
from rrq_operator.plugin.rrq_commands import run_on_pool, run_rrq_command

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """Whose dead letters, and how to get at them."""

    pool_name: str
    access: Access
    redis_url: str | None
    dlq_name: str | None

    def name_of(self, pool_store: PoolStore) -> str:
        return self.dlq_name or pool_store.store.settings.default_dlq_name


@dataclass(frozen=True)
class Requeue:
    """What is to be requeued, and where to."""

    wanted: JobFilter
    job_id: str | None
    limit: int | None
    take_all: bool
    target_queue: str | None
    is_dry_run: bool


@dataclass
class _Found:
    dlq_name: str
    jobs: list[StoredJob] = field(default_factory=list)
    page: list[StoredJob] = field(default_factory=list)
    is_complete: bool = True


def show_list(place: Place, wanted: JobFilter, limit: int, max_scan: int, as_json: bool) -> None:
    """Print the dead letters that came from the queues of the pool, the newest failure first."""
    found = asyncio.run(_find(place, wanted, limit, max_scan))
    if as_json:
        print_json(
            {
                "dlq": found.dlq_name,
                "total": len(found.jobs),
                "complete": found.is_complete,
                "jobs": [job.to_json() for job in found.page],
            }
        )
        return
    if found.page:
        rows = [dead_letter_row(job) for job in found.page]
        print_table(Table(f"Dead letters of pool {place.pool_name}", DEAD_LETTER_COLUMNS, rows))
        print_line(f"Showing {len(rows)} of {len(found.jobs)} jobs")
    else:
        print_line(f"No dead letters of pool {place.pool_name} in DLQ {found.dlq_name}")
    if not found.is_complete:
        print_scan_note(max_scan)


def inspect(place: Place, job_id: str, as_json: bool) -> None:
    """Print one job with arguments, error and traceback."""
    run_on_pool(
        dlq_inspect,
        place.pool_name,
        place.access,
        place.redis_url,
        job_id=job_id,
        raw=False,
        as_json=as_json,
    )


def requeue(place: Place, order: Requeue) -> None:
    """Give dead letters a fresh start in the queues that they came from, queue by queue."""
    if not order.take_all and order.wanted.is_open and order.job_id is None:
        raise Refusal("ERROR: Say which: the id of a job, --queue, --function, or --all.")
    settings, queues, actor = asyncio.run(_choose_queues(place, order))
    for queue in queues:
        run_rrq_command(
            dlq_requeue,
            settings,
            dlq_name=place.dlq_name,
            target_queue=order.target_queue or queue,
            queue_name=queue,
            function_name=order.wanted.function_name,
            job_id=order.job_id,
            limit=order.limit,
            take_all=False,
            dry_run=order.is_dry_run,
            actor=actor,
            as_json=False,
        )


async def _choose_queues(place: Place, order: Requeue) -> tuple[RRQSettings, tuple[str, ...], str]:
    async with open_pool_store(place.pool_name, place.access, place.redis_url) as pool_store:
        queues = pool_store.choose_queues(order.wanted.queue_name)
        if order.target_queue is not None:
            pool_store.choose_queues(order.target_queue)
        if order.job_id is not None:
            job = await read_chosen_job(pool_store.store, order.job_id)
            queue = short_queue_name(pool_store.store, job)
            if queue not in queues:
                raise Refusal(
                    f"ERROR: Job {order.job_id} came from queue {queue}, not from {', '.join(queues)}."
                )
            queues = (queue,)
        return pool_store.store.settings, queues, pool_store.actor


async def _find(place: Place, wanted: JobFilter, limit: int, max_scan: int) -> _Found:
    async with open_pool_store(place.pool_name, place.access, place.redis_url) as pool_store:
        queues = pool_store.choose_queues(wanted.queue_name)
        found = _Found(place.name_of(pool_store))
        letters = DeadLetterScan(pool_store.store, found.dlq_name, most=max_scan)
        async for letter in letters:
            if letter.job is not None and pool_store.has(letter.job, wanted, queues):
                found.jobs.append(letter.job)
        found.is_complete = letters.is_complete
        # The list is in the order of arrival, which is not quite that of failing.
        found.jobs.sort(key=lambda job: job.completed_at or _LONG_AGO, reverse=True)
        ids = [job.job_id for job in found.jobs[:limit]]
        found.page = await read_stored_jobs(pool_store.store, ids)
        return found
