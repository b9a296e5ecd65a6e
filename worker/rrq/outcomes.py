"""What the end of an attempt means for its job.

Each way to end is a method of its own that applications may override. They all come down to one
report, which is stored only if the attempt still owns the job; sending it is left to
``reporter.py``.
"""

import asyncio
import functools
import inspect
import logging
import random
import traceback
from math import isnan
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrq import telemetry
from rrq.attempts import Attempt
from rrq.backoff import LONGEST_DELAY_SECONDS, retry_delay_ms
from rrq.connection import REDIS_ERRORS
from rrq.context import JobContext
from rrq.encoding import encode_result, storable_text
from rrq.error_types import name_error_type
from rrq.exc import FunctionsMissing, RetryJob
from rrq.execution import Deadlines, HandlerThreads
from rrq.hooks import HookManager
from rrq.job import Job
from rrq.messages import Outcome, OutcomeKind
from rrq.middleware import CallNext, run_through
from rrq.ownership import Ownership, timeout_of
from rrq.registry import Handler, JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.tracing import JobTraces

if TYPE_CHECKING:
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

# Jobs that came together do not come back together.
_PUT_OFF_JITTER = (0.75, 1.25)
_LONGEST_NAME_TOLD = 200
_MOST_MISSING_FUNCTIONS = 100
INTERRUPTED = "Job execution interrupted by worker shutdown. Re-queued."
# Enough to find the line that failed; a deep recursion must not fill Redis.
_LONGEST_TRACEBACK = 8_000


