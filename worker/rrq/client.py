"""RRQClient: the producer's side. Enqueue jobs, follow them, cancel them.

A producer fails fast: one attempt to reach Redis, then a clear error. Due times are set by the
clock of Redis, so that a producer whose own clock is wrong neither hastens nor delays its jobs;
only ``_defer_until`` is absolute.
"""

import asyncio
import json
import math
import secrets
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from rrq import telemetry
from rrq.broker.connection import LOST_REPLY_ERRORS, REDIS_ERRORS, RedisCutOff, mask_dsn
from rrq.broker.messages import CancelCode, CronVerdict, EnqueueCode, NewJob
from rrq.cron import CronJob, cron_digest
from rrq.exc import EnqueueError, FunctionDisabled, InvalidJob, NotDurable, SettingsError
from rrq.hooks import HookManager
from rrq.job import Job, JobResult, JobStatus, new_job_id
from rrq.jobs.encoding import encode_arguments
from rrq.jobs.options import NO_OPTIONS, JobOptions, build_kept_job, build_options
from rrq.runtime.backoff import LONGEST_DELAY_SECONDS
from rrq.runtime.suggestions import find_meant
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.tracing import EnqueueTrace

__all__ = ["Batch", "JobRequest", "RRQClient"]

_ENDED = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
_BATCH_SIZE = 500
# Redis counts in 64 bits, and readers take numbers up to this for plain ones.
_LARGEST_OPTION = 10**18 - 1
# One batch is encoded while Redis stores the one before.
_BATCHES_IN_FLIGHT = 2

Deferral = timedelta | int | float
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job of a batch; the fields mean what the options of ``RRQClient.enqueue`` mean."""

    function_name: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue_name: str | None = None
    job_id: str | None = None
    unique_key: str | None = None
    max_retries: int | None = None
    job_timeout_seconds: int | None = None
    result_ttl_seconds: int | None = None
    defer_until: datetime | None = None
    defer_by: Deferral | None = None
    trace_context: Mapping[str, str] | None = None
    options: JobOptions = NO_OPTIONS
    then: "Sequence[JobRequest]" = ()
    """A chain: each is queued by the very step that ends the one before well."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that were queued together, and whose common end may be waited for."""

    batch_id: str
    jobs: tuple[Job, ...]


