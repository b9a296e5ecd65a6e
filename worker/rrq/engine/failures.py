"""What it means for a job when an attempt does not return a result: retry, dead letter, cancellation or hand-back.

Each of these ends is a method of the worker that applications may override, and comes down to one report. The report
itself and the result of a job that succeeds are left to ``executor.py``.
"""

import logging
import random
import traceback
from collections.abc import Awaitable, Callable
from math import isnan
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import OutcomeKind
from rrq.engine.attempts import Attempt, AttemptBook, choose_result_ttl_seconds
from rrq.engine.host import Host
from rrq.exc import RetryJob
from rrq.job import Job
from rrq.runtime.backoff import LONGEST_DELAY_SECONDS, retry_delay_ms
from rrq.runtime.error_types import name_error_type
from rrq.tracing import JobTraces

logger = logging.getLogger(__name__)

INTERRUPTED = "Job execution interrupted by worker shutdown. Re-queued."
# Jobs that were put off together do not come back together.
_PUT_OFF_JITTER = (0.75, 1.25)
_LONGEST_FUNCTION_NAME = 200
_MOST_MISSING_FUNCTIONS = 100
# Enough to find the line that failed; a deep recursion must not fill Redis.
_LONGEST_TRACEBACK = 8_000


def describe_job(job: Job, worker: Host) -> dict[str, Any]:
    """Return the fields that a log line about a job has."""
    return {
        "job_id": job.id,
        "function": job.function_name,
        "queue": job.queue_name or worker.settings.default_queue_name,
        "worker_id": worker.worker_id,
        "attempt": job.current_retries + 1,
    }


