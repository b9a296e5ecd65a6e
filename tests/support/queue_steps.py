"""Steps of the queue, taken one at a time: what a worker or producer would do, without its loops.

Each step is one real call to one real Redis. Time is moved by changing what Redis has stored (the end of
a lease, the last beat), never by changing a clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from rrq.broker.messages import (
    Beat,
    BeatReply,
    Claim,
    ClaimCode,
    ClaimedJob,
    ClaimRequest,
    Outcome,
    OutcomeKind,
    Verdict,
    WorkerIdentity,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rrq.store import JobStore

_numbers = count(1)

QUEUE = "rrq:queue:default"
DLQ = "rrq:dlq:default"


class NewJob(NamedTuple):
    """An ``EncodedJob`` with names."""

    job_id: str
    function_name: str
    args_json: str
    kwargs_json: str
    queue_name: str
    max_retries: int
    job_timeout_seconds: int
    result_ttl_seconds: int
    due: str = ""
    unique_key: str = ""
    trace_context: str = ""
    is_chosen_id: int = 0
    options: str = ""


def new_job(job_id: str, **changes: Any) -> NewJob:
    """Return a job for the default queue, due now, unless `changes` say otherwise."""
    usual = NewJob(
        job_id,
        function_name="greet",
        args_json='["world"]',
        kwargs_json="{}",
        queue_name=QUEUE,
        max_retries=5,
        job_timeout_seconds=300,
        result_ttl_seconds=3600,
    )
    return usual._replace(**changes)


async def enqueue(store: JobStore, *job_ids: str, **changes: Any) -> list[int]:
    """Queue jobs in one call; returns the due time of each in ms."""
    jobs = [new_job(job_id, **changes) for job_id in job_ids]
    return (await store.enqueue_jobs(jobs, token=f"e.{next(_numbers)}")).due_ms


async def ask(store: JobStore, *command: Any) -> Any:
    """Send one plain command; the answer in the types of redis-py."""
    execute: Any = store.redis.execute_command  # redis-py leaves it without types
    return await execute(*command)


async def now_ms(store: JobStore) -> int:
    """What Redis's own clock says."""
    seconds, microseconds = await ask(store, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


async def job_fields(store: JobStore, job_id: str) -> dict[str, str]:
    return await store.get_job(job_id) or {}


async def due_score(store: JobStore, job_id: str, queue: str = QUEUE) -> float | None:
    """The score of a queued job, or None when it is not in the queue."""
    score = await ask(store, "ZSCORE", store.keys.queue_key(queue), job_id)
    return None if score is None else float(score)


async def is_queued(store: JobStore, job_id: str, queue: str = QUEUE) -> bool:
    return await due_score(store, job_id, queue) is not None


async def ttl_seconds(store: JobStore, key: str) -> int:
    """Seconds left; -1 without expiry, -2 when there is no such key."""
    return int(await ask(store, "TTL", key))


async def dead_letters(store: JobStore, dlq: str = DLQ) -> list[str]:
    """Ids on the dead letter list, newest first."""
    return [entry.decode() for entry in await ask(store, "LRANGE", store.keys.dlq_key(dlq), 0, -1)]


async def all_keys(store: JobStore) -> set[str]:
    return {key.decode() for key in await ask(store, "KEYS", "*")}


_READ_BY_TYPE: dict[bytes, tuple[Any, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


async def snapshot(store: JobStore) -> dict[str, Any]:
    """Everything in the database that lasts, to show that a step changed nothing."""
    found = {}
    for key in await all_keys(store):
        # The mark that delays the next announcement expires after 50 ms.
        if ":notified:" not in key:
            command, *options = _READ_BY_TYPE[await ask(store, "TYPE", key)]
            found[key] = await ask(store, command, key, *options)
    return found


async def tokens(store: JobStore, queue: str = QUEUE) -> int:
    """How many wake-up tokens lie ready for the workers of a queue."""
    return int(await ask(store, "LLEN", store.keys.wake_key(queue)))


async def lease_end_ms(store: JobStore, worker_id: str) -> float:
    """When the lease of a worker ends; 0 when it has none."""
    return float(await ask(store, "ZSCORE", store.keys.leases, worker_id) or 0)


async def last_lease_end_ms(store: JobStore) -> float:
    """When the last of all leases ends; 0 when there is none."""
    last = await ask(store, "ZREVRANGE", store.keys.leases, 0, 0)
    return await lease_end_ms(store, last[0].decode()) if last else 0.0


async def end_lease(store: JobStore, worker_id: str) -> None:
    """Let the lease of a worker have ended a moment ago, as if it had missed its renewals."""
    await ask(store, "ZADD", store.keys.leases, await now_ms(store) - 1, worker_id)


async def let_the_fleet_beat(store: JobStore) -> None:
    """Leave no sign of an outage: somebody beat just now, and nothing is put off."""
    guard = store.keys.guard
    await ask(store, "HSET", guard, "last_beat_ms", await now_ms(store))
    await ask(store, "HDEL", guard, "reap_not_before_ms", "claim_not_before_ms", "restarted_ms")


def done(job: ClaimedJob, result: Any = None, ttl: int = 3600) -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.DONE, json.dumps(result), ttl)


def retry(job: ClaimedJob, error: str = "boom", delay_ms: float = 0, queue: str = QUEUE) -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.RETRY, error, delay_ms, queue)


def dead(job: ClaimedJob, error: str = "boom", ttl: int = 604_800, dlq: str = DLQ) -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.DEAD, error, ttl, dlq)


