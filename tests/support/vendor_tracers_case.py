"""Logfire and Datadog with their real packages; run by tests/worker/integrations/test_vendor_tracers.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rrq import telemetry
from rrq.broker.messages import CronVerdict
from rrq.cron import CronJob
from rrq.registry import JobRegistry
from running import run_burst

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rrq.client import RRQClient
    from rrq.settings import RRQSettings


@pytest.fixture(autouse=True)
def _telemetry_is_off_again() -> Iterator[None]:
    yield
    telemetry.disable()


@pytest.fixture
def eager(settings: RRQSettings) -> RRQSettings:
    settings.base_retry_delay_seconds = 0.0
    settings.worker_burst_linger_seconds = 0.2
    return settings


async def fail_first(ctx: dict[str, Any]) -> str:
    if ctx["job_try"] == 1:
        raise ValueError("not yet")
    return "worked"


def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.register("work", fail_first)
    return registry


async def test_logfire_gets_the_spans(client: RRQClient, eager: RRQSettings) -> None:
    import logfire
    from logfire import testing
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from rrq.integrations import logfire as integration

    exporter = testing.TestExporter()
    logfire.configure(
        send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(exporter)]
    )
    integration.enable("billing")
    await client.enqueue("work")
    await run_burst(eager, registry())
    spans = [
        span
        for span in exporter.exported_spans
        # Logfire also sends a mark when a span begins.
        if "logfire.pending_parent_id" not in (span.attributes or {})
    ]
    assert [span.name for span in spans] == ["enqueue work", "process work", "process work"]
    assert [span.attributes.get("rrq.job.outcome") for span in spans] == [None, "retry", "done"]
    assert {span.attributes["service.name"] for span in spans} == {"billing"}
    assert len({span.context.trace_id for span in spans}) == 1


async def test_datadog_gets_the_spans(client: RRQClient, eager: RRQSettings) -> None:
    from ddtrace.trace import TraceFilter, tracer

    from rrq.integrations import ddtrace as integration

    class Keep(TraceFilter):  # type: ignore[misc]  # without the package its base is unknown
        def __init__(self) -> None:
            self.spans: list[Any] = []

        def process_trace(self, trace: list[Any]) -> None:
            self.spans += trace

    kept = Keep()
    tracer.configure(trace_processors=[kept])
    integration.enable(service="billing")

    await client.enqueue("work")
    await run_burst(eager, registry())
    assert tracer.current_span() is None
    by_name = {
        name: [span for span in kept.spans if span.name == name] for name in ("rrq.enqueue", "rrq.process")
    }
    (producer,), attempts = by_name["rrq.enqueue"], by_name["rrq.process"]
    assert {span.trace_id for span in attempts} == {producer.trace_id}
    assert {span.parent_id for span in attempts} == {producer.span_id}
    assert [span.get_tag("rrq.job.outcome") for span in attempts] == ["retry", "done"]
    assert [span.error for span in attempts] == [1, 0]
    assert (attempts[0].service, attempts[0].get_tag("error.message")) == ("billing", "not yet")
    assert [link.span_id for link in attempts[1]._get_links()] == [attempts[0].span_id]

    kept.spans.clear()
    cron_job = CronJob(function_name="work", schedule="* * * * *")
    cron_job.next_run_time = datetime.now(UTC) - timedelta(minutes=1)
    assert await client.enqueue_cron(cron_job) is CronVerdict.FIRED
    assert await client.enqueue_cron(cron_job) is CronVerdict.ALREADY_FIRED
    assert [span.context.sampling_priority for span in kept.spans][1:] == [-1]
    with pytest.raises(ValueError, match="function name"):
        await client.enqueue("")
    assert kept.spans[-1].error == 1