class Failures:
    """Ends the attempts of one worker that have no result."""

    def __init__(
        self, worker: Host, book: AttemptBook, report: Callable[..., Awaitable[None]], traces: JobTraces
    ) -> None:
        self._worker = worker
        self._book = book
        self._report = report
        self._traces = traces
        #: Functions of which this worker has put off jobs, because it has no handler for them.
        self.missing_functions: set[str] = set()

    async def retry_on_request(self, job: Job, request: RetryJob, queue_name: str) -> None:
        """The handler raised RetryJob."""
        logger.info("job asked to be retried", extra=describe_job(job, self._worker))
        await self._retry_or_bury(job, request, queue_name, _requested_delay_ms(request))

    async def retry_after_error(self, job: Job, error: Exception, queue_name: str) -> None:
        """The handler raised anything else."""
        logger.error("job failed", exc_info=error, extra=describe_job(job, self._worker))
        await self._retry_or_bury(job, error, queue_name, None)

    async def _retry_or_bury(self, job: Job, error: Exception, queue_name: str, delay_ms: int | None) -> None:
        worker, attempts = self._worker, job.current_retries + 1
        trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
        self._note_error_type(job, name_error_type(error))
        if attempts >= job.max_retries:
            await worker._move_to_dlq(job, queue_name, str(error), trace)
            return
        if delay_ms is None:
            delay_ms = worker._calculate_backoff_ms(job.model_copy(update={"current_retries": attempts}))
        queue_key = worker.job_store.keys.queue_key(job.queue_name or worker.settings.default_queue_name)
        if self._traces:
            await self._leave_trace(job)
        await self._report(job, OutcomeKind.RETRY, str(error), delay_ms, queue_key, trace)
        if worker._hooks.has_hooks:
            await worker._hooks.trigger_event("on_job_retrying", job, attempts)

    def calculate_backoff_ms(self, job: Job) -> int:
        """Return the wait before retry number ``job.current_retries``."""
        settings = self._worker.settings
        return retry_delay_ms(
            job.current_retries, settings.base_retry_delay_seconds, settings.max_retry_delay_seconds
        )

    async def bury_after_timeout(self, job: Job, queue_name: str, error_message: str) -> None:
        logger.warning("job timed out", extra=describe_job(job, self._worker))
        self._note_error_type(job, TimeoutError.__name__)
        await self._worker._move_to_dlq(job, queue_name, error_message)

    async def bury_after_engine_error(self, job: Job, queue_name: str, error_message: str) -> None:
        logger.error("job cannot be run", extra=describe_job(job, self._worker) | {"error": error_message})
        self._note_error_type(job, "")
        await self._worker._move_to_dlq(job, queue_name, error_message)

    async def bury(self, job: Job, queue_name: str, error_message: str, trace: str = "") -> None:
        """Count the attempt and put the job on the dead letter list."""
        worker, settings = self._worker, self._worker.settings
        logger.warning(
            "job dead-lettered",
            extra=describe_job(job, worker) | {"queue": queue_name, "error": error_message},
        )
        if self._traces:
            # For the next attempt, if a person requeues the dead letter.
            await self._leave_trace(job)
        ttl_seconds = settings.default_dlq_result_ttl_seconds
        dlq_key = worker.job_store.keys.dlq_key(settings.default_dlq_name)
        await self._report(job, OutcomeKind.DEAD, error_message, ttl_seconds, dlq_key, trace)
        if worker._hooks.has_hooks:
            await worker._hooks.trigger_event("on_job_failed", job, RuntimeError(error_message))

    def _note_error_type(self, job: Job, error_type: str) -> None:
        # With the attempt and not as an argument: the methods that report an error are overridden as RRQ 0.7 has them.
        attempt = self._book.find(job)
        if attempt is not None:
            attempt.error_type = error_type

    async def _leave_trace(self, job: Job) -> None:
        """Store the span of this attempt for the next one; if that fails, the trace has one link less."""
        attempt, trace_context = self._book.find(job), self._traces.context_for_retry(job)
        if attempt is None or not trace_context:
            return
        try:
            await self._worker.job_store.leave_trace(job.id, attempt.token, trace_context)
        except REDIS_ERRORS as error:
            logger.debug("trace not left for the next attempt", extra={"error": str(error)})

    async def end_cancelled(self, job: Job, queue_name: str, attempt: Attempt | None) -> None:
        """The task of the job was cancelled: by a drain, by a lost lease or because the job is to be cancelled."""
        if attempt is not None and attempt.is_lost:
            # Another worker has the job by now; there is nothing to report.
            self._book.drop(attempt)
        elif attempt is not None and attempt.is_reported:
            # Cancelled while the outcome was on its way; it still arrives.
            return
        elif attempt is not None and attempt.is_cancel_requested:
            ttl_seconds = choose_result_ttl_seconds(job, self._worker.settings)
            await self._report(job, OutcomeKind.CANCELLED, number=ttl_seconds)
        else:
            await self._worker._handle_job_cancellation_on_shutdown(job, queue_name)

    async def hand_back(self, job: Job, queue_name: str) -> None:
        """Return the job to its queue at its original due time; the attempt does not count."""
        logger.info("job handed back", extra=describe_job(job, self._worker) | {"queue": queue_name})
        run_at = job.next_scheduled_run_time or job.enqueue_time
        queue_key = self._worker.job_store.keys.queue_key(queue_name)
        await self._report(job, OutcomeKind.BACK, INTERRUPTED, run_at.timestamp() * 1000, queue_key)

    async def end_unknown_function(self, job: Job, queue_name: str) -> None:
        """Put the job off, for a worker that has its function; dead-letter it when none came in time."""
        worker, patience_seconds = self._worker, self._worker.settings.unknown_function_patience_seconds
        # A job that was not claimed is no attempt of this worker, so it cannot be put off.
        is_claimed = self._book.find(job) is not None
        if not is_claimed or await self._read_wait_seconds(job) >= patience_seconds:
            message = f"No handler registered for function '{job.function_name}'"
            await worker._handle_fatal_job_error(job, queue_name, message)
            return
        # It comes from a producer, may be of any length, and is written by every worker that lacks it.
        name = job.function_name[:_LONGEST_FUNCTION_NAME]
        self._note_missing_function(job, name)
        text = (
            f"No handler registered for function '{name}' on worker {worker.worker_id}. Put off until a worker that has "
            "it takes the job."
        )
        await self._report(job, OutcomeKind.UNKNOWN_FUNCTION, text, random.uniform(*_PUT_OFF_JITTER))

    async def _read_wait_seconds(self, job: Job) -> float:
        """Return for how many seconds the job has met workers without its function."""
        try:
            return await self._worker.job_store.read_wait_for_function(job.id)
        except REDIS_ERRORS as error:
            # Put off once more than need be, which costs less than a job that is dead-lettered too early.
            logger.warning(
                "cannot read how long the job has waited for its function",
                extra=describe_job(job, self._worker) | {"error": str(error)},
            )
            return 0.0

    def _note_missing_function(self, job: Job, name: str) -> None:
        noted = self.missing_functions
        is_first = name not in noted and len(noted) < _MOST_MISSING_FUNCTIONS
        if is_first:
            noted.add(name)
        logger.log(
            logging.WARNING if is_first else logging.DEBUG,
            "job put off, this worker has no handler for its function",
            extra=describe_job(job, self._worker),
        )


def _requested_delay_ms(request: RetryJob) -> int | None:
    """Return the wait a handler asked for; None, the usual wait, when it is no usable number."""
    if request.defer_seconds is None or isnan(request.defer_seconds):
        return None
    return int(1000 * min(max(0.0, request.defer_seconds), LONGEST_DELAY_SECONDS))
