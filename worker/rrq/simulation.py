"""Made-up jobs and workers for trying out views and dashboards.

Jobs are written in the schema that real ones have, so that every tool and worker can read them.
Workers are health records without a lease: real ones would make an operator count on them.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from rrq.job import Job, JobStatus, new_job_id
from rrq.jobs.job_hash import build_job_hash
from rrq.jobs.stored_job import QUEUED_STATUSES
from rrq.store import JobStore

FAKE_QUEUES: Final = ("test", "urgent", "low_priority", "default")
FAKE_STATUSES: Final = (
    JobStatus.PENDING,
    JobStatus.ACTIVE,
    JobStatus.COMPLETED,
    JobStatus.FAILED,
    JobStatus.RETRYING,
)
FAKE_WORKER_TTL_SECONDS: Final = 60

_FUNCTIONS = ("process_data", "send_email", "generate_report", "sync_records")
_ERRORS = ("Connection refused", "Timed out after 30 s", "Invalid input: field 7 is missing")
_WORKER_STATUSES = ("polling", "running", "idle (concurrency limit)")
_CONCURRENCY = 10
_LONGEST_RUN_SECONDS = 30.0
_MAX_RETRIES = 5


@dataclass(frozen=True)
class FakeJob:
    job: Job
    due_at_ms: int
    start_time: datetime | None


def build_fake_job(
    chance: random.Random,
    now: datetime,
    queues: Sequence[str],
    statuses: Sequence[JobStatus],
    age_hours: float,
) -> FakeJob:
    """Return a job that could have been: enqueued within the last ``age_hours``."""
    created_at = now - timedelta(hours=chance.uniform(0, age_hours))
    status = chance.choice(statuses)
    has_started = status is not JobStatus.PENDING
    started_at = created_at + timedelta(seconds=chance.uniform(0, 5)) if has_started else None
    due_at = now + timedelta(minutes=chance.uniform(0, 60)) if status is JobStatus.RETRYING else created_at
    has_failed = status in (JobStatus.FAILED, JobStatus.RETRYING)
    job = Job(
        id=f"test_job_{new_job_id()}",
        function_name=chance.choice(_FUNCTIONS),
        job_args=[chance.randrange(1000)],
        job_kwargs={"generated": True},
        enqueue_time=created_at,
        status=status,
        current_retries=chance.randint(1, _MAX_RETRIES - 1) if has_failed else 0,
        next_scheduled_run_time=due_at,
        max_retries=_MAX_RETRIES,
        queue_name=chance.choice(queues),
        last_error=chance.choice(_ERRORS) if has_failed else None,
    )
    if started_at is not None and status in (JobStatus.COMPLETED, JobStatus.FAILED):
        job.completion_time = started_at + timedelta(seconds=chance.uniform(0.1, _LONGEST_RUN_SECONDS))
    if status is JobStatus.COMPLETED:
        job.result = {"processed": chance.randrange(1000)}
    return FakeJob(job, int(due_at.timestamp() * 1000), started_at)


async def write_fake_jobs(store: JobStore, fakes: Sequence[FakeJob]) -> None:
    """Store jobs where real ones of their status would be, in one round trip."""
    settings, keys = store.settings, store.keys
    async with store.redis.pipeline(transaction=False) as pipe:
        for fake in fakes:
            job, key = fake.job, keys.job_key(fake.job.id)
            fields = build_job_hash(job)
            if fake.start_time is not None:
                fields["start_time"] = fake.start_time.isoformat()
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]  # dict is invariant
            if job.status.value in QUEUED_STATUSES:
                queue_name = job.queue_name or settings.default_queue_name
                pipe.zadd(keys.queue_key(queue_name), {job.id: fake.due_at_ms})
                continue
            if job.status is JobStatus.FAILED:
                pipe.lpush(keys.dlq_key(settings.default_dlq_name), job.id)
            # Nobody will ever end an active one, so that it goes away like the others.
            pipe.expire(key, settings.default_result_ttl_seconds or settings.default_dlq_result_ttl_seconds)
        await pipe.execute()


async def write_fake_workers(store: JobStore, chance: random.Random, count: int) -> None:
    """Write the health records of ``count`` workers that do not exist."""
    now = datetime.now(UTC)
    async with store.redis.pipeline(transaction=False) as pipe:
        for number in range(count):
            worker_id = f"test_worker_{number}"
            health = {
                "worker_id": worker_id,
                "timestamp": now.isoformat(),
                "status": chance.choice(_WORKER_STATUSES),
                "active_jobs": chance.randint(0, _CONCURRENCY),
                "concurrency_limit": _CONCURRENCY,
                "queues": chance.sample(FAKE_QUEUES, 2),
            }
            pipe.set(store.keys.health_key(worker_id), json.dumps(health), ex=FAKE_WORKER_TTL_SECONDS)
            pipe.zadd(store.keys.active_workers, {worker_id: now.timestamp()})
        await pipe.execute()
