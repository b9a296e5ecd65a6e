"""The way of a job through Redis: enqueue, claim, finish, look at, cancel; and what it notes while it runs.

One method per script, which packs its arguments and reads its answer. The script decides; the header of its Lua file
tells what the numbers mean. An answer that cannot be read belongs to another call, and the connection is closed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from rrq.broker.access import RedisAccess
from rrq.broker.messages import (
    CancelCode,
    Claim,
    ClaimCode,
    ClaimedJob,
    ClaimRequest,
    Enqueued,
    Outcome,
    Verdict,
)
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.jobs.codec import CLAIMED_FIELDS, decode, decode_all, decode_pairs, parse_job_result
from rrq.jobs.job import JobResult
from rrq.jobs.request import EncodedJob

__all__ = ["JobCalls"]

_VERDICTS = {verdict.value: verdict for verdict in Verdict}
#: What a claim returns of every job: the fields of the model, the token before and whether it is suspect.
_CLAIM_FIELDS = len(CLAIMED_FIELDS) + 2


class JobCalls(RedisAccess):
    """The atomic steps in the life of a job."""

    async def enqueue_jobs(self, jobs: Sequence[EncodedJob], token: str) -> Enqueued:
        """Store and queue a batch in one round trip, and wait until it is as safe as the settings ask."""
        queue_numbers: dict[str, int] = {}
        args: list[Any] = [self.keys.prefix, token, self.settings.default_unique_job_lock_ttl_seconds]
        for job in jobs:
            queue_key = self.keys.queue_key(job[4])
            number = queue_numbers.setdefault(queue_key, len(queue_numbers) + 1)
            args += (*job[:4], number, *job[4:])

        def read(reply: Any) -> Enqueued:
            now_us, *answers = reply
            if len(answers) != len(jobs):
                raise ValueError(f"{len(answers)} answers for {len(jobs)} jobs")
            due_ms: list[int] = []
            job_ids: list[str | None] = []
            for answer in answers:
                code, job_id = (answer[0], decode(answer[1])) if isinstance(answer, list) else (answer, None)
                due_ms.append(code)
                job_ids.append(job_id)
            return Enqueued(now_us, due_ms, job_ids)

        is_safe_at_once = self.settings.durability == "server"
        connection = self.connection if is_safe_at_once else self._durable_connection
        return await connection.run("enqueue_jobs", list(queue_numbers), args, read=read)

    async def claim_jobs(self, request: ClaimRequest) -> Claim:
        """Give due jobs, or the named ones, to a worker."""
        worker, keys, settings = request.worker, self.keys, self.settings
        queue_keys = [keys.queue_key(name) for name in request.queues]
        own_keys = (
            keys.leases,
            keys.active_jobs_key(worker.worker_id),
            keys.worker_key(worker.worker_id),
            keys.guard,
            keys.drain_key(worker.pod_uid),
        )
        args = (
            *(keys.prefix, worker.worker_id, worker.incarnation, request.token_base, request.count),
            *(settings.default_job_timeout_seconds, settings.default_lock_timeout_extension_seconds),
            *(request.lock_ttl_ms, request.wait_ms),
            *(keys.dlq_key(settings.default_dlq_name), settings.default_dlq_result_ttl_seconds),
            *(worker.pool, ",".join(f"{weight:g}" for weight in request.weights)),
            *request.job_ids,
        )

        def read(reply: Any) -> Claim:
            code, now_ms, next_due_ms, more_due, suspects, missing, unreadable, rows = reply
            jobs = []
            for number, (job_id, position, score, fields) in enumerate(rows, 1):
                head_start_ms = _read_head_start(fields.pop()) if len(fields) > _CLAIM_FIELDS else 0.0
                is_suspect = fields.pop() is not None
                token_before = fields.pop() or b""
                queue_name, queue_key = request.queues[position - 1], queue_keys[position - 1]
                token = f"{request.token_base}.{number}"
                jobs.append(
                    ClaimedJob(
                        job_id,
                        token,
                        token_before,
                        queue_name,
                        queue_key,
                        score,
                        is_suspect,
                        fields,
                        head_start_ms,
                    )
                )
            return Claim(
                ClaimCode(code),
                now_ms,
                None if next_due_ms < 0 else next_due_ms,
                bool(more_due),
                decode_all(suspects),
                decode_all(missing),
                decode_all(unreadable),
                jobs,
            )

        return await self.connection.run("claim_jobs", [*own_keys, *queue_keys], args, read=read)

    async def wait_for_wake(self, queues: Sequence[str], timeout_seconds: float) -> bool:
        """Block until a job may have come to one of the queues; False when the time is up."""
        tokens = [self.keys.wake_key(name) for name in queues]
        return await self.blocking_connection.wait_on_lists(tokens, timeout_seconds)

    async def finish_jobs(self, worker_id: str, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """Store outcomes, each only if its attempt still owns the job. May be sent twice."""
        if not outcomes:
            return []
        keys, settings = self.keys, self.settings
        args: list[Any] = [keys.prefix, worker_id, settings.default_dlq_result_ttl_seconds]
        for outcome in outcomes:
            args += outcome

        def read(reply: Any) -> list[Verdict]:
            if len(reply) != len(outcomes):
                raise ValueError(f"{len(reply)} answers for {len(outcomes)} outcomes")
            return [_VERDICTS[code] for code in reply]

        script_keys = [
            keys.active_jobs_key(worker_id),
            keys.counters,
            keys.dlq_key(settings.default_dlq_name),
        ]
        return await self.connection.run("finish_jobs", script_keys, args, read=read)

    async def watch_job(self, job_id: str, *, wants_event: bool) -> JobResult | None:
        """Look at a job and, if wished, have its end announced on its event stream."""

        def read(reply: Any) -> JobResult | None:
            return None if reply is None else parse_job_result(*reply)

        args = [self.keys.prefix, int(wants_event)]
        return await self.connection.run("watch_job", [self.keys.job_key(job_id)], args, read=read)

    @contextlib.asynccontextmanager
    async def watch_events(self, job_id: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """Yield a function that blocks until the end of a job is announced, or for some seconds."""
        connection, events = PipelinedConnection(self.settings, self.redis), self.keys.events_key(job_id)

        async def watch(seconds: float) -> None:
            block_ms = max(1, int(seconds * 1000))
            try:
                await connection.call(
                    *("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", events, "0"),
                    timeout_seconds=seconds + self.settings.redis_socket_timeout_seconds,
                )
            except ResponseError:
                # The key is no stream. The hash is the truth; the caller looks at it when the time is up.
                await asyncio.sleep(seconds)

        try:
            yield watch
        finally:
            await connection.aclose()

    async def cancel_job(self, job_id: str) -> tuple[CancelCode, str]:
        """Cancel a job; returns what happened and the status it had."""

        def read(reply: Any) -> tuple[CancelCode, str]:
            code, status = reply
            return CancelCode(code), decode(status)

        return await self.connection.run("cancel_job", [], [self.keys.prefix, job_id], read=read)

    async def leave_trace(self, job_id: str, token: str, trace_context: str) -> bool:
        """Change the trace context (JSON) of a job; False when the attempt no longer owns it."""
        args = [self.keys.prefix, token, trace_context]
        return bool(await self.connection.run("leave_trace", [self.keys.job_key(job_id)], args, read=int))

    async def note_progress(self, job_id: str, token: str, field: str, value: str) -> bool:
        """Keep the progress or the cursor (JSON) of a running attempt; False when it no longer owns its job."""
        args = [self.keys.prefix, token, field, value]
        return bool(await self.connection.run("note_progress", [self.keys.job_key(job_id)], args, read=int))

    async def read_cursor(self, job_id: str) -> str | None:
        """Return the cursor (JSON) that an earlier attempt left, if any."""
        value = await self.connection.call("HGET", self.keys.job_key(job_id), "cursor")
        return None if value is None else decode(value)

    async def read_wait_for_function(self, job_id: str) -> float:
        """Return for how many seconds a job has met workers without its function; 0 when it has met none."""
        since_ms, enqueued, noted_for = await self.connection.call(
            "HMGET", self.keys.job_key(job_id), "unknown_since_ms", "enqueue_time", "troubles_of"
        )
        if enqueued != noted_for:
            return 0.0  # noted in an earlier life of this id
        try:
            met_at_ms = int(since_ms)
        except (TypeError, ValueError):
            return 0.0
        return max(0.0, await self._read_now_ms() - met_at_ms) / 1000

    async def open_batch(self, batch_id: str, total: int, callback: str, keep_seconds: int) -> None:
        """Prepare a batch whose jobs are still to be queued. ``callback`` is JSON, '' for none.

        Without ``close_batch`` it is forgotten after ``keep_seconds``.
        """
        key = self.keys.batch_key(batch_id)
        await self.connection.call("HSET", key, "total", total, "failed", 0, "open", 1, "callback", callback)
        await self.connection.call("EXPIRE", key, keep_seconds)

    async def close_batch(self, batch_id: str) -> int:
        """Note that all jobs of the batch are queued; returns how many have not ended."""
        keys = [self.keys.batch_key(batch_id), self.keys.batch_pending_key(batch_id)]
        return await self.connection.run("close_batch", keys, [self.keys.prefix], read=int)

    async def read_batch(self, batch_id: str) -> dict[str, str] | None:
        """Return what is known of a batch, with ``pending``; None when there is none."""
        fields = decode_pairs(await self.connection.call("HGETALL", self.keys.batch_key(batch_id)))
        if not fields:
            return None
        fields["pending"] = str(await self.connection.call("SCARD", self.keys.batch_pending_key(batch_id)))
        return fields


def _read_head_start(text: bytes) -> float:
    # Another program may write anything into a job; that must not spoil the answer for the others.
    return float(text) if text.isdigit() else 0.0
