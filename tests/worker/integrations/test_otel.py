"""OpenTelemetry: one trace from the producer through every attempt, on a real Redis with the real SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import traced_worker
from rrq import telemetry
from rrq.broker.messages import CronVerdict
from rrq.client import JobRequest, RRQClient
from rrq.cron import CronJob
from rrq.exc import EnqueueError, RetryJob
from rrq.integrations import otel
from rrq.registry import JobRegistry
from rrq.worker import RRQWorker
from running import run_burst, running
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rrq.settings import RRQSettings
    from rrq.store import JobStore

ERROR = trace.StatusCode.ERROR
UNSET = trace.StatusCode.UNSET


class Spans:
    """What was exported, by the first word of the name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def of(self, operation: str) -> list[ReadableSpan]:
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if span.name.split()[0] == operation]

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.of(operation)
        return span


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.enable(tracer_provider=provider)
    yield Spans(exporter)
    telemetry.disable()


@pytest.fixture
def eager(settings: RRQSettings) -> RRQSettings:
    """Settings under which a burst also runs the retries."""
    settings.base_retry_delay_seconds = 0.0
    settings.worker_burst_linger_seconds = 0.2
    return settings


def registry_of(handler: Callable[..., Any]) -> JobRegistry:
    registry = JobRegistry()
    registry.register("work", handler)
    return registry


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return (
        child.parent is not None
        and child.parent.span_id == context_of(parent).span_id
        and context_of(child).trace_id == context_of(parent).trace_id
    )


async def test_a_job_runs_in_the_trace_of_its_producer(
    spans: Spans, client: RRQClient, settings: RRQSettings, store: JobStore
) -> None:
    async def work(ctx: dict[str, Any], secret: str) -> None: ...

    job = await client.enqueue("work", "sesame", _queue_name="mail")
    assert job is not None
    worker = await run_burst(settings, registry_of(work), queues=["mail"])

    producer, consumer = spans.one("enqueue"), spans.one("process")
    ids = f"{context_of(producer).trace_id:032x}-{context_of(producer).span_id:016x}"
    headers = {"traceparent": f"00-{ids}-{context_of(producer).trace_flags:02x}"}
    fields = await store.get_job_data_dict(job.id)
    assert fields is not None
    assert json.loads(fields["trace_context"]) == headers == job.trace_context
    assert (producer.kind, consumer.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert is_child(consumer, producer)
    assert producer.parent is None
    assert attributes_of(producer) == {
        "messaging.system": "rrq",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "rrq.job.function": "work",
    }
    found = attributes_of(consumer)
    assert 0 <= found.pop("rrq.job.queue_wait_seconds") < 20
    assert found == {
        "messaging.system": "rrq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.client.id": worker.worker_id,
        "rrq.job.function": "work",
        "rrq.job.attempt": 1,
        "rrq.job.outcome": "done",
    }
    assert consumer.status.status_code is UNSET
    assert "sesame" not in producer.to_json() + consumer.to_json()


async def test_every_attempt_is_in_the_trace_and_links_to_the_one_before(
    spans: Spans, client: RRQClient, eager: RRQSettings
) -> None:
    async def work(ctx: dict[str, Any]) -> None:
        if ctx["job_try"] < 3:
            raise ValueError(f"no luck in {ctx['job_try']}")

    await client.enqueue("work")
    await run_burst(eager, registry_of(work))

    producer, attempts = spans.one("enqueue"), spans.of("process")
    assert [attributes_of(span)["rrq.job.attempt"] for span in attempts] == [1, 2, 3]
    assert [attributes_of(span)["rrq.job.outcome"] for span in attempts] == ["retry", "retry", "done"]
    assert all(is_child(span, producer) for span in attempts)
    linked = [[link.context.span_id for link in span.links] for span in attempts]
    assert linked == [[], [context_of(attempts[0]).span_id], [context_of(attempts[1]).span_id]]
    first = attempts[0]
    assert (first.status.status_code, first.status.description) == (ERROR, "no luck in 1")
    assert attributes_of(first)["error.type"] == "ValueError"
    (event,) = first.events
    assert (event.attributes or {})["exception.message"] == "no luck in 1"
    assert attempts[2].status.status_code is UNSET


async def test_a_wish_for_a_retry_is_no_error(spans: Spans, client: RRQClient, eager: RRQSettings) -> None:
    async def work(ctx: dict[str, Any]) -> None:
        if ctx["job_try"] == 1:
            raise RetryJob("later", defer_seconds=0)

    await client.enqueue("work", _defer_until=datetime.now(UTC) - timedelta(seconds=90))
    await run_burst(eager, registry_of(work))
    first, second = spans.of("process")
    assert (attributes_of(first)["rrq.job.outcome"], first.status.status_code) == ("retry", UNSET)
    assert [link.context.span_id for link in second.links] == [context_of(first).span_id]
    assert 89 < attributes_of(first)["rrq.job.queue_wait_seconds"] < 110, "from the moment it was due"


async def fail(ctx: dict[str, Any]) -> None:
    raise ValueError("for good")


async def wish(ctx: dict[str, Any]) -> None:
    raise RetryJob("once more")


async def dawdle(ctx: dict[str, Any]) -> None:
    await asyncio.sleep(60)


async def leave_the_process(ctx: dict[str, Any]) -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("handler", "options", "error_type", "message"),
    [
        (fail, {"_max_retries": 1}, "ValueError", "for good"),
        (wish, {"_max_retries": 1}, "RetryJob", "once more"),
        (dawdle, {"_job_timeout_seconds": 1}, "TimeoutError", "Job timed out after 1s."),
        (leave_the_process, {"_max_retries": 1}, "SystemExit", "Handler called sys.exit(3)"),
        (None, {}, "_OTHER", "No handler registered for function 'work'"),
    ],
)
async def test_a_dead_letter_shows_its_cause_on_the_span(
    spans: Spans,
    client: RRQClient,
    settings: RRQSettings,
    handler: Callable[..., Any] | None,
    options: dict[str, Any],
    error_type: str,
    message: str,
) -> None:
    settings.unknown_function_patience_seconds = 0
    await client.enqueue("work", **options)
    await run_burst(settings, registry_of(handler) if handler else JobRegistry())
    span = spans.one("process")
    found = attributes_of(span)
    assert (found["rrq.job.outcome"], found["error.type"]) == ("dead", error_type)
    assert (span.status.status_code, span.status.description) == (ERROR, message)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_runs_inside_its_span(
    spans: Spans, client: RRQClient, settings: RRQSettings, is_async: bool
) -> None:
    seen: list[tuple[int, str | None]] = []

    def note() -> None:
        thread = threading.current_thread().name
        seen.append((trace.get_current_span().get_span_context().span_id, thread))

    async def work(ctx: dict[str, Any]) -> None:
        note()
        await asyncio.sleep(0)
        note()

    def work_in_thread(ctx: dict[str, Any]) -> None:
        note()

    await client.enqueue("work")
    await run_burst(settings, registry_of(work if is_async else work_in_thread))
    assert {span_id for span_id, _ in seen} == {context_of(spans.one("process")).span_id}
    assert {thread for _, thread in seen} == {"MainThread" if is_async else "rrq-handler"}


