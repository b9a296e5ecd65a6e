"""Runs one job: calls its handler with a deadline and reports its result.

What a failure, a timeout or a missing handler means for the job is decided in ``failures.py``. ``consumer.py`` sends
what is reported here, and ``threads.py`` runs plain functions.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from rrq import telemetry
from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Outcome, OutcomeKind
from rrq.context import JobContext
from rrq.engine.attempts import Attempt, AttemptBook, choose_result_ttl_seconds, choose_timeout_seconds
from rrq.engine.consumer import Consumer
from rrq.engine.failures import Failures, describe_job
from rrq.engine.host import Host
from rrq.engine.registration import Registration
from rrq.engine.threads import HandlerThreads, wait_for_thread
from rrq.exc import LeaseLost, RetryJob
from rrq.job import Job
from rrq.jobs.codec import encode_result, storable_text
from rrq.middleware import CallNext, run_through
from rrq.registry import Handler
from rrq.tracing import JobTraces

logger = logging.getLogger(__name__)

#: A handler that was cancelled may clean up for this long; then its job ends without it.
IGNORED_AFTER_SECONDS = 10.0
# The share of a lease after which a claimed job may have been given to another worker: two heartbeats are at most 0.4 of
# a lease apart. Answers to heartbeats are no proof: a process that was stopped reads old ones first.
_SAFE_SHARE_OF_LEASE = 0.6


class Executor:
    """Runs the jobs of one worker."""

    def __init__(
        self, worker: Host, book: AttemptBook, registration: Registration, consumer: Consumer
    ) -> None:
        self._worker = worker
        self._book = book
        self._registration = registration
        self._consumer = consumer
        self._deadlines = Deadlines(on_ignored=self._end_without_task)
        self._threads = HandlerThreads(worker.settings.sync_handler_threads)
        self.traces = JobTraces()
        self.failures = Failures(worker, book, self.report, self.traces)
        #: Tasks that ignored their cancellation, and whose jobs were ended without them.
        self.ignored_tasks: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Future[None] | None = None

    async def execute(self, job: Job, queue_name: str) -> None:
        """Run one job to its end; returns when the outcome is stored. Absorbs a cancellation."""
        worker, attempt = self._worker, self._book.find(job)
        if telemetry.active.enabled:
            self.traces.start(job, queue_name, worker.worker_id)
        try:
            longest_seconds = _SAFE_SHARE_OF_LEASE * worker.settings.worker_lease_seconds
            if (
                attempt is None
                or monotonic() - attempt.claimed_at < longest_seconds
                or await self._is_still_owned(attempt)
            ):
                await self._run(job, queue_name, attempt)
        except asyncio.CancelledError:
            await self.failures.end_cancelled(job, queue_name, attempt)
        # Foreign code may run in overridden methods, and a job must end in some way.
        except Exception as error:
            logger.exception("engine failed while running a job", extra=describe_job(job, worker))
            await worker._handle_fatal_job_error(job, queue_name, f"Critical worker error: {error}")
        finally:
            if self.traces:
                self.traces.leave(job)

    async def _run(self, job: Job, queue_name: str, attempt: Attempt | None) -> None:
        worker = self._worker
        handler = worker.job_registry.get_handler(job.function_name)
        if handler is None:
            await self.failures.end_unknown_function(job, queue_name)
            return
        timeout_seconds = choose_timeout_seconds(job, worker.settings)
        if worker._hooks.hooks or worker.settings.event_handlers:
            await worker._hooks.trigger_event("on_job_started", job, worker.worker_id)
        try:
            result = await self._call(handler, job, queue_name, timeout_seconds, attempt)
        except RetryJob as request:
            await worker._process_retry_job(job, request, queue_name)
        except TimeoutError as error:
            message = str(error) or f"Job timed out after {timeout_seconds}s."
            await worker._handle_job_timeout(job, queue_name, message)
        except asyncio.CancelledError as cancellation:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Raised by the handler itself: re-queueing it would go on for ever.
            failure = RuntimeError(f"Handler raised CancelledError by itself: {cancellation}")
            await worker._process_other_failure(job, failure, queue_name)
        except SystemExit as exit_call:
            # A handler that calls sys.exit() must not end the other jobs of its process.
            failure = RuntimeError(f"Handler called sys.exit({exit_call.code!r})")
            await worker._process_other_failure(job, failure, queue_name)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is its outcome, and is logged there
            await worker._process_other_failure(job, error, queue_name)
        else:
            await worker._handle_job_success(job, result)

    async def succeed(self, job: Job, result: Any) -> None:
        """Report what the handler returned."""
        hooks, settings = self._worker._hooks, self._worker.settings
        ttl_seconds = choose_result_ttl_seconds(job, settings)
        await self.report(job, OutcomeKind.DONE, encode_result(result), ttl_seconds)
        if hooks.hooks or settings.event_handlers:
            await hooks.trigger_event("on_job_completed", job, result)

    async def report(
        self, job: Job, kind: OutcomeKind, text: str = "", number: float = 0, key: str = "", trace: str = ""
    ) -> None:
        """Have the outcome of an attempt stored, unless it was reported already; returns when it is."""
        attempt = self._book.find(job)
        token = error_type = ""
        if attempt is not None:
            if attempt.is_reported:
                return
            attempt.is_reported = True
            attempt.ended_at = monotonic()
            token, error_type = attempt.token, attempt.error_type
        if self.traces:
            self.traces.end(job, kind, text)
        outcome = Outcome(
            job.id, token, kind, storable_text(text), number, key, trace and storable_text(trace), error_type
        )
        verdict = self._consumer.submit(attempt, outcome)
        hooks = self._worker._hooks
        if hooks.exporters or self._worker.settings.metrics_exporter:
            labels = {"function": job.function_name, "outcome": kind.value}
            await hooks.export_metric("counter", "rrq_jobs", 1, labels)
        await verdict

    async def _call(
        self, handler: Handler, job: Job, queue_name: str, timeout_seconds: float, attempt: Attempt | None
    ) -> Any:
        """Return what the handler returns or raise what it raises; TimeoutError when time is up."""
        task = asyncio.current_task()
        if timeout_seconds <= 0 or task is None:
            raise TimeoutError
        worker, deadlines, token = self._worker, self._deadlines, ""
        context = JobContext(self._build_context(job, queue_name))
        if attempt is not None:
            attempt.started_at, token = monotonic(), attempt.token
        context.job, context.backend = job, (worker.job_store, token, task.get_loop())
        is_async, is_timeout = worker.job_registry.is_async(job.function_name), False
        deadlines.watch(task, timeout_seconds)
        try:
            if worker.settings.middleware:
                call: CallNext = functools.partial(handler, context, *job.job_args, **job.job_kwargs)
                if not is_async:
                    call = functools.partial(self._call_in_thread, call, attempt, task)
                return await run_through(worker.settings.middleware, context, call)
            if is_async:
                return await handler(context, *job.job_args, **job.job_kwargs)
            plain = functools.partial(handler, context, *job.job_args, **job.job_kwargs)
            return await self._call_in_thread(plain, attempt, task)
        except asyncio.CancelledError:
            is_timeout = deadlines.forget(task)
            if is_timeout:
                raise TimeoutError from None
            raise
        finally:
            if not is_timeout:
                deadlines.forget(task)

    async def _call_in_thread(
        self, call: Callable[[], Any], attempt: Attempt | None, task: asyncio.Task[Any]
    ) -> Any:
        """Run a plain function; ``task`` is the one that runs its job, around which there may be others."""
        thread = self._threads.start(call)
        try:
            return await wait_for_thread(thread)
        except asyncio.CancelledError:
            is_drained = task.cancelling() and not self._deadlines.has_expired(task)
            if not (is_drained and thread.running() and attempt is not None and attempt.may_go_back):
                raise
            # Handed back now, the job would run elsewhere while it still runs here. The supervisor kills this
            # process soon, and then the job is due again.
            self._deadlines.forget(task)
            return await wait_for_thread(thread)

    def _build_context(self, job: Job, queue_name: str) -> dict[str, Any]:
        return {
            "job_id": job.id,
            "job_try": job.current_retries + 1,
            "enqueue_time": job.enqueue_time,
            "settings": self._worker.settings,
            "worker_id": self._worker.worker_id,
            "queue_name": queue_name,
            "rrq_client": self._worker.client,
        }

    async def _is_still_owned(self, attempt: Attempt) -> bool:
        """Ask Redis about a job that was claimed long ago, by a process that stood still for instance."""
        self._registration.needs_reconcile = True
        try:
            await self._registration.reconcile_if_needed()
        except (*REDIS_ERRORS, LeaseLost):
            self._consumer.hand_back(
                attempt, "The lease may have ended before the job was started. Re-queued."
            )
            return False
        return not attempt.is_lost

    def _end_without_task(self, task: asyncio.Task[Any]) -> None:
        """A handler ignored its timeout: end its job without it. Its slot stays taken."""
        for attempt in self._book.find_by_task(task):
            self.ignored_tasks.add(task)
            task.add_done_callback(self.ignored_tasks.discard)
            message = "Job ran past its timeout and its handler ignored the cancellation."
            self._ending = asyncio.ensure_future(
                self._worker._handle_job_timeout(attempt.job, attempt.queue_name, message)
            )


class Deadlines:
    """Cancels tasks that run too long, with one timer for all of them.

    A timer per job costs more than running a no-op. Here a job costs a dictionary entry, and the
    timer is touched only by a deadline that comes before the one it waits for.
    """

    def __init__(self, on_ignored: Callable[[asyncio.Task[Any]], None]) -> None:
        self._at: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf
        #: Called once for a task that still runs some time after it was cancelled.
        self._on_ignored = on_ignored

    def watch(self, task: asyncio.Task[Any], timeout_seconds: float) -> None:
        """Cancel ``task`` unless it is forgotten within the time."""
        loop = task.get_loop()
        at = self._at[task] = loop.time() + timeout_seconds
        if at < self._next_look:
            self._wait_until(loop, at)

    def has_expired(self, task: asyncio.Task[Any]) -> bool:
        """Whether the task was cancelled by this watch and not forgotten since."""
        return task in self._expired

    def forget(self, task: asyncio.Task[Any]) -> bool:
        """Stop watching; True when only this watch cancelled the task.

        The cancellation is taken back, as ``asyncio.timeout`` does, so that the task can go on.
        """
        self._at.pop(task, None)
        if not self._expired or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def _wait_until(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look, loop)
        self._next_look = at

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next_look = None, inf
        now = loop.time()
        for task in [task for task, at in self._at.items() if at <= now]:
            if task in self._expired:
                del self._at[task]
                self._on_ignored(task)
            else:
                self._at[task] = now + IGNORED_AFTER_SECONDS
                self._expired.add(task)
                task.cancel()
        if self._at:
            self._wait_until(loop, min(self._at.values()))
