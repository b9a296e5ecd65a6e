"""What the dashboard reads for single pages, each with a bounded number of calls and without a SCAN.

Workers and jobs are found through leases, active sets, the last jobs that ended, and dead letters. ``snapshot.py`` reads
the numbers, ``job_lists.py`` the lists of jobs; ``views.py`` and ``job_views.py`` turn them into JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rrq.broker.cron_table import CronTable
from rrq.dashboard.values import FoundJob, WorkerFacts, WorkerPage
from rrq.flow import AuditEntry
from rrq.inspect.dead_letters import DeadLetterScan, count_dead_letters, find_dead_letter
from rrq.inspect.jobs import read_in_batches, read_listed_jobs, read_stored_job
from rrq.inspect.overview import read_workers
from rrq.jobs.codec import decode
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

PAGE_SIZE: Final = 50
DECISIONS_SHOWN: Final = 500
MOST_WORKERS: Final = 1_000
MOST_RUNNING: Final = 2_000
_MOST_DEAD_LETTERS: Final = 5_000
_RECENT_JOBS: Final = 1_000
_REPORTING_SECONDS: Final = 60.0


async def read_running(store: JobStore, worker_ids: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    """Return the running jobs of workers: ids with their start in Unix seconds, the oldest first."""

    def ask(pipe: Any, worker_id: str) -> None:
        pipe.zrange(store.keys.active_jobs_key(worker_id), 0, MOST_RUNNING - 1, withscores=True)

    replies = await read_in_batches(store, worker_ids, ask)
    return {
        worker_id: [(decode(member), float(score)) for member, score in reply or ()]
        for worker_id, reply in zip(worker_ids, replies, strict=True)
    }


async def read_worker_page(store: JobStore) -> WorkerPage:
    """Read the living workers and what each of them runs."""
    seen = await store.observe([], most_workers=MOST_WORKERS)
    # Workers of RRQ 0.7 have no lease, but are on this list while they write health records.
    oldest = seen.now_ms / 1000 - _REPORTING_SECONDS
    reporting: Any = await store.redis.zrangebyscore(
        store.keys.active_workers, oldest, "+inf", start=0, num=MOST_WORKERS
    )
    workers = await read_workers(store, seen, [decode(member) for member in reporting])
    running = await read_running(store, [worker.worker_id for worker in workers])
    job_ids = [job_id for jobs in running.values() for job_id, _ in jobs][:MOST_RUNNING]
    jobs = await read_listed_jobs(store, job_ids)
    facts = []
    for worker in workers:
        observed = seen.workers.get(worker.worker_id)
        facts.append(
            WorkerFacts(
                worker.worker_id,
                worker.kind.value,
                worker.status,
                worker.pod_uid,
                worker.busy,
                worker.capacity,
                worker.is_draining,
                worker.queues,
                worker.lease_seconds,
                observed.ended if observed is not None else None,
                observed.registered_ms if observed is not None else None,
                tuple(running[worker.worker_id]),
            )
        )
    found = {job_id: job for job_id, job in zip(job_ids, jobs, strict=True) if job is not None}
    return WorkerPage(facts, found)


async def read_job(store: JobStore, job_id: str) -> FoundJob | None:
    job = await read_stored_job(store, job_id)
    if job is None:
        return None
    # Finding an id takes a walk through the whole list, so only for a job that can be on it.
    letter = None
    if job.status == "FAILED":
        letter = await find_dead_letter(store, store.settings.default_dlq_name, job_id)
    return FoundJob(job, letter is not None)


async def read_dead_letters(store: JobStore) -> tuple[list[StoredJob], int]:
    """Return the newest dead letters that are still stored, and how many entries the list has."""
    name = store.settings.default_dlq_name
    scan = DeadLetterScan(store, name, most=_MOST_DEAD_LETTERS, batch_size=500)
    jobs = [letter.job async for letter in scan if letter.job is not None]
    return jobs, await count_dead_letters(store, name)


async def read_cron(store: JobStore) -> tuple[tuple[CronTable, ...], dict[str, int]]:
    """Return the cron tables of all applications, and when each entry fired last (ms) by its digest."""
    tables = await store.read_cron_tables()
    fired: Any = await store.redis.hgetall(store.keys.cron_last)
    return tables, _parse_numbers(fired)


async def read_recent_jobs(store: JobStore) -> list[StoredJob | None]:
    """Return the jobs that ended last, from which the page learns the functions."""
    return await read_listed_jobs(store, await store.read_recent(0, _RECENT_JOBS))


async def read_audit_page(store: JobStore, before: str | None) -> list[AuditEntry]:
    return await store.read_audit(PAGE_SIZE, before)


def _parse_numbers(reply: Mapping[bytes, bytes]) -> dict[str, int]:
    """Read a hash of whole numbers; other values are skipped, as they are unknown."""
    return {decode(name): int(value) for name, value in reply.items() if value.lstrip(b"-").isdigit()}
