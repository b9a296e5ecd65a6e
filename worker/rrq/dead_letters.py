"""Dead letters one by one: reading the list, and giving chosen jobs a fresh start.

Emptying a whole list is ``JobStore.requeue_dlq``; here the caller names the jobs.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rrq.inspection import read_listed_jobs
from rrq.scripts import load_script
from rrq.store import JobStore
from rrq.stored_job import StoredJob, decode


@dataclass(frozen=True)
class DeadLetter:
    """One entry of the list; ``job`` is None when the job has expired since."""

    job_id: str
    job: StoredJob | None


async def count_dead_letters(store: JobStore, dlq_name: str) -> int:
    return int(await store.redis.llen(store.keys.dlq_key(dlq_name)))


async def find_dead_letter(store: JobStore, dlq_name: str, job_id: str) -> bool:
    """Tell whether a job is on the list."""
    position = await store.redis.lpos(store.keys.dlq_key(dlq_name), job_id)
    return position is not None


async def read_dead_letters(
    store: JobStore, dlq_name: str, *, batch_size: int, oldest_first: bool = False
) -> AsyncIterator[DeadLetter]:
    """Yield the list, newest first unless told otherwise, ``batch_size`` jobs per round trip.

    From the old end the positions hold still while jobs die; from the new end they shift, so ids that
    were seen are left out.
    """
    key, position, seen = store.keys.dlq_key(dlq_name), 0, set[str]()
    while True:
        first, last = position, position + batch_size - 1
        if oldest_first:
            first, last = -last - 1, -first - 1
        page = await store.redis.lrange(key, first, last)
        if not page:
            return
        job_ids = [decode(entry) for entry in (reversed(page) if oldest_first else page)]
        fresh = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in seen]
        seen.update(fresh)
        jobs = await read_listed_jobs(store, fresh)
        for job_id, job in zip(fresh, jobs, strict=True):
            yield DeadLetter(job_id, job)
        position += batch_size


async def requeue_dead_letters(
    store: JobStore, dlq_name: str, target_queue: str, job_ids: Sequence[str]
) -> int:
    """Queue these dead letters again in one atomic step; returns how many were queued.

    Jobs that have expired are dropped from the list, those no longer on it are left alone.
    """
    if not job_ids:
        # Without ids the script would take whatever is oldest.
        return 0
    queued, _ = await store.wire.run(
        load_script("requeue_dead_letters"),
        [store.keys.dlq_key(dlq_name), store.keys.queue_key(target_queue)],
        [store.keys.prefix, target_queue, len(job_ids), *job_ids],
    )
    return int(queued)