async def test_jobs_at_the_same_time_keep_their_spans_apart(
    spans: Spans, client: RRQClient, settings: RRQSettings
) -> None:
    seen: dict[str, int] = {}

    async def work(ctx: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        seen[ctx["job_id"]] = trace.get_current_span().get_span_context().span_id

    await client.enqueue_many(JobRequest("work") for _ in range(20))
    await run_burst(settings, registry_of(work))
    assert len(seen) == 20
    assert seen == {
        attributes_of(span)["messaging.message.id"]: context_of(span).span_id for span in spans.of("process")
    }
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_job_that_a_handler_enqueues_continues_the_trace(
    spans: Spans, client: RRQClient, settings: RRQSettings
) -> None:
    async def work(ctx: dict[str, Any]) -> None:
        await ctx["rrq_client"].enqueue("other")

    registry = registry_of(work)
    registry.register("other", fail)
    await client.enqueue("work")
    await run_burst(settings, registry)
    outer, inner = spans.of("process")
    nested = next(span for span in spans.of("enqueue") if span.name == "enqueue other")
    assert (outer.name, inner.name) == ("process work", "process other")
    assert is_child(nested, outer)
    assert is_child(inner, nested)


async def test_a_batch_is_one_producer_span_that_all_its_jobs_carry(
    spans: Spans, client: RRQClient, settings: RRQSettings
) -> None:
    async def work(ctx: dict[str, Any]) -> None: ...

    jobs = await client.enqueue_many((JobRequest("work") for _ in range(5)), batch_size=2)
    await run_burst(settings, registry_of(work))
    producer, attempts = spans.one("enqueue"), spans.of("process")
    found = attributes_of(producer)
    assert (producer.name, found["messaging.batch.message_count"]) == ("enqueue batch", 5)
    assert found["messaging.destination.name"] == settings.default_queue_name
    assert "messaging.message.id" not in found
    assert len({str(job.trace_context) for job in jobs}) == 1
    assert len(attempts) == 5
    assert all(is_child(span, producer) for span in attempts)


async def test_a_context_given_by_the_application_is_kept_and_queues_of_a_mixed_batch_are_not_named(
    spans: Spans, provider: TracerProvider, client: RRQClient
) -> None:
    otel.enable("billing", tracer_provider=provider)
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    requests = [JobRequest("work", queue_name="a", trace_context=given), JobRequest("work", queue_name="b")]
    assert (await client.enqueue_many(requests))[0].trace_context == given
    found = attributes_of(spans.one("enqueue"))
    assert "messaging.destination.name" not in found
    assert found["service.name"] == "billing"


async def test_an_enqueue_that_fails_shows_the_error(spans: Spans, client: RRQClient) -> None:
    with pytest.raises(EnqueueError):
        await client.enqueue("")
    span = spans.one("enqueue")
    assert span.status.status_code is ERROR
    assert attributes_of(span)["error.type"] == "InvalidJob"
    assert not trace.get_current_span().get_span_context().is_valid


async def test_baggage_reaches_the_handler(spans: Spans, client: RRQClient, settings: RRQSettings) -> None:
    seen: list[object] = []

    async def work(ctx: dict[str, Any]) -> None:
        seen.append(baggage.get_baggage("tenant"))

    token = context.attach(baggage.set_baggage("tenant", "blue"))
    await client.enqueue("work")
    context.detach(token)
    await run_burst(settings, registry_of(work))
    assert seen == ["blue"]


async def test_a_job_that_is_cancelled_lost_or_given_back_says_so(
    spans: Spans, client: RRQClient, settings: RRQSettings
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.01
    worker = RRQWorker(settings, registry_of(dawdle))
    async with running(worker):
        job = await client.enqueue("work")
        assert job is not None
        await eventually(lambda: worker._executor.traces, message="the job never started")
        await client.cancel(job.id)
        await eventually(lambda: not worker._executor.traces, message="the job was never cancelled")

        await client.enqueue("work", _max_retries=1)
        await eventually(lambda: worker._executor.traces, message="the job never started")
        for attempt in worker.book:
            worker.book.lose(attempt)
        await eventually(lambda: len(spans.of("process")) == 2, message="the attempt never ended")

        await client.enqueue("work")
        await eventually(lambda: worker._executor.traces, message="the job never started")
    ends = [(attributes_of(span)["rrq.job.outcome"], span.status.status_code) for span in spans.of("process")]
    assert ends[0] == ("cancelled", UNSET)
    assert ends[1][0] == "lost"
    assert ends[-1] == ("back", UNSET)
    assert not worker._executor.traces


async def test_only_the_worker_that_fires_a_cron_tick_traces_it(
    spans: Spans, client: RRQClient, settings: RRQSettings
) -> None:
    cron_job = CronJob(function_name="work", schedule="* * * * *")
    cron_job.next_run_time = datetime.now(UTC) - timedelta(minutes=1)
    assert await client.enqueue_cron(cron_job) is CronVerdict.FIRED
    assert await client.enqueue_cron(cron_job) is CronVerdict.ALREADY_FIRED
    await run_burst(settings, registry_of(fail))
    assert is_child(spans.one("process"), spans.one("enqueue"))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_without_an_sdk_jobs_carry_no_context(client: RRQClient, settings: RRQSettings) -> None:
    otel.enable(tracer_provider=trace.NoOpTracerProvider())
    try:
        job = await client.enqueue("work")
        await run_burst(settings, registry_of(fail))
    finally:
        telemetry.disable()
    assert job is not None
    assert job.trace_context is None


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense", "rrq-previous": "nonsense"},
        {"rrq-previous": "00-00000000000000000000000000000000-0000000000000000-01"},
        {"traceparent": "", "baggage": "%%%,,="},
    ],
)
async def test_a_broken_context_does_not_keep_a_job_from_running(
    spans: Spans, client: RRQClient, settings: RRQSettings, headers: dict[str, str]
) -> None:
    ran: list[str] = []

    async def work(ctx: dict[str, Any]) -> None:
        ran.append(ctx["job_id"])

    await client.enqueue_many([JobRequest("work", trace_context=headers)])
    await run_burst(settings, registry_of(work))
    assert len(ran) == 1
    assert spans.one("process").links == ()


async def test_a_trace_crosses_processes(spans: Spans, client: RRQClient, redis_dsn: str) -> None:
    job = await client.enqueue("work")
    assert job is not None
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, traced_worker.__file__, redis_dsn, "work"),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(traced_worker.__file__).parent)},
    )
    output, _ = await asyncio.wait_for(worker.communicate(), 60)
    first, second = (json.loads(line) for line in output.splitlines())
    producer = context_of(spans.one("enqueue"))
    for span in (first, second):
        assert span["context"]["trace_id"] == f"0x{producer.trace_id:032x}"
        assert span["parent_id"] == f"0x{producer.span_id:016x}"
        assert span["attributes"]["messaging.message.id"] == job.id
    assert [link["context"]["span_id"] for link in second["links"]] == [first["context"]["span_id"]]
