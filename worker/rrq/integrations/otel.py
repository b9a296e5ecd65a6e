"""OpenTelemetry: a span per enqueue and per attempt, all of one job in one trace.

Names follow the messaging conventions of OpenTelemetry where there is one. Arguments and results of
jobs are never recorded. Which spans are kept and where they go is the application's choice: it brings
the SDK and its exporter.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rrq.exc import RetryJob
from rrq.job import Job
from rrq.runtime.installation import install_command
from rrq.telemetry import (
    PREVIOUS_ATTEMPT,
    EnqueueSpan,
    JobSpan,
    Telemetry,
    configure,
    queue_wait_seconds,
)
from rrq.version import __version__

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"Tracing with OpenTelemetry needs the package opentelemetry-api. Run: {install_command('otel')}",
        name="opentelemetry",
    ) from error

__all__ = ["OtelTelemetry", "enable"]

_W3C_TRACE = TraceContextTextMapPropagator()
# Not the propagators of the application: a job may be run by a process that is set up differently.
_W3C = CompositePropagator([_W3C_TRACE, W3CBaggagePropagator()])
# The specification's word for an error without a type.
_OTHER_ERROR = "_OTHER"


def enable(
    service_name: str | None = None, *, tracer_provider: trace.TracerProvider | None = None
) -> "OtelTelemetry":
    """Trace enqueues and attempts in this process; returns the tracer, which is configured already.

    Spans go to ``tracer_provider``, by default to the one that is global when they are made. Usually
    its resource names the service; ``service_name`` is put on the spans themselves, to tell workers
    from an application that they share a process with.
    """
    telemetry = OtelTelemetry(service_name, tracer_provider)
    configure(telemetry)
    return telemetry


class OtelTelemetry(Telemetry):
    """Makes OpenTelemetry spans."""

    enabled = True

    def __init__(
        self, service_name: str | None = None, tracer_provider: trace.TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("rrq", __version__, tracer_provider)
        self._common: dict[str, Any] = {"messaging.system": "rrq"}
        if service_name:
            self._common["service.name"] = service_name

    def enqueue_span(self, function_name: str) -> EnqueueSpan:
        attributes = self._common | {
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
        }
        if function_name:
            attributes["rrq.job.function"] = function_name
        # Named after the function and not, as for plain messages, after the queue: a view in which
        # every line says "process default" helps no reader.
        name = f"enqueue {function_name}" if function_name else "enqueue batch"
        span = self._tracer.start_span(name, kind=trace.SpanKind.PRODUCER, attributes=attributes)
        return _OtelEnqueueSpan(span)

    def job_span(self, job: Job, queue_name: str, worker_id: str) -> JobSpan:
        headers = job.trace_context or {}
        attributes = self._common | {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue_name,
            "messaging.message.id": job.id,
            "messaging.client.id": worker_id,
            "rrq.job.function": job.function_name,
            "rrq.job.attempt": job.current_retries + 1,
            "rrq.job.queue_wait_seconds": queue_wait_seconds(job, datetime.now(UTC)),
        }
        # Not below what is current here, which is whatever the worker was started in.
        parent = _W3C.extract(headers, otel_context.Context())
        span = self._tracer.start_span(
            f"process {job.function_name}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=_link_to_previous(headers),
        )
        return _OtelJobSpan(span, parent, headers)


class _OtelEnqueueSpan(EnqueueSpan):
    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._token = otel_context.attach(self._context)

    def headers(self) -> dict[str, str] | None:
        return _inject(self._context) or None

    def end(self, jobs: Sequence[Job], error: BaseException | None = None) -> None:
        otel_context.detach(self._token)
        span = self._span
        if len(jobs) == 1:
            span.set_attribute("messaging.message.id", jobs[0].id)
        elif error is None:
            span.set_attribute("messaging.batch.message_count", len(jobs))
        queues = {job.queue_name for job in jobs if job.queue_name}
        if len(queues) == 1:
            span.set_attribute("messaging.destination.name", queues.pop())
        if error is not None:
            _set_error(span, error, str(error))
        span.end()

    def discard(self) -> None:
        # A span that never ends is never exported.
        otel_context.detach(self._token)


class _OtelJobSpan(JobSpan):
    def __init__(self, span: trace.Span, parent: otel_context.Context, headers: dict[str, str]) -> None:
        self._span = span
        self._headers = headers
        self._context = trace.set_span_in_context(span, parent)
        self._token = otel_context.attach(self._context)
        self._has_ended = False

    def headers_for_retry(self) -> dict[str, str] | None:
        own: dict[str, str] = {}
        _W3C_TRACE.inject(own, self._context)
        if "traceparent" not in own:
            return None
        # A job that came without a context joins its further attempts to the first one.
        start = self._headers if "traceparent" in self._headers else self._headers | own
        return start | {PREVIOUS_ATTEMPT: own["traceparent"]}

    def end(self, outcome: str, error: BaseException | None = None, message: str = "") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._span.set_attribute("rrq.job.outcome", outcome)
        is_wish = outcome == "retry" and isinstance(error, RetryJob)
        if outcome in ("retry", "dead") and not is_wish:
            _set_error(self._span, error, message)
        self._span.end()

    def leave(self) -> None:
        otel_context.detach(self._token)


def _link_to_previous(headers: dict[str, str]) -> list[trace.Link]:
    previous = headers.get(PREVIOUS_ATTEMPT)
    if previous is None:
        return []
    seen = trace.get_current_span(_W3C_TRACE.extract({"traceparent": previous}, otel_context.Context()))
    context = seen.get_span_context()
    return [trace.Link(context, {"rrq.link": "previous attempt"})] if context.is_valid else []


def _inject(context: otel_context.Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    _W3C.inject(headers, context)
    return headers


def _set_error(span: trace.Span, error: BaseException | None, message: str) -> None:
    if error is not None:
        span.record_exception(error)
    span.set_attribute("error.type", _OTHER_ERROR if error is None else type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, message))
