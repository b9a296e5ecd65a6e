"""Datadog: a span per enqueue and per attempt, all of one job in one trace.

The tags are the attributes of ``otel.py``. Jobs carry the headers of ``DD_TRACE_PROPAGATION_STYLE``,
among which the W3C ones are by default, so that other tracers can join.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rrq.exc import RetryJob
from rrq.job import Job
from rrq.telemetry import (
    PREVIOUS_ATTEMPT,
    EnqueueSpan,
    JobSpan,
    Telemetry,
    configure,
    queue_wait_seconds,
)

try:
    from ddtrace.propagation.http import HTTPPropagator
    from ddtrace.trace import tracer
except ImportError as error:
    raise ImportError(
        "Tracing with Datadog needs the package ddtrace. Run: pip install ddtrace",
        name="ddtrace",
    ) from error

__all__ = ["DdtraceTelemetry", "enable"]

# Datadog's word for "whatever the sampler says, do not keep this trace".
_USER_REJECT = -1


def enable(service: str | None = None) -> "DdtraceTelemetry":
    """Trace enqueues and attempts in this process; ``service`` replaces the one that DD_SERVICE names."""
    telemetry = DdtraceTelemetry(service)
    configure(telemetry)
    return telemetry


class DdtraceTelemetry(Telemetry):
    """Makes Datadog spans."""

    enabled = True

    def __init__(self, service: str | None = None) -> None:
        self._service = service

    def enqueue_span(self, function_name: str) -> EnqueueSpan:
        parent = tracer.context_provider.active()
        span = self._start("rrq.enqueue", function_name or "batch", parent)
        span.set_tag("span.kind", "producer")
        span.set_tag("messaging.operation.type", "send")
        return _DatadogEnqueueSpan(span, parent)

    def job_span(self, job: Job, queue_name: str, worker_id: str) -> JobSpan:
        headers = job.trace_context or {}
        span = self._start("rrq.process", job.function_name, HTTPPropagator.extract(headers))
        for name, value in (
            ("span.kind", "consumer"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", queue_name),
            ("messaging.message.id", job.id),
            ("messaging.client.id", worker_id),
            ("rrq.job.function", job.function_name),
            ("rrq.job.attempt", job.current_retries + 1),
            ("rrq.job.queue_wait_seconds", queue_wait_seconds(job, datetime.now(UTC))),
        ):
            span.set_tag(name, value)
        if PREVIOUS_ATTEMPT in headers:
            previous = HTTPPropagator.extract({"traceparent": headers[PREVIOUS_ATTEMPT]})
            if previous.trace_id and previous.span_id:
                span.link_span(previous)
        return _DatadogJobSpan(span, headers)

    def _start(self, name: str, resource: str, parent: Any) -> Any:
        span = tracer.start_span(
            name,
            child_of=parent,
            service=self._service,
            resource=resource,
            span_type="worker",
            activate=True,
        )
        span.set_tag("messaging.system", "rrq")
        return span


class _DatadogEnqueueSpan(EnqueueSpan):
    def __init__(self, span: Any, parent: Any) -> None:
        self._span = span
        self._parent = parent

    def headers(self) -> dict[str, str] | None:
        return _inject(self._span)

    def end(self, jobs: Sequence[Job], error: BaseException | None = None) -> None:
        if len(jobs) == 1:
            self._span.set_tag("messaging.message.id", jobs[0].id)
        elif error is None:
            self._span.set_tag("messaging.batch.message_count", len(jobs))
        if error is not None:
            self._span.set_exc_info(type(error), error, error.__traceback__)
        self._leave()

    def discard(self) -> None:
        # It has to be finished even so: the tracer keeps a trace until its last span is.
        self._span.context.sampling_priority = _USER_REJECT
        self._leave()

    def _leave(self) -> None:
        self._span.finish()
        tracer.context_provider.activate(self._parent)


class _DatadogJobSpan(JobSpan):
    def __init__(self, span: Any, headers: dict[str, str]) -> None:
        self._span = span
        self._headers = headers
        self._has_ended = False

    def headers_for_retry(self) -> dict[str, str] | None:
        own = _inject(self._span)
        if "traceparent" not in own:
            return None
        start = self._headers if "traceparent" in self._headers else self._headers | own
        return start | {PREVIOUS_ATTEMPT: own["traceparent"]}

    def end(self, outcome: str, error: BaseException | None = None, message: str = "") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._span.set_tag("rrq.job.outcome", outcome)
        is_wish = outcome == "retry" and isinstance(error, RetryJob)
        if outcome in ("retry", "dead") and not is_wish:
            self._span.error = 1
            if error is not None:
                self._span.set_exc_info(type(error), error, error.__traceback__)
            # After the exception, whose own text may be empty, as that of a timeout is.
            self._span.set_tag("error.message", message)
        self._span.finish()

    def leave(self) -> None:
        tracer.context_provider.activate(None)


def _inject(span: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    HTTPPropagator.inject(span.context, headers)
    return headers