class RRQClient:
    """Enqueues jobs. Building one opens no connection and needs no event loop."""

    def __init__(self, settings: RRQSettings, job_store: JobStore | None = None) -> None:
        if isinstance(settings, str):
            # Asked for here because it is what clients of other libraries take.
            raise SettingsError(
                "RRQClient takes settings, not text. Write RRQClient(RRQSettings(redis_dsn='redis://127.0.0.1:6379/0'))."
            )
        self.settings = settings
        self._created_store_internally = job_store is None
        self.job_store = job_store if job_store is not None else JobStore(settings)
        self._hooks = HookManager(settings)
        # Unique in the fleet, so that a token never repeats whatever Redis forgets.
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
        _priority: int | None = None,
        _limit_key: str | None = None,
        _idempotency_key: str | None = None,
        _idempotency_seconds: float = 86_400.0,
        _debounce_key: str | None = None,
        _debounce_max_seconds: float | None = None,
        _replace_if_pending: bool = False,
        _then: Sequence[JobRequest] = (),
        **kwargs: Any,
    ) -> Job | None:
        """Queue one job; keywords without underscore go to the handler. A job is always returned.

        A ``_unique_key`` that is held defers the job until the lock runs out. An id used again makes a new job of
        that id; with ``_replace_if_pending`` only if it is not running, else the running job is returned.

        ``_priority`` (0 to 9) serves the job as if it had waited that many minutes longer. ``_limit_key`` says
        whose share of a limit per key it takes. Within ``_idempotency_seconds`` further calls with the same
        ``_idempotency_key`` return the first job, whose result is kept for at least so long. A call with the
        ``_debounce_key`` of a job that still waits replaces it and puts it off anew, for
        ``_debounce_max_seconds`` at most. ``_then`` are the jobs to queue one after the other once this one is
        done; the step that stores its result queues the first of them.

        Raises EnqueueError (or a subclass) for what cannot be a job, FunctionDisabled when somebody has switched
        the function off, RedisUnavailable when Redis gives no answer, and NotDurable when the job is queued, but
        not as safe as ``settings.durability`` asks.
        """
        if kwargs:
            _check_keywords(function_name, kwargs)
        request = JobRequest(
            function_name,
            args,
            kwargs,
            _queue_name,
            _job_id,
            _unique_key,
            _max_retries,
            _job_timeout_seconds,
            _result_ttl_seconds,
            _defer_until,
            _defer_by,
            options=JobOptions(
                _priority,
                _limit_key,
                _idempotency_key,
                _idempotency_seconds,
                _debounce_key,
                _debounce_max_seconds,
                _replace_if_pending,
            ),
            then=_then,
        )
        return await self.enqueue_request(request)

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

        A batch that Redis refuses is refused whole, and those before it stay queued. Only a job
        whose key holds something else is left out of its batch, which InvalidJob then tells.
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

        The step that ends the last job queues the callback, which gets the keyword ``batch_id``. Nothing fires before
        all jobs are queued: a producer that fails on the way leaves a batch that never completes.

        ``keep_seconds``: how long such an unfinished batch is kept; choose it longer than queueing the jobs takes. A batch
        whose jobs are all queued is kept until the last of them has ended, and a week longer.
        """
        batch_id = new_job_id()
        callback = ""
        if on_complete is not None:
            named = replace(on_complete, kwargs={**on_complete.kwargs, "batch_id": batch_id})
            callback = json.dumps(self._keep(named))
        await self._reaching(self.job_store.open_batch(batch_id, len(requests), callback, keep_seconds))
        members = (
            replace(request, options=replace(request.options, batch_id=batch_id)) for request in requests
        )
        jobs = await self.enqueue_many(members)
        await self._reaching(self.job_store.close_batch(batch_id))
        return Batch(batch_id, tuple(jobs))

    async def _reaching(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost

    async def enqueue_cron(self, cron_job: CronJob) -> CronVerdict:
        """Queue the tick at ``cron_job.next_run_time``, unless anybody has done so before."""
        if cron_job.next_run_time is None:
            return CronVerdict.AHEAD
        request = _build_cron_request(cron_job)
        tick_ms = int(cron_job.next_run_time.timestamp() * 1000)
        if not telemetry.active.enabled:
            return await self._fire_cron(cron_job, tick_ms, request)
        with EnqueueTrace(cron_job.function_name) as trace:
            verdict = await self._fire_cron(cron_job, tick_ms, _with_trace(request, trace))
            # Every worker of the fleet asks; the trace belongs to the one that fired.
            trace.is_discarded = verdict is not CronVerdict.FIRED
        return verdict

    async def _fire_cron(self, cron_job: CronJob, tick_ms: int, request: JobRequest) -> CronVerdict:
        new_job = self._encode(request)
        try:
            verdict = await self.job_store.fire_cron(
                self.identify_cron(cron_job),
                tick_ms,
                new_job,
                self._next_token(),
                cron_job.unique_lock_ttl_seconds,
            )
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost
        if verdict is CronVerdict.FIRED and self._hooks.has_hooks:
            now = datetime.now(UTC)
            await self._hooks.trigger_event("on_job_enqueued", _build_job(request, new_job, now, now))
        return verdict

    def identify_cron(self, cron_job: CronJob) -> str:
        """Return the name under which the ticks of this entry are counted in Redis.

        By the queue its jobs go to, so that an entry that leaves it to the settings and one that was
        published with it are the same, and entries of applications with other defaults are not.
        """
        queue_name = cron_job.queue_name or self.settings.default_queue_name
        return cron_digest(cron_job, self.job_store.keys.queue_name(queue_name))

    def complete_cron(self, cron_job: CronJob) -> CronJob:
        """Return the entry with all that it would take from these settings written into it.

        Raises EnqueueError (or a subclass) for an entry whose jobs could not be enqueued.
        """
        new_job = self._encode(_build_cron_request(cron_job))
        lock_ttl_seconds = cron_job.unique_lock_ttl_seconds
        if lock_ttl_seconds is None:
            lock_ttl_seconds = self.settings.default_unique_job_lock_ttl_seconds
        grace_seconds = cron_job.misfire_grace_seconds
        if grace_seconds is None:
            grace_seconds = self.settings.misfire_grace_seconds
        return cron_job.model_copy(
            update={
                "queue_name": new_job.queue_name,
                "max_retries": new_job.max_retries,
                "job_timeout_seconds": new_job.job_timeout_seconds,
                "result_ttl_seconds": new_job.result_ttl_seconds,
                "unique_lock_ttl_seconds": lock_ttl_seconds,
                "misfire_grace_seconds": grace_seconds,
                "next_run_time": None,
            }
        )

    async def get_job_status(self, job_id: str) -> JobResult | None:
        """Return where a job stands, or None when there is none of this id."""
        return await self._look_at(job_id, wants_event=False)

    async def wait_for_completion(
        self, job_id: str, *, timeout_seconds: float = 30.0, block_interval_seconds: float = 0.25
    ) -> JobResult | None:
        """Wait until a job has ended; None when the time is up or there is no such job.

        An event wakes the wait at once; ``block_interval_seconds`` is how often the job is looked
        at regardless, for workers that send no events.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        # A socket of its own, opened only if there is something to wait for: any number of jobs may
        # be waited for at once.
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
        """Cancel a queued job, or tell the worker that runs it; returns what happened."""
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
        new_jobs = [self._encode(request) for request in requests]
        try:
            enqueued = await self.job_store.enqueue_jobs(new_jobs, self._next_token())
        except NotDurable as unconfirmed:
            job_ids = [job.job_id for job in new_jobs]
            raise NotDurable(unconfirmed.durability, unconfirmed.waited_seconds, job_ids) from unconfirmed
        except LOST_REPLY_ERRORS as lost:
            raise self._cut_off(lost) from lost
        except REDIS_ERRORS as refusal:
            raise EnqueueError(
                f"Redis refused {len(new_jobs)} job(s) of function {new_jobs[0].function_name!r}: "
                f"{refusal}. Nothing of this batch was queued; see to Redis and enqueue again."
            ) from refusal
        enqueued_at = datetime.fromtimestamp(enqueued.now_us / 1_000_000, UTC)
        now_ms = enqueued.now_us // 1000
        jobs = []
        answers = zip(requests, new_jobs, enqueued.due_ms, enqueued.job_ids, strict=True)
        for request, new_job, due, other_id in answers:
            if due < 0:
                jobs.append(await self._explain(EnqueueCode(due), new_job, other_id))
                continue
            run_at = enqueued_at if due == now_ms else datetime.fromtimestamp(due / 1000, UTC)
            stored = new_job if other_id is None else new_job._replace(job_id=other_id)
            jobs.append(_build_job(request, stored, enqueued_at, run_at))
        if self._hooks.has_hooks:
            for job in jobs:
                await self._hooks.trigger_event("on_job_enqueued", job)
        return jobs

    async def _explain(self, code: EnqueueCode, new_job: NewJob, other_id: str | None) -> Job:
        """Return the job that stands for one that was not queued, or raise what is wrong with it."""
        if code is EnqueueCode.NOT_A_JOB:
            raise InvalidJob(
                f"Job {new_job.job_id} was not queued: its key "
                f"{self.job_store.keys.job_key(new_job.job_id)} holds something that is not a "
                "job. Choose another id or delete that key."
            )
        if code is EnqueueCode.DISABLED:
            raise FunctionDisabled(
                f"Job {new_job.job_id} was not queued: function {new_job.function_name!r} is disabled. "
                f"'rrq resume function:{new_job.function_name}' enables it again."
            )
        earlier = await self._reaching(self.job_store.get_job_definition(other_id or new_job.job_id))
        if earlier is None:
            raise InvalidJob(
                f"Job {other_id} stands for this call and vanished in the same moment. Enqueue it again."
            )
        return earlier

    def _encode(self, request: JobRequest) -> NewJob:
        settings = self.settings
        args, kwargs = encode_arguments(list(request.args), dict(request.kwargs), request.function_name)
        limit = settings.max_job_payload_bytes
        if limit and len(args) + len(kwargs) > limit:
            raise InvalidJob(
                f"The arguments of a job for {request.function_name!r} take "
                f"{len(args) + len(kwargs)} bytes, more than max_job_payload_bytes ({limit}). "
                "Store the data elsewhere and send a reference."
            )
        new_job = NewJob(
            request.job_id or new_job_id(),
            request.function_name,
            args,
            kwargs,
            request.queue_name or settings.default_queue_name,
            _whole("max_retries", request.max_retries, settings.default_max_retries),
            _whole(
                "job_timeout_seconds",
                request.job_timeout_seconds,
                settings.default_job_timeout_seconds,
            ),
            self._result_ttl_seconds(request),
            _due(request.defer_until, request.defer_by),
            request.unique_key or "",
            json.dumps(request.trace_context) if request.trace_context else "",
            int(bool(request.job_id)),
            self._encode_options(request),
        )
        _check_texts(new_job)
        return new_job

    def _result_ttl_seconds(self, request: JobRequest) -> int:
        default = self.settings.default_result_ttl_seconds
        ttl_seconds = _whole("result_ttl_seconds", request.result_ttl_seconds, default)
        options = request.options
        if options.idempotency_key is None or ttl_seconds <= 0:
            return ttl_seconds
        # The job is what later calls are answered with; forgotten before its window ends, it would run again.
        return max(ttl_seconds, math.ceil(options.idempotency_seconds))

    def _encode_options(self, request: JobRequest) -> str:
        if request.options is NO_OPTIONS and not request.then:
            return ""
        for follower in request.then:
            if follower.then:
                raise InvalidJob(
                    f"The follow-up {follower.function_name!r} has a chain of its own. Write the whole chain as "
                    "one list, in the order in which its jobs are to run."
                )
        return build_options(request.options, [self._keep(follower) for follower in request.then])

    def _keep(self, request: JobRequest) -> list[str]:
        return build_kept_job(self._encode(request), self.settings.default_unique_job_lock_ttl_seconds)

    def _next_token(self) -> str:
        self._calls += 1
        return f"{self._token_base}.{self._calls}"

    def _cut_off(self, lost: BaseException) -> RedisCutOff:
        return RedisCutOff(mask_dsn(self.settings.redis_dsn), str(lost))


