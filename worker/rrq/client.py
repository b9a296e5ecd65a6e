"""RRQClient: the producer's side. Enqueue jobs, follow them, cancel them.

A producer fails fast: one attempt to reach Redis, then a clear error. The clock of Redis sets due times, so that a
producer whose own clock is wrong neither hastens nor delays its jobs; only ``_defer_until`` is absolute.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar, cast

from rrq import telemetry
from rrq.broker.connection import LOST_REPLY_ERRORS, REDIS_ERRORS, RedisCutOff, mask_dsn
from rrq.broker.messages import CancelCode, CronVerdict, EnqueueCode
from rrq.cron import CronJob, cron_digest
from rrq.exc import EnqueueError, FunctionDisabled, InvalidJob, NotDurable, SettingsError
from rrq.hooks import HookManager
from rrq.jobs.codec import build_enqueued_job
from rrq.jobs.job import Job, JobResult, JobStatus
from rrq.jobs.options import Deferral, JobOptions
from rrq.jobs.request import (
    EncodedJob,
    JobRequest,
    encode_follow_up,
    encode_request,
    new_job_id,
    split_keywords,
)
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.tracing import EnqueueTrace

__all__ = ["Batch", "JobRequest", "RRQClient"]

_ENDED: Final = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
_BATCH_SIZE: Final = 500
# One batch is encoded while Redis stores the one before.
_BATCHES_IN_FLIGHT: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that were queued together; a callback may run after the last of them."""

    batch_id: str
    jobs: tuple[Job, ...]


