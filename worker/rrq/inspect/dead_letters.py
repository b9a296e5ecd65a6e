"""Reads a dead letter list, finds entries in it, and requeues chosen ones.

``JobStore.requeue_dlq`` empties a whole list; here the caller names the jobs.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rrq.inspect.jobs import StoredJobFilter, in_batches, read_listed_jobs
from rrq.jobs.codec import decode
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_ENTRIES_PER_ROUND_TRIP = 200
# Finding an id may take a walk through the whole list, which blocks Redis.
_REQUEUED_PER_CALL = 100


@dataclass(frozen=True)
class DeadLetter:
    """One entry of the list; ``job`` is None when the job has expired since."""

    job_id: str
    job: StoredJob | None


async def count_dead_letters(store: JobStore, dlq_name: str) -> int:
    return int(await store.redis.llen(store.keys.dlq_key(dlq_name)))


async def find_dead_letter(store: JobStore, dlq_name: str, job_id: str) -> DeadLetter | None:
    """Return the entry of one job, or None when it is not on the list."""
    position = await store.redis.lpos(store.keys.dlq_key(dlq_name), job_id)
    return None if position is None else (await _read_letters(store, [job_id]))[0]


async def read_newest_dead_letters(store: JobStore, dlq_name: str, most: int) -> list[DeadLetter]:
    """Return the ``most`` newest entries."""
    page = await store.redis.lrange(store.keys.dlq_key(dlq_name), 0, most - 1)
    return await _read_letters(store, [decode(entry) for entry in page])


class DeadLetterScan:
    """Reads a list, the newest entry first by default, at most ``most`` entries (0 for all).

    Positions counted from the old end stay the same while jobs fail; those counted from the new end shift, so an id
    that was seen is skipped.
    """

    def __init__(
        self,
        store: JobStore,
        dlq_name: str,
        *,
        most: int = 0,
        batch_size: int = _ENTRIES_PER_ROUND_TRIP,
        oldest_first: bool = False,
    ) -> None:
        self._store = store
        self._key = store.keys.dlq_key(dlq_name)
        self._most = most
        self._batch_size = batch_size
        self._oldest_first = oldest_first
        self.is_complete = True
        """False once the scan has stopped at its limit with more entries to read."""

    async def __aiter__(self) -> AsyncIterator[DeadLetter]:
        seen: set[str] = set()
        position = 0
        while page := await self._read_page(position):
            position += self._batch_size
            fresh = [job_id for job_id in dict.fromkeys(page) if job_id not in seen]
            if self._most and len(seen) + len(fresh) > self._most:
                self.is_complete = False
                fresh = fresh[: self._most - len(seen)]
            seen.update(fresh)
            for letter in await _read_letters(self._store, fresh):
                yield letter
            if not self.is_complete:
                return

    async def _read_page(self, position: int) -> list[str]:
        first, last = position, position + self._batch_size - 1
        if self._oldest_first:
            first, last = -last - 1, -first - 1
        page = [decode(entry) for entry in await self._store.redis.lrange(self._key, first, last)]
        return page[::-1] if self._oldest_first else page


@dataclass(frozen=True)
class LetterChoice:
    """Which entries of a list to change; without ids the list is searched for what the filter accepts."""

    dlq_name: str
    wanted: StoredJobFilter
    job_ids: tuple[str, ...] = ()
    limit: int | None = None

    def accepts(self, store: JobStore, letter: DeadLetter) -> bool:
        if letter.job is None:
            # Without a filter expired jobs are chosen as well, to be removed from the list.
            return self.wanted.accepts_all
        return self.wanted.accepts(store, letter.job)


async def find_letters(store: JobStore, choice: LetterChoice) -> list[DeadLetter]:
    """Return the chosen entries, the oldest first.

    All of them are found before the first one is requeued: a job that fails again at once is back on the list, and must
    not be found again.
    """
    if choice.job_ids:
        found = [await find_dead_letter(store, choice.dlq_name, job_id) for job_id in choice.job_ids]
        return [letter for letter in found if letter is not None and choice.accepts(store, letter)]
    chosen: list[DeadLetter] = []
    jobs = 0
    async for letter in DeadLetterScan(store, choice.dlq_name, oldest_first=True):
        if choice.accepts(store, letter):
            chosen.append(letter)
            jobs += letter.job is not None
            if jobs == choice.limit:
                break
    return chosen


async def _read_letters(store: JobStore, job_ids: Sequence[str]) -> list[DeadLetter]:
    jobs = await read_listed_jobs(store, job_ids)
    return [DeadLetter(*letter) for letter in zip(job_ids, jobs, strict=True)]


async def requeue_dead_letters(
    store: JobStore, dlq_name: str, target_queue: str, job_ids: Sequence[str]
) -> int:
    """Requeue these dead letters in one atomic step; returns how many were queued.

    Removes expired jobs from the list; ids that are no longer on the list stay as they are.
    """
    if not job_ids:
        # Without ids the script would take the oldest entries.
        return 0
    queued, _ = await store.requeue_dead_letters(dlq_name, target_queue, len(job_ids), job_ids)
    return queued


def group_by_queue(letters: Iterable[DeadLetter], default_queue: str) -> dict[str, list[str]]:
    """Return the ids by the queue that their jobs came from; expired jobs count to the default queue."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for letter in letters:
        queue = letter.job.queue_name if letter.job is not None else None
        groups[queue or default_queue].append(letter.job_id)
    return dict(groups)


async def requeue_by_queue(
    store: JobStore,
    dlq_name: str,
    job_ids_by_queue: Mapping[str, Sequence[str]],
    on_progress: Callable[[int], object] = lambda _: None,
) -> Counter[str]:
    """Requeue dead letters, each group in its queue; returns how many were queued, by the short name of the queue."""
    queued: Counter[str] = Counter()
    for queue, job_ids in job_ids_by_queue.items():
        for batch in in_batches(job_ids, _REQUEUED_PER_CALL):
            queued[store.keys.queue_name(queue)] += await requeue_dead_letters(store, dlq_name, queue, batch)
            on_progress(len(batch))
    return queued