def _with_trace(request: JobRequest, trace: EnqueueTrace) -> JobRequest:
    """Have a job carry the context of its call, unless the application gave it one."""
    if request.trace_context is not None or not trace.headers:
        return request
    return replace(request, trace_context=trace.headers)


def _build_cron_request(cron_job: CronJob) -> JobRequest:
    return JobRequest(
        cron_job.function_name,
        cron_job.args,
        cron_job.kwargs,
        cron_job.queue_name,
        unique_key=f"cron:{cron_job.function_name}" if cron_job.unique else None,
        max_retries=cron_job.max_retries,
        job_timeout_seconds=cron_job.job_timeout_seconds,
        result_ttl_seconds=cron_job.result_ttl_seconds,
    )


#: The options of ``enqueue`` as callers write them.
_OPTIONS = frozenset(name for name in RRQClient.enqueue.__kwdefaults__ or () if name.startswith("_"))


def _check_keywords(function_name: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse a keyword that is nearly an option: the handler would get it, and the job would not be as asked."""
    for name in kwargs:
        if not name.startswith("_"):
            continue
        meant = find_meant(name, _OPTIONS)
        if meant is not None:
            raise InvalidJob(
                f"enqueue has no option {name!r} for a job of {function_name!r}. Did you mean {meant!r}? A keyword for "
                "the handler that must have this name goes into a JobRequest, with enqueue_request."
            )


def _check_texts(job: NewJob) -> None:
    """Refuse names that cannot be stored, before anything is sent."""
    if not job.function_name:
        raise InvalidJob("A job needs a function name; the one given is empty.")
    for text in (job.function_name, job.job_id, job.queue_name, job.unique_key):
        if callable(text):
            raise InvalidJob(
                f"Names, ids and keys of a job are text, not {type(text).__name__}. Enqueue by the name under which "
                f"the function is registered, such as {getattr(text, '__name__', 'send_email')!r}."
            )
        if not isinstance(text, str):
            raise InvalidJob(f"Names, ids and keys of a job are text, not {type(text).__name__}.")
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob(
                f"{text!r} of a job for {job.function_name!r} holds half of a surrogate pair, which "
                "UTF-8 cannot store. Decode the text properly, or replace that character."
            ) from error


def _build_job(request: JobRequest, new_job: NewJob, enqueued_at: datetime, run_at: datetime) -> Job:
    # Every value is already what the model asks for.
    return Job.model_construct(
        id=new_job.job_id,
        function_name=new_job.function_name,
        job_args=list(request.args),
        job_kwargs=dict(request.kwargs),
        enqueue_time=enqueued_at,
        next_scheduled_run_time=run_at,
        max_retries=new_job.max_retries,
        job_timeout_seconds=new_job.job_timeout_seconds,
        result_ttl_seconds=new_job.result_ttl_seconds,
        job_unique_key=request.unique_key,
        queue_name=new_job.queue_name,
        trace_context=dict(request.trace_context) if request.trace_context else None,
    )


def _whole(name: str, given: float | None, default: float) -> int:
    """Return an option as the integer that the wire format asks for."""
    value = default if given is None else given
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not is_whole or abs(value) > _LARGEST_OPTION:
        raise InvalidJob(f"{name} must be a whole number of at most 18 digits, not {value!r}.")
    return int(value)


def _due(defer_until: datetime | None, defer_by: Deferral | None) -> str:
    """Return when a job is due in the words of the enqueue script."""
    if defer_until is not None:
        if not isinstance(defer_until, datetime):
            raise InvalidJob(
                f"_defer_until is a datetime with a time zone, not {type(defer_until).__name__}. Write "
                "datetime.now(UTC) + timedelta(hours=1), or use _defer_by for a time from now."
            )
        moment = defer_until if defer_until.tzinfo else defer_until.replace(tzinfo=UTC)
        return f"@{int(moment.timestamp() * 1000)}"
    if defer_by is None:
        return ""
    try:
        seconds = defer_by.total_seconds() if isinstance(defer_by, timedelta) else float(defer_by)
    except (TypeError, ValueError):
        raise InvalidJob(
            f"_defer_by is a timedelta or a number of seconds, not {type(defer_by).__name__}. Write "
            "_defer_by=timedelta(minutes=5), or use _defer_until for a moment."
        ) from None
    if not seconds <= LONGEST_DELAY_SECONDS:
        raise InvalidJob(f"_defer_by must be at most a century, not {defer_by!r}.")
    return f"+{int(seconds * 1000)}" if seconds > 0 else ""