class RRQClient:
    """Enqueues jobs. Building one opens no connection and needs no event loop."""

    def __init__(self, settings: RRQSettings, job_store: JobStore | None = None) -> None:
        if isinstance(settings, str):
            # Refused here because clients of other libraries take a URL.
            raise SettingsError(
                "RRQClient takes settings, not text. Write RRQClient(RRQSettings(redis_dsn='redis://127.0.0.1:6379/0'))."
            )
        self.settings = settings
        self._created_store_internally = job_store is None
        self.job_store = job_store if job_store is not None else JobStore(settings)
        self._hooks = HookManager(settings)
        # Unique in the fleet, so that a token never repeats, even when Redis forgets jobs.
        self._token_base = f"e.{secrets.token_hex(8)}"
        self._calls = 0

    async def close(self) -> None:
        """Close the store, unless it was given by the caller."""
        await self._hooks.close()
        if self._created_store_internally:
            await self.job_store.aclose()

    aclose = close

    async def enqueue(
        self,
        function_name: str,
        *args: Any,
        _queue_name: str | None = None,
        _job_id: str | None = None,
        _unique_key: str | None = None,
        _max_retries: int | None = None,
        _job_timeout_seconds: int | None = None,
        _defer_until: datetime | None = None,
        _defer_by: Deferral | None = None,
        _result_ttl_seconds: int | None = None,
        **keywords: Any,
    ) -> Job | None:
        """Queue one job; keywords without underscore go to the handler. A job is always returned.

        The signature is that of RRQ 0.7. Further options are keywords with an underscore: ``_priority``,
        ``_limit_key``, ``_idempotency_key``, ``_idempotency_seconds``, ``_debounce_key``, ``_debounce_max_seconds``,
        ``_replace_if_pending`` and ``_then``.

        While another job has the ``_unique_key``, this one is deferred until that lock ends. An id used again makes a
        new job of that id; with ``_replace_if_pending`` a job that runs is left alone and returned instead.

        ``_priority`` (0 to 9) serves the job as if it had waited that many minutes longer. ``_limit_key`` says
        whose share of a limit per key it takes. Within ``_idempotency_seconds`` (a day by default) further calls with
        the same ``_idempotency_key`` return the first job, whose result is kept for at least so long. A call with the
        ``_debounce_key`` of a job that still waits replaces it and puts it off anew, for ``_debounce_max_seconds`` at
        most. ``_then`` are jobs to queue one after the other once this one is done; the step that stores its result
        queues the first of them.

        Raises EnqueueError (or a subclass) for what cannot be a job, FunctionDisabled when a person has disabled the
        function, RedisUnavailable when Redis gives no answer, and NotDurable when the job is queued, but
        not as safe as ``settings.durability`` asks.
        """
        options: dict[str, Any] = {
            "queue_name": _queue_name,
            "job_id": _job_id,
            "unique_key": _unique_key,
            "max_retries": _max_retries,
            "job_timeout_seconds": _job_timeout_seconds,
            "defer_until": _defer_until,
            "defer_by": _defer_by,
            "result_ttl_seconds": _result_ttl_seconds,
        }
        more, kwargs = split_keywords(function_name, keywords)
        options.update(more)
        given = cast(JobOptions, {name: value for name, value in options.items() if value is not None})
        return await self.enqueue_request(JobRequest(function_name, args, kwargs, options=given))

    async def enqueue_request(self, request: JobRequest) -> Job:
        """Queue one job as ``enqueue`` does; its keywords may have any name here, also that of an option."""
        if telemetry.active.enabled:
            with EnqueueTrace(request.function_name) as trace:
                trace.jobs = jobs = await self._enqueue_batch([_with_trace(request, trace)])
            return jobs[0]
        return (await self._enqueue_batch([request]))[0]

    async def enqueue_many(
        self, requests: Iterable[JobRequest], *, batch_size: int = _BATCH_SIZE
    ) -> list[Job]:
        """Queue many jobs, one round trip per ``batch_size`` of them.

        Redis takes or refuses a batch as a whole, and the batches before it stay queued. Only a job whose key is no
        hash is left out of its batch, and then InvalidJob names it.
        """
        if telemetry.active.enabled:
            with EnqueueTrace("") as trace:
                marked = (_with_trace(request, trace) for request in requests)
                trace.jobs = jobs = await self._enqueue_in_batches(marked, batch_size)
            return jobs
        return await self._enqueue_in_batches(requests, batch_size)

    async def _enqueue_in_batches(self, requests: Iterable[JobRequest], batch_size: int) -> list[Job]:
        source = iter(requests)
        jobs: list[Job] = []
        in_flight: list[asyncio.Task[list[Job]]] = []
        try:
            while batch := list(islice(source, batch_size)):
                in_flight.append(asyncio.ensure_future(self._enqueue_batch(batch)))
                # Lets the batch reach the socket before the next one is encoded.
                await asyncio.sleep(0)
                if len(in_flight) >= _BATCHES_IN_FLIGHT:
                    jobs += await in_flight.pop(0)
            while in_flight:
                jobs += await in_flight.pop(0)
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)
        return jobs

    async def enqueue_batch(
        self,
        requests: Sequence[JobRequest],
        on_complete: JobRequest | None = None,
        *,
        keep_seconds: int = 30 * 86_400,
    ) -> Batch:
        """Queue many jobs as one batch; ``on_complete`` is queued when the last of them has ended, well or not.

        The step that ends the last job queues the callback, which gets the keyword ``batch_id``. The callback waits
        until all jobs are queued: a producer that fails on the way leaves a batch that never completes.

        ``keep_seconds``: how long such an unfinished batch is kept; choose it longer than queueing the jobs takes. A batch
        whose jobs are all queued is kept until the last of them has ended, and a week longer.
        """
        batch_id = new_job_id()
        callback = ""
        if on_complete is not None:
            kwargs = {**on_complete.kwargs, "batch_id": batch_id}
            named = JobRequest(
                on_complete.function_name, on_complete.args, kwargs, options=on_complete.options
            )
            callback = json.dumps(encode_follow_up(named, self.settings))
        await self._reaching(self.job_store.open_batch(batch_id, len(requests), callback, keep_seconds))
        jobs = await self.enqueue_many(request.with_options(batch_id=batch_id) for request in requests)
        await self._reaching(self.job_store.close_batch(batch_id))
        return Batch(batch_id, tuple(jobs))

    async def _reaching(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost

    async def enqueue_cron(self, cron_job: CronJob) -> CronVerdict:
        """Queue the tick at ``cron_job.next_run_time``, unless another process has done so before."""
        if cron_job.next_run_time is None:
            return CronVerdict.AHEAD
        request = _build_cron_request(cron_job)
        tick_ms = int(cron_job.next_run_time.timestamp() * 1000)
        if not telemetry.active.enabled:
            return await self._fire_cron(cron_job, tick_ms, request)
        with EnqueueTrace(cron_job.function_name) as trace:
            verdict = await self._fire_cron(cron_job, tick_ms, _with_trace(request, trace))
            # Every worker of the fleet tries; only the worker that fired the tick keeps its span.
            trace.is_discarded = verdict is not CronVerdict.FIRED
        return verdict

    async def _fire_cron(self, cron_job: CronJob, tick_ms: int, request: JobRequest) -> CronVerdict:
        encoded = encode_request(request, self.settings)
        try:
            verdict = await self.job_store.fire_cron(
                self.identify_cron(cron_job),
                tick_ms,
                encoded,
                self._next_token(),
                cron_job.unique_lock_ttl_seconds,
            )
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost
        if verdict is CronVerdict.FIRED and self._hooks.has_hooks:
            now = datetime.now(UTC)
            await self._hooks.trigger_event("on_job_enqueued", build_enqueued_job(request, encoded, now, now))
        return verdict

    def identify_cron(self, cron_job: CronJob) -> str:
        """Return the name under which the ticks of this entry are counted in Redis.

        The name contains the queue of its jobs. So an entry that takes the queue from the settings equals its published
        form, and differs from entries of applications with other defaults.
        """
        queue_name = cron_job.queue_name or self.settings.default_queue_name
        return cron_digest(cron_job, self.job_store.keys.queue_name(queue_name))

    def complete_cron(self, cron_job: CronJob) -> CronJob:
        """Return the entry with all defaults that it takes from these settings written out.

        Raises EnqueueError (or a subclass) for an entry whose jobs could not be enqueued.
        """
        encoded = encode_request(_build_cron_request(cron_job), self.settings)
        _, _, _, _, queue_name, max_retries, job_timeout_seconds, result_ttl_seconds, *_ = encoded
        lock_ttl_seconds = cron_job.unique_lock_ttl_seconds
        if lock_ttl_seconds is None:
            lock_ttl_seconds = self.settings.default_unique_job_lock_ttl_seconds
        grace_seconds = cron_job.misfire_grace_seconds
        if grace_seconds is None:
            grace_seconds = self.settings.misfire_grace_seconds
        return cron_job.model_copy(
            update={
                "queue_name": queue_name,
                "max_retries": max_retries,
                "job_timeout_seconds": job_timeout_seconds,
                "result_ttl_seconds": result_ttl_seconds,
                "unique_lock_ttl_seconds": lock_ttl_seconds,
                "misfire_grace_seconds": grace_seconds,
                "next_run_time": None,
            }
        )

    async def get_job_status(self, job_id: str) -> JobResult | None:
        """Return the status and outcome of a job, or None when there is none of this id."""
        return await self._look_at(job_id, wants_event=False)

    async def wait_for_completion(
        self, job_id: str, *, timeout_seconds: float = 30.0, block_interval_seconds: float = 0.25
    ) -> JobResult | None:
        """Wait until a job has ended. None when the time is up or there is no such job.

        An event wakes the wait at once. For workers that send no events the job is looked at every
        ``block_interval_seconds``, too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        # A socket of its own, opened only if the job has not ended: any number of waits may run at once.
        async with self.job_store.watch_events(job_id) as watch:
            while True:
                result = await self._look_at(job_id, wants_event=True)
                if result is None or result.status in _ENDED:
                    return result
                remaining = deadline - loop.time()
                if remaining <= 0:
                    return None
                try:
                    await watch(min(remaining, block_interval_seconds))
                except LOST_REPLY_ERRORS as lost:
                    raise self._cut_off(lost) from lost

    async def cancel(self, job_id: str) -> CancelCode:
        """Cancel a queued job, or ask the worker that runs it to; returns what happened."""
        try:
            code, _ = await self.job_store.cancel_job(job_id)
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost
        return code

    async def _look_at(self, job_id: str, *, wants_event: bool) -> JobResult | None:
        try:
            return await self.job_store.watch_job(job_id, wants_event=wants_event)
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost

    async def _enqueue_batch(self, requests: Sequence[JobRequest]) -> list[Job]:
        encoded = [encode_request(request, self.settings) for request in requests]
        try:
            enqueued = await self.job_store.enqueue_jobs(encoded, self._next_token())
        except NotDurable as unconfirmed:
            job_ids = [job_id for job_id, *_ in encoded]
            raise NotDurable(unconfirmed.durability, unconfirmed.waited_seconds, job_ids) from unconfirmed
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost
        except REDIS_ERRORS as refusal:
            raise EnqueueError(
                f"Redis refused {len(requests)} job(s) of function {requests[0].function_name!r}: "
                f"{refusal}. Nothing of this batch was queued; see to Redis and enqueue again."
            ) from refusal
        enqueued_at = datetime.fromtimestamp(enqueued.now_us / 1_000_000, UTC)
        now_ms = enqueued.now_us // 1000
        jobs = []
        answers = zip(requests, encoded, enqueued.due_ms, enqueued.job_ids, strict=True)
        for request, new_job, due_ms, other_id in answers:
            if due_ms < 0:
                jobs.append(await self._explain(EnqueueCode(due_ms), new_job, other_id))
                continue
            run_at = enqueued_at if due_ms == now_ms else datetime.fromtimestamp(due_ms / 1000, UTC)
            job = build_enqueued_job(request, new_job, enqueued_at, run_at)
            if other_id is not None:
                job.id = other_id
            jobs.append(job)
        if self._hooks.hooks or self.settings.event_handlers:
            for job in jobs:
                await self._hooks.trigger_event("on_job_enqueued", job)
        return jobs

    async def _explain(self, code: EnqueueCode, encoded: EncodedJob, other_id: str | None) -> Job:
        """Return the earlier job that answers for one that was not queued, or raise what is wrong with it."""
        job_id, function_name, *_ = encoded
        if code is EnqueueCode.NOT_A_JOB:
            raise InvalidJob(
                f"Job {job_id} was not queued: its key {self.job_store.keys.job_key(job_id)} holds something that is "
                "not a job. Choose another id or delete that key."
            )
        if code is EnqueueCode.DISABLED:
            raise FunctionDisabled(
                f"Job {job_id} was not queued: function {function_name!r} is disabled. "
                f"'rrq resume function:{function_name}' enables it again."
            )
        earlier = await self._reaching(self.job_store.get_job_definition(other_id or job_id))
        if earlier is None:
            raise InvalidJob(
                f"Job {other_id} answers for this call, but it expired in the same moment. Enqueue it again."
            )
        return earlier

    def _next_token(self) -> str:
        self._calls += 1
        return f"{self._token_base}.{self._calls}"

    def _cut_off(self, lost: BaseException) -> RedisCutOff:
        return RedisCutOff(mask_dsn(self.settings.redis_dsn), str(lost))


def _with_trace(request: JobRequest, trace: EnqueueTrace) -> JobRequest:
    """Give a job the trace context of its call, unless the application gave it one."""
    if not trace.headers or request.options.get("trace_context") is not None:
        return request
    return request.with_options(trace_context=trace.headers)


def _build_cron_request(cron_job: CronJob) -> JobRequest:
    return JobRequest(
        cron_job.function_name,
        cron_job.args,
        cron_job.kwargs,
        queue_name=cron_job.queue_name,
        unique_key=f"cron:{cron_job.function_name}" if cron_job.unique else None,
        max_retries=cron_job.max_retries,
        job_timeout_seconds=cron_job.job_timeout_seconds,
        result_ttl_seconds=cron_job.result_ttl_seconds,
    )
