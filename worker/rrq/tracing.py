"""Calls the tracer of the process for client and worker; used only while one is configured.

A tracer is foreign code in the path of every job: an error that it raises is logged here and costs a span, never a
job.
"""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from rrq import telemetry
from rrq.broker.messages import OutcomeKind
from rrq.job import Job
from rrq.telemetry import EnqueueSpan, JobSpan

logger = logging.getLogger(__name__)

_FAILURES = (OutcomeKind.RETRY, OutcomeKind.DEAD)


class EnqueueTrace:
    """The span around one call that enqueues."""

    def __init__(self, function_name: str) -> None:
        span = _quietly(telemetry.active.enqueue_span, function_name)
        self._span: EnqueueSpan = span or EnqueueSpan()
        self.headers: dict[str, str] | None = _quietly(self._span.headers)
        #: What the call has queued; set by the caller.
        self.jobs: Sequence[Job] = ()
        self.is_discarded = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_discarded:
            _quietly(self._span.discard)
        else:
            _quietly(self._span.end, self.jobs, error)


class JobTraces(dict[int, JobSpan]):
    """The spans of the attempts that a worker runs, by the identity of their job object.

    A dictionary itself, so that it costs next to nothing to check whether there is any.
    """

    def start(self, job: Job, queue_name: str, worker_id: str) -> None:
        """Begin the span of an attempt and make it current in this task."""
        span = _quietly(telemetry.active.job_span, job, queue_name, worker_id)
        if span is not None:
            self[id(job)] = span

    def end(self, job: Job, kind: OutcomeKind, message: str) -> None:
        """Record how the attempt ended. The first end counts."""
        span = self.get(id(job))
        if span is not None:
            # An except clause some calls further up is handling what the handler raised; overridden methods on the
            # way need not pass it on.
            error = sys.exc_info()[1] if kind in _FAILURES else None
            _quietly(span.end, kind.value, error, message)

    def leave(self, job: Job) -> None:
        """End the span when the task of the attempt is over. An attempt without a report had lost its job."""
        span = self.pop(id(job), None)
        if span is not None:
            _quietly(span.end, "lost")
            _quietly(span.leave)

    def context_for_retry(self, job: Job) -> str:
        """Return the trace context, as JSON, that the next attempt should find; empty for none."""
        span = self.get(id(job))
        headers = _quietly(span.headers_for_retry) if span is not None else None
        return json.dumps(headers) if headers else ""


def _quietly(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    # Foreign code runs here; see the top.
    except Exception:
        logger.exception("telemetry failed", extra={"resource": getattr(call, "__qualname__", repr(call))})
        return None