def cancelled(job: ClaimedJob, ttl: int = 3600) -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.CANCELLED, number=ttl)


def back(job: ClaimedJob, reason: str = "stopping") -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.BACK, reason)


def unknown_function(job: ClaimedJob, jitter: float = 1.0) -> Outcome:
    return Outcome(job.job_id, job.token, OutcomeKind.UNKNOWN_FUNCTION, "no handler", jitter)


def ids(jobs: Sequence[ClaimedJob]) -> list[str]:
    return [job.job_id.decode() for job in jobs]


@dataclass
class SteppedWorker:
    """One worker, moved by hand."""

    store: JobStore
    worker_id: str = "worker-a"
    pod_uid: str = ""
    queues: tuple[str, ...] = (QUEUE,)
    incarnation: str = field(default_factory=lambda: f"incarnation-{next(_numbers)}")
    pool: str = ""
    weights: tuple[float, ...] = ()

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.worker_id, self.incarnation, self.pod_uid, self.pool)

    def build_beat(self, *, is_registration: bool = False, health_ttl_seconds: int = 70) -> Beat:
        health = {"worker_id": self.worker_id, "status": "polling"}
        return Beat(self.identity, 10, self.queues, health, health_ttl_seconds, is_registration)

    async def register(self) -> BeatReply:
        return (await self.store.renew_leases([self.build_beat(is_registration=True)])).replies[0]

    async def beat(self) -> BeatReply:
        return (await self.store.renew_leases([self.build_beat()])).replies[0]

    async def claim(self, most: int = 1, *, wait_ms: int = 0, job_ids: Sequence[str] = ()) -> Claim:
        return await self.store.claim_jobs(
            ClaimRequest(
                self.identity,
                token_base=f"{self.incarnation}.{next(_numbers)}",
                queues=self.queues,
                count=most,
                wait_ms=wait_ms,
                job_ids=job_ids,
                weights=() if job_ids else self.weights,
            )
        )

    async def take(self, most: int = 1) -> list[ClaimedJob]:
        """Claim and expect an answer."""
        claim = await self.claim(most)
        assert claim.code is ClaimCode.ANSWERED, claim
        return claim.jobs

    async def take_one(self) -> ClaimedJob:
        jobs = await self.take()
        assert len(jobs) == 1, "nothing was due"
        return jobs[0]

    async def finish(self, *outcomes: Outcome) -> list[Verdict]:
        return await self.store.finish_jobs(self.worker_id, outcomes)

    async def in_hand(self) -> set[str]:
        """The jobs that this worker runs, as far as Redis knows."""
        entries = await ask(self.store, "ZRANGE", self.store.keys.active_jobs_key(self.worker_id), 0, -1)
        return {entry.decode() for entry in entries}


async def start_worker(store: JobStore, worker_id: str = "worker-a", **options: Any) -> SteppedWorker:
    """Return a registered worker."""
    worker = SteppedWorker(store, worker_id, **options)
    await worker.register()
    return worker
