"""JobStore: all calls to Redis in one object, and the records of RRQ 0.7 under the names that its applications know.

Those records are job hashes, queues by rank, locks, dead letters, health and monitoring. The engine itself makes the
calls of the other modules here (``job_calls.py`` and so on). ``store.redis`` is an ordinary client (bytes in, bytes out)
that applications may use directly. Applications import this class from ``rrq.store``.
"""

import json
import logging
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.exceptions import RedisError, ResponseError

from rrq.broker.control_calls import ControlCalls
from rrq.broker.cron_calls import CronCalls
from rrq.broker.job_calls import JobCalls
from rrq.broker.lease_calls import LeaseCalls
from rrq.broker.messages import ClaimRequest, WorkerIdentity
from rrq.broker.observe_calls import ObserveCalls
from rrq.exc import UnreadableJob
from rrq.jobs.codec import decode, decode_all, encode_result, storable_text
from rrq.jobs.job import Job, JobStatus
from rrq.jobs.job_hash import build_job_hash, parse_job_hash_leniently

__all__ = ["JobStore"]

logger = logging.getLogger(__name__)

_REQUEUE_BATCH = 500
_MONITOR_STREAM_LENGTH = 1000


class JobStore(JobCalls, LeaseCalls, CronCalls, ControlCalls, ObserveCalls):
    """Access to the jobs, queues and workers of one Redis.

    Building one opens no connection and needs no event loop.
    """

    def _format_queue_key(self, queue_name: str) -> str:
        return self.keys.queue_key(queue_name)

    def _format_dlq_key(self, dlq_name: str) -> str:
        return self.keys.dlq_key(dlq_name)

    async def save_job_definition(self, job: Job) -> None:
        """Write all fields of the job that have a value; other fields of its hash stay."""
        await self.redis.hset(self.keys.job_key(job.id), mapping=build_job_hash(job))  # type: ignore[arg-type]  # dict is invariant

    async def get_job_definition(self, job_id: str) -> Job | None:
        """Return the job, or None when there is none or it cannot be read (which is logged)."""
        fields: Any = await self.redis.hgetall(self.keys.job_key(job_id))
        if not fields:
            return None
        try:
            return parse_job_hash_leniently(job_id, fields)
        except UnreadableJob:
            logger.exception("job cannot be read", extra={"job_id": job_id})
            return None

    async def get_job_data_dict(self, job_id: str) -> dict[str, str] | None:
        """Return the raw hash as text, or None when there is none."""
        fields: Any = await self.redis.hgetall(self.keys.job_key(job_id))
        return {decode(name): decode(value) for name, value in fields.items()} or None

    get_job = get_job_data_dict

    async def update_job_status(self, job_id: str, status: JobStatus) -> None:
        await self.redis.hset(self.keys.job_key(job_id), "status", status.value)

    async def update_job_next_scheduled_run_time(self, job_id: str, run_time: datetime) -> None:
        text = run_time.astimezone(UTC).isoformat().replace("+00:00", "Z")
        await self.redis.hset(self.keys.job_key(job_id), "next_scheduled_run_time", text)

    async def increment_job_retries(self, job_id: str) -> int:
        """Count one more attempt; returns the new count."""
        return int(await self.redis.hincrby(self.keys.job_key(job_id), "current_retries", 1))

    async def add_job_to_queue(self, queue_name: str, job_id: str, score: float) -> None:
        """Queue a job at ``score`` (ms); a job already queued there moves."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.zadd(self.keys.queue_key(queue_name), {job_id: score})
            # A hash with the expiry of an earlier life would vanish while it is queued.
            pipe.persist(self.keys.job_key(job_id))
            await pipe.execute()

    async def get_queued_job_ids(self, queue_name: str, start: int = 0, end: int = -1) -> list[str]:
        """Return ids by rank, the earliest due first."""
        ids = await self.redis.zrange(self.keys.queue_key(queue_name), start, end)
        return decode_all(ids)

    async def get_ready_job_ids(self, queue_name: str, count: int) -> list[str]:
        """Return up to ``count`` ids that are due now, the earliest first."""
        if count <= 0:
            return []
        ids = await self.redis.zrangebyscore(
            self.keys.queue_key(queue_name), "-inf", await self._read_now_ms(), start=0, num=count
        )
        return decode_all(ids)

    async def remove_job_from_queue(self, queue_name: str, job_id: str) -> int:
        """Take a job off a queue; returns 1, or 0 when it was not there."""
        return int(await self.redis.zrem(self.keys.queue_key(queue_name), job_id))

    async def defer_job(self, job: Job, defer_by: timedelta) -> None:
        """Move the queue entry of a job to ``defer_by`` from now; nothing else changes."""
        queue = self.keys.queue_key(job.queue_name or self.settings.default_queue_name)
        due_ms = await self._read_now_ms() + defer_by / timedelta(milliseconds=1)
        await self.redis.zadd(queue, {job.id: due_ms})

    async def batch_get_queue_sizes(self, queue_names: list[str]) -> dict[str, int]:
        """Return the number of entries of each queue, keyed by the names as given."""
        if not queue_names:
            return {}
        async with self.redis.pipeline(transaction=False) as pipe:
            for name in queue_names:
                pipe.zcard(self.keys.queue_key(name))
            sizes = await pipe.execute()
        return dict(zip(queue_names, sizes, strict=True))

    async def acquire_job_lock(self, job_id: str, worker_id: str, lock_timeout_ms: int) -> bool:
        """Take the processing lock if it is free."""
        key = self.keys.job_lock_key(job_id)
        return bool(await self.redis.set(key, worker_id, nx=True, px=lock_timeout_ms))

    async def release_job_lock(self, job_id: str, worker_id: str | None = None) -> None:
        """Drop the processing lock; with a worker id only if that worker owns it."""
        await self.connection.run(
            "release_lock",
            [self.keys.job_lock_key(job_id)],
            [self.keys.prefix, worker_id or "", job_id],
            read=bool,
        )

    async def get_job_lock_owner(self, job_id: str) -> str | None:
        """Return the id of the worker that owns the processing lock."""
        owner = await self.redis.get(self.keys.job_lock_key(job_id))
        return None if owner is None else decode(owner)

    async def acquire_unique_job_lock(self, unique_key: str, job_id: str, lock_ttl_seconds: int) -> bool:
        """Take the uniqueness lock for a job if it is free."""
        key = self.keys.unique_lock_key(unique_key)
        return bool(await self.redis.set(key, job_id, nx=True, ex=lock_ttl_seconds))

    async def release_unique_job_lock(self, unique_key: str, job_id: str | None = None) -> None:
        """Drop the uniqueness lock; with a job id only if that job owns it."""
        key = self.keys.unique_lock_key(unique_key)
        if job_id is None:
            await self.redis.delete(key)
        else:
            await self.connection.run("release_unique", [key], [self.keys.prefix, job_id], read=bool)

    async def get_lock_ttl(self, unique_key: str) -> int:
        """Return the seconds a uniqueness lock has left; 0 when absent or without expiry."""
        return max(0, int(await self.redis.ttl(self.keys.unique_lock_key(unique_key))))

    async def get_unique_lock_holder(self, unique_key: str) -> str | None:
        """Return the id of the job that owns a uniqueness lock."""
        holder = await self.redis.get(self.keys.unique_lock_key(unique_key))
        return None if holder is None else decode(holder)

    async def get_last_process_time(self, unique_key: str) -> datetime | None:
        """Return when a unique key was last processed, in UTC."""
        seconds = await self.redis.get(self.keys.last_process_key(unique_key))
        return None if seconds is None else datetime.fromtimestamp(float(seconds), UTC)

    async def set_last_process_time(self, unique_key: str, timestamp: datetime) -> None:
        """Remember when a unique key was processed, exact to the microsecond."""
        await self.redis.set(
            self.keys.last_process_key(unique_key),
            repr(timestamp.timestamp()),
            ex=max(60, 2 * self.settings.expected_job_ttl),
        )

    async def atomic_lock_and_remove_job(
        self, job_id: str, queue_name: str, worker_id: str, lock_timeout_ms: int
    ) -> tuple[bool, int]:
        """Claim one named job without a lease: (True, 1), or (False, 0) with nothing changed.

        The same script as every other claim. The caller has until its lock runs out; after that
        the job counts as abandoned and is given back.
        """
        claim = await self.claim_jobs(
            ClaimRequest(
                WorkerIdentity(worker_id, incarnation=""),
                token_base=f"{worker_id}.{secrets.token_hex(8)}",
                queues=[queue_name],
                count=1,
                job_ids=[job_id],
                lock_ttl_ms=lock_timeout_ms,
            )
        )
        return (True, 1) if claim.jobs else (False, 0)

    async def atomic_retry_job(
        self,
        job_id: str,
        queue_name: str,
        retry_at_score: float,
        error_message: str,
        status: JobStatus,
    ) -> int:
        """Count a failed attempt and queue the job at ``retry_at_score`` (ms).

        Returns the new number of retries. The processing lock is not touched.
        """
        retries: int = await self.connection.run(
            "retry_job",
            [self.keys.job_key(job_id), self.keys.queue_key(queue_name)],
            [self.keys.prefix, job_id, retry_at_score, storable_text(error_message), status.value],
            read=int,
        )
        return retries

    async def save_job_result(self, job_id: str, result: Any, ttl_seconds: int) -> None:
        """Store a result: TTL above 0 expires the hash, 0 keeps it for ever, below 0 no change."""
        key = self.keys.job_key(job_id)
        outcome = {
            "result": encode_result(result),
            "completion_time": datetime.now(UTC).isoformat(),
            "status": JobStatus.COMPLETED.value,
        }
        try:
            async with self.redis.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=outcome)  # type: ignore[arg-type]  # dict is invariant
                if ttl_seconds > 0:
                    pipe.expire(key, ttl_seconds)
                elif ttl_seconds == 0:
                    pipe.persist(key)
                await pipe.execute()
        except RedisError:
            logger.exception("job result not stored", extra={"job_id": job_id})
            raise

    async def move_job_to_dlq(
        self, job_id: str, dlq_name: str, error_message: str, completion_time: datetime
    ) -> None:
        """Mark a job as failed for good and put it on a dead letter list."""
        key = self.keys.job_key(job_id)
        outcome = {
            "status": JobStatus.FAILED.value,
            "last_error": storable_text(error_message),
            "completion_time": completion_time.isoformat(),
        }
        try:
            # Redis runs the rest of a transaction when one command fails, so that has to be seen before.
            if await self.redis.type(self.keys.dlq_key(dlq_name)) not in (b"list", b"none"):
                raise ResponseError(f"WRONGTYPE {self.keys.dlq_key(dlq_name)} is not a list")
            async with self.redis.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=outcome)  # type: ignore[arg-type]  # dict is invariant
                pipe.hdel(key, "error_type")
                pipe.lpush(self.keys.dlq_key(dlq_name), job_id)
                pipe.expire(key, self.settings.default_dlq_result_ttl_seconds)
                await pipe.execute()
        except RedisError:
            logger.exception("job not moved to the dead letters", extra={"job_id": job_id})
            raise

    async def requeue_dlq(self, dlq_name: str, target_queue: str, limit: int | None = None) -> int:
        """Give dead-lettered jobs a fresh start, oldest first; returns how many were queued.

        Ids whose job has expired meanwhile are dropped and do not count.
        """
        total = 0
        while limit is None or total < limit:
            batch = _REQUEUE_BATCH if limit is None else min(_REQUEUE_BATCH, limit - total)
            queued, taken = await self.requeue_dead_letters(dlq_name, target_queue, batch)
            total += queued
            if taken == 0:
                break
        return total

    async def set_worker_health(self, worker_id: str, data: dict[str, Any], ttl_seconds: int) -> None:
        """Write a health record that expires; errors are logged, not raised."""
        text = json.dumps(data, default=str)
        try:
            await self.redis.set(self.keys.health_key(worker_id), text, ex=ttl_seconds)
        except RedisError:
            logger.exception("health record not written", extra={"worker_id": worker_id})

    async def get_worker_health(self, worker_id: str) -> tuple[dict[str, Any] | None, int | None]:
        """Return a health record and the seconds it has left; (None, None) when absent."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.get(self.keys.health_key(worker_id))
            pipe.ttl(self.keys.health_key(worker_id))
            text, ttl_seconds = await pipe.execute()
        if text is None:
            return None, None
        remaining = ttl_seconds if ttl_seconds >= 0 else None
        try:
            return json.loads(text), remaining
        except (ValueError, RecursionError):
            logger.exception("health record is not JSON", extra={"worker_id": worker_id})
            return None, remaining

    async def register_active_queue(self, queue_name: str) -> None:
        await self.redis.zadd(self.keys.active_queues, {queue_name: datetime.now(UTC).timestamp()})

    async def register_active_worker(self, worker_id: str) -> None:
        await self.redis.zadd(self.keys.active_workers, {worker_id: datetime.now(UTC).timestamp()})

    async def get_active_queues(self, max_age_seconds: int = 300) -> list[str]:
        """Return the queues seen within the age, oldest first; older entries are dropped."""
        return await self._recent(self.keys.active_queues, max_age_seconds)

    async def get_active_workers(self, max_age_seconds: int = 60) -> list[str]:
        """Return the workers seen within the age, oldest first; older entries are dropped."""
        return await self._recent(self.keys.active_workers, max_age_seconds)

    async def _recent(self, key: str, max_age_seconds: int) -> list[str]:
        oldest = datetime.now(UTC).timestamp() - max_age_seconds
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.zremrangebyscore(key, "-inf", f"({oldest}")
            pipe.zrange(key, 0, -1)
            _, members = await pipe.execute()
        return decode_all(members)

    async def publish_monitor_event(self, event_type: str, data: dict[str, Any]) -> None:
        """Append an event to the monitoring stream, which keeps about the last thousand."""
        fields: dict[Any, Any] = {
            "event_type": event_type,
            "timestamp": datetime.now(UTC).timestamp(),
            **data,
        }
        await self.redis.xadd(
            self.keys.monitor_stream,
            fields,
            maxlen=_MONITOR_STREAM_LENGTH,
            approximate=True,
        )

    async def consume_monitor_events(
        self, last_id: str = "0", count: int = 100, block: int = 50
    ) -> list[Any]:
        """Read monitoring events after ``last_id``, waiting ``block`` ms; [] on any error."""
        try:
            events = await self.redis.xread({self.keys.monitor_stream: last_id}, count=count, block=block)
        except RedisError:
            logger.exception("monitoring events not read")
            return []
        return list(events or [])