class JobOutcomes:
    """The part of a worker that runs one job and reports how it ended."""

    settings: RRQSettings
    job_registry: JobRegistry
    job_store: JobStore
    worker_id: str
    client: Any
    _ownership: Ownership
    _hooks: HookManager
    _deadlines: Deadlines
    _threads: HandlerThreads
    _slot_freed: asyncio.Event
    _traces: JobTraces
    #: Functions of which this worker has put off jobs, because it has no handler for them.
    _missing_functions: set[str]

    async def _execute_job(self, job: Job, queue_name: str) -> None:
        """Run one job to its end; returns when the outcome is stored. Absorbs a cancellation."""
        attempt = self._ownership.book.find(job)
        if telemetry.active.enabled:
            self._traces.start(job, queue_name, self.worker_id)
        try:
            # A process that stood still since the claim, stopped by a signal say, must not begin what others have.
            if (
                attempt is None
                or not self._ownership.may_have_lost(attempt)
                or await self._ownership.may_start(attempt)
            ):
                await self._run_and_report(job, queue_name)
        except asyncio.CancelledError:
            await self._end_cancelled(job, queue_name, attempt)
        # Foreign code may run in overridden methods, and a job must end in some way.
        except Exception as error:
            logger.exception("engine failed while running a job", extra=self._fields(job))
            await self._handle_fatal_job_error(job, queue_name, f"Critical worker error: {error}")
        finally:
            if self._traces:
                self._traces.leave(job)

    async def _run_and_report(self, job: Job, queue_name: str) -> None:
        handler = self.job_registry.get_handler(job.function_name)
        if handler is None:
            await self._handle_missing_handler(job, queue_name)
            return
        timeout_seconds = timeout_of(job, self.settings)
        if self._hooks.has_hooks:
            await self._hooks.trigger_event("on_job_started", job, self.worker_id)
        try:
            result = await self._call(handler, job, queue_name, timeout_seconds)
        except RetryJob as request:
            await self._process_retry_job(job, request, queue_name)
        except TimeoutError as error:
            message = str(error) or f"Job timed out after {timeout_seconds}s."
            await self._handle_job_timeout(job, queue_name, message)
        except asyncio.CancelledError as cancellation:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Raised by the handler itself: re-queueing it would go on for ever.
            failure = RuntimeError(f"Handler raised CancelledError by itself: {cancellation}")
            await self._process_other_failure(job, failure, queue_name)
        except SystemExit as exit_call:
            # A handler that calls sys.exit() must not take its neighbours along.
            failure = RuntimeError(f"Handler called sys.exit({exit_call.code!r})")
            await self._process_other_failure(job, failure, queue_name)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is its outcome, and is logged there
            await self._process_other_failure(job, error, queue_name)
        else:
            await self._handle_job_success(job, result)

    async def _handle_missing_handler(self, job: Job, queue_name: str) -> None:
        """Give the job back, for a worker that has its function; dead-letter it when none came in time."""
        patience_seconds = self.settings.unknown_function_patience_seconds
        # A job that was not claimed is no attempt of this worker, so it cannot be given back.
        is_claimed = self._ownership.book.find(job) is not None
        if not is_claimed or await self._waited_for_function(job) >= patience_seconds:
            message = f"No handler registered for function '{job.function_name}'"
            await self._handle_fatal_job_error(job, queue_name, message)
            return
        # It comes from a producer, may be of any length, and is written at every meeting.
        name = job.function_name[:_LONGEST_NAME_TOLD]
        self._note_missing_function(job, name)
        text = (
            f"No handler registered for function '{name}' on worker {self.worker_id}. Put off until a worker that has "
            "it takes the job."
        )
        await self._report(job, OutcomeKind.UNKNOWN_FUNCTION, text, random.uniform(*_PUT_OFF_JITTER))

    def _check_no_function_was_missing(self) -> None:
        """Raise FunctionsMissing where a burst leaves jobs behind that it could not run: done is something else."""
        if self._missing_functions:
            names = ", ".join(map(repr, sorted(self._missing_functions)))
            raise FunctionsMissing(
                f"This burst ran all other jobs, but it has no handler for {names}. It put off the jobs of these "
                "functions. Register them, or correct the names where the jobs are enqueued, and run the burst again."
            )

    async def _waited_for_function(self, job: Job) -> float:
        """Return for how many seconds the job has met workers without its function."""
        try:
            return await self.job_store.read_wait_for_function(job.id)
        except REDIS_ERRORS as error:
            # Put off once more than need be, which costs less than a job that is dead-lettered too early.
            logger.warning(
                "cannot read how long the job has waited for its function",
                extra=self._fields(job) | {"error": str(error)},
            )
            return 0.0

    def _note_missing_function(self, job: Job, name: str) -> None:
        noted = self._missing_functions
        is_first = name not in noted and len(noted) < _MOST_MISSING_FUNCTIONS
        if is_first:
            noted.add(name)
        logger.log(
            logging.WARNING if is_first else logging.DEBUG,
            "job put off, this worker has no handler for its function",
            extra=self._fields(job),
        )

    async def _call(self, handler: Handler, job: Job, queue_name: str, timeout_seconds: float) -> Any:
        """Return what the handler returns or raise what it raises; TimeoutError when time is up."""
        task = asyncio.current_task()
        if timeout_seconds <= 0 or task is None:
            raise TimeoutError
        attempt = self._ownership.book.find(job)
        context = JobContext(self._build_context(job, queue_name))
        context.job, token = job, ""
        if attempt is not None:
            attempt.started_at, token = monotonic(), attempt.token
        context.way_back = (self.job_store, token, task.get_loop())
        deadlines, is_timeout = self._deadlines, False
        deadlines.watch(task, timeout_seconds)
        try:
            if self.settings.middleware:
                return await self._call_through_middleware(handler, context, job, task)
            if self.job_registry.is_async(job.function_name):
                return await handler(context, *job.job_args, **job.job_kwargs)
            return await self._call_in_thread(handler, context, job, task)
        except asyncio.CancelledError:
            is_timeout = deadlines.forget(task)
            if is_timeout:
                raise TimeoutError from None
            raise
        finally:
            if not is_timeout:
                deadlines.forget(task)

    async def _call_through_middleware(
        self, handler: Handler, context: JobContext, job: Job, task: asyncio.Task[Any]
    ) -> Any:
        call: CallNext
        if self.job_registry.is_async(job.function_name):
            call = functools.partial(handler, context, *job.job_args, **job.job_kwargs)
        else:
            call = functools.partial(self._call_in_thread, handler, context, job, task)
        return await run_through(self.settings.middleware, context, call)

    async def _call_in_thread(
        self, handler: Handler, context: JobContext, job: Job, task: asyncio.Task[Any]
    ) -> Any:
        """Run a plain function; ``task`` is the one that runs its job, around which there may be others."""
        thread = self._threads.start(functools.partial(handler, context, *job.job_args, **job.job_kwargs))
        try:
            return await self._result_of(thread)
        except asyncio.CancelledError:
            attempt = self._ownership.book.find(job)
            is_drained = task.cancelling() and not self._deadlines.has_expired(task)
            if not (is_drained and thread.running() and attempt is not None and attempt.may_go_back):
                raise
            # Handed back now, the job would run elsewhere while it still runs here. Whoever drains
            # this worker loses patience before long, and the job is due when the process is dead.
            self._deadlines.forget(task)
            return await self._result_of(thread)

    async def _result_of(self, thread: "Future[Any]") -> Any:
        result = await asyncio.wrap_future(thread)
        return await result if inspect.isawaitable(result) else result

    def _build_context(self, job: Job, queue_name: str) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "job_try": job.current_retries + 1,
            "enqueue_time": job.enqueue_time,
            "settings": self.settings,
            "worker_id": self.worker_id,
            "queue_name": queue_name,
            "rrq_client": self.client,
        }

    async def _handle_job_success(self, job: Job, result: Any) -> None:
        await self._report(job, OutcomeKind.DONE, encode_result(result), self._result_ttl_seconds(job))
        if self._hooks.has_hooks:
            await self._hooks.trigger_event("on_job_completed", job, result)

    async def _process_retry_job(self, job: Job, exc: RetryJob, queue_name: str) -> None:
        logger.info("job asked to be retried", extra=self._fields(job))
        await self._retry_or_bury(job, exc, queue_name, _requested_delay_ms(exc))

    async def _process_other_failure(self, job: Job, exc: Exception, queue_name: str) -> None:
        logger.error("job failed", exc_info=exc, extra=self._fields(job))
        await self._retry_or_bury(job, exc, queue_name, None)

    async def _retry_or_bury(self, job: Job, error: Exception, queue_name: str, delay_ms: int | None) -> None:
        attempts = job.current_retries + 1
        trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
        self._note_error_type(job, name_error_type(error))
        if attempts >= job.max_retries:
            await self._move_to_dlq(job, queue_name, str(error), trace)
            return
        if delay_ms is None:
            delay_ms = self._calculate_backoff_ms(job.model_copy(update={"current_retries": attempts}))
        queue_key = self.job_store.keys.queue_key(job.queue_name or self.settings.default_queue_name)
        if self._traces:
            await self._leave_trace(job)
        await self._report(job, OutcomeKind.RETRY, str(error), delay_ms, queue_key, trace)
        if self._hooks.has_hooks:
            await self._hooks.trigger_event("on_job_retrying", job, attempts)

    async def _leave_trace(self, job: Job) -> None:
        """Let the next attempt know the span of this one; without, it only has one link less."""
        attempt, trace_context = self._ownership.book.find(job), self._traces.context_for_retry(job)
        if attempt is None or not trace_context:
            return
        try:
            await self.job_store.leave_trace(job.id, attempt.token, trace_context)
        except REDIS_ERRORS as error:
            logger.debug("trace not left for the next attempt", extra={"error": str(error)})

    async def _handle_job_timeout(self, job: Job, queue_name: str, error_message: str) -> None:
        logger.warning("job timed out", extra=self._fields(job))
        self._note_error_type(job, TimeoutError.__name__)
        await self._move_to_dlq(job, queue_name, error_message)

    async def _handle_fatal_job_error(self, job: Job, queue_name: str, error_message: str) -> None:
        logger.error("job cannot be run", extra=self._fields(job) | {"error": error_message})
        self._note_error_type(job, "")
        await self._move_to_dlq(job, queue_name, error_message)

    def _note_error_type(self, job: Job, error_type: str) -> None:
        # With the attempt and not as an argument: the methods that report an error are overridden as RRQ 0.7 has them.
        attempt = self._ownership.book.find(job)
        if attempt is not None:
            attempt.error_type = error_type

    async def _move_to_dlq(self, job: Job, queue_name: str, error_message: str, trace: str = "") -> None:
        """Count the attempt and put the job on the dead letter list."""
        logger.warning(
            "job dead-lettered", extra=self._fields(job) | {"queue": queue_name, "error": error_message}
        )
        if self._traces:
            # For the attempt that follows if somebody has the dead letter run again.
            await self._leave_trace(job)
        await self._report(
            job,
            OutcomeKind.DEAD,
            error_message,
            self.settings.default_dlq_result_ttl_seconds,
            self.job_store.keys.dlq_key(self.settings.default_dlq_name),
            trace,
        )
        if self._hooks.has_hooks:
            await self._hooks.trigger_event("on_job_failed", job, RuntimeError(error_message))

    async def _handle_job_cancellation_on_shutdown(self, job: Job, queue_name: str) -> None:
        """Give the job back at its original due time; the attempt does not count."""
        logger.info("job handed back", extra=self._fields(job) | {"queue": queue_name})
        run_at = job.next_scheduled_run_time or job.enqueue_time
        due_ms = run_at.timestamp() * 1000
        queue_key = self.job_store.keys.queue_key(queue_name)
        await self._report(job, OutcomeKind.BACK, INTERRUPTED, due_ms, queue_key)

    async def _end_cancelled(self, job: Job, queue_name: str, attempt: Attempt | None) -> None:
        if attempt is None:
            await self._handle_job_cancellation_on_shutdown(job, queue_name)
        elif attempt.is_lost:
            # Somebody else has the job by now; there is nothing to report.
            self._ownership.book.drop(attempt)
        elif attempt.is_reported:
            # Cancelled while the outcome was on its way; it still arrives.
            return
        elif attempt.is_told_to_cancel:
            await self._report(job, OutcomeKind.CANCELLED, number=self._result_ttl_seconds(job))
        else:
            await self._handle_job_cancellation_on_shutdown(job, queue_name)

    async def _report(
        self,
        job: Job,
        kind: OutcomeKind,
        text: str = "",
        number: float = 0,
        key: str = "",
        trace: str = "",
    ) -> None:
        attempt = self._ownership.book.find(job)
        token = error_type = ""
        if attempt is not None:
            if attempt.is_reported:
                return
            attempt.is_reported = True
            attempt.ended_at = monotonic()
            token, error_type = attempt.token, attempt.error_type
        if self._traces:
            self._traces.end(job, kind, text)
        outcome = Outcome(
            job.id, token, kind, storable_text(text), number, key, trace and storable_text(trace), error_type
        )
        verdict = self._ownership.reporter.submit(attempt, outcome)
        # The handler has ended: its slot may be claimed for while the outcome is on its way.
        self._slot_freed.set()
        if self._hooks.has_exporters:
            labels = {"function": job.function_name, "outcome": kind.value}
            await self._hooks.export_metric("counter", "rrq_jobs", 1, labels)
        await verdict

    def _result_ttl_seconds(self, job: Job) -> float:
        if job.result_ttl_seconds is not None:
            return job.result_ttl_seconds
        return self.settings.default_result_ttl_seconds

    def _calculate_backoff_ms(self, job: Job) -> int:
        """Return the wait before retry number ``job.current_retries``."""
        return retry_delay_ms(
            job.current_retries,
            self.settings.base_retry_delay_seconds,
            self.settings.max_retry_delay_seconds,
        )

    def _fields(self, job: Job) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "function": job.function_name,
            "queue": job.queue_name or self.settings.default_queue_name,
            "worker_id": self.worker_id,
            "attempt": job.current_retries + 1,
        }


def _requested_delay_ms(request: RetryJob) -> int | None:
    """Return the wait a handler asked for; None, the usual wait, when it is no usable number."""
    if request.defer_seconds is None or isnan(request.defer_seconds):
        return None
    return int(1000 * min(max(0.0, request.defer_seconds), LONGEST_DELAY_SECONDS))
