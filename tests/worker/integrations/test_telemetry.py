"""The seam between jobs and tracers: off by default, and never in the way of a job."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import enqueue, job_fields, start_worker
from rrq import telemetry
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.telemetry import EnqueueSpan, JobSpan, Telemetry
from rrq.worker import RRQWorker
from running import by_hand, run_burst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rrq.client import RRQClient
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


@pytest.fixture(autouse=True)
def _telemetry_is_off_again() -> Iterator[None]:
    yield
    telemetry.disable()


async def work(ctx: dict[str, Any]) -> str:
    return "worked"


async def fail_first(ctx: dict[str, Any]) -> str:
    if ctx["job_try"] == 1:
        raise ValueError("not yet")
    return "worked"


def registry_of(handler: Any) -> JobRegistry:
    registry = JobRegistry()
    registry.register("work", handler)
    return registry


def test_it_is_off_until_configured() -> None:
    assert not telemetry.get_telemetry().enabled
    tracer = Telemetry()
    telemetry.configure(tracer)
    assert telemetry.get_telemetry() is tracer
    telemetry.disable()
    assert not telemetry.get_telemetry().enabled


@pytest.mark.parametrize("package", ["logfire", "ddtrace", "opentelemetry-api"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"opentelemetry-api": "otel"}.get(package, package)
    # None in sys.modules is how Python marks a module that must not be found.
    monkeypatch.setitem(sys.modules, package.removesuffix("-api"), None)
    monkeypatch.delitem(sys.modules, f"rrq.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=f"needs the package {package}. Run: pip install "):
        importlib.import_module(f"rrq.integrations.{module}")


class SilentTracer(Telemetry):
    """What a tracer inherits: spans that record nothing."""

    enabled = True


async def test_a_tracer_may_record_nothing_and_be_switched_off_while_a_job_runs(
    client: RRQClient, settings: RRQSettings
) -> None:
    async def switch_off(ctx: dict[str, Any]) -> str:
        telemetry.disable()
        return await fail_first(ctx)

    settings.base_retry_delay_seconds = 0.0
    settings.worker_burst_linger_seconds = 0.2
    telemetry.configure(SilentTracer())
    job = await client.enqueue("work")
    worker = await run_burst(settings, registry_of(switch_off))
    assert not worker._executor.traces
    assert job is not None
    assert job.trace_context is None
    assert (await client.get_job_status(job.id)).result == "worked"  # type: ignore[union-attr]  # it is there


class _BrokenEnqueueSpan(EnqueueSpan):
    def headers(self) -> dict[str, str]:
        raise RuntimeError("broken tracer")

    def end(self, jobs: Sequence[Job], error: BaseException | None = None) -> None:
        raise RuntimeError("broken tracer")


class _BrokenJobSpan(JobSpan):
    def headers_for_retry(self) -> dict[str, str]:
        raise RuntimeError("broken tracer")

    def end(self, outcome: str, error: BaseException | None = None, message: str = "") -> None:
        raise RuntimeError("broken tracer")

    leave = end  # type: ignore[assignment]  # raises whatever it is given


class BrokenTracer(Telemetry):
    enabled = True

    def __init__(self, *, from_the_start: bool) -> None:
        self._from_the_start = from_the_start

    def enqueue_span(self, function_name: str) -> EnqueueSpan:
        if self._from_the_start:
            raise RuntimeError("broken tracer")
        return _BrokenEnqueueSpan()

    def job_span(self, job: Job, queue_name: str, worker_id: str) -> JobSpan:
        if self._from_the_start:
            raise RuntimeError("broken tracer")
        return _BrokenJobSpan()


@pytest.mark.parametrize("from_the_start", [True, False])
async def test_a_tracer_that_fails_costs_no_job(
    client: RRQClient, settings: RRQSettings, caplog: pytest.LogCaptureFixture, from_the_start: bool
) -> None:
    settings.base_retry_delay_seconds = 0.0
    settings.worker_burst_linger_seconds = 0.2
    telemetry.configure(BrokenTracer(from_the_start=from_the_start))
    job = await client.enqueue("work")
    assert job is not None
    await run_burst(settings, registry_of(fail_first))
    result = await client.get_job_status(job.id)
    assert result is not None
    assert result.result == "worked"
    assert "telemetry failed" in caplog.text


class RecordingTracer(Telemetry):
    enabled = True

    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []

    def job_span(self, job: Job, queue_name: str, worker_id: str) -> JobSpan:
        ends = self.ends

        class Span(JobSpan):
            def headers_for_retry(self) -> dict[str, str]:
                return {"traceparent": "next"}

            def end(self, outcome: str, error: BaseException | None = None, message: str = "") -> None:
                ends.append((outcome, type(error).__name__))

        return Span()


async def test_a_job_run_without_a_claim_is_traced_too(settings: RRQSettings) -> None:
    tracer = RecordingTracer()
    telemetry.configure(tracer)
    worker = RRQWorker(settings, registry_of(fail_first))
    async with by_hand(worker):
        await worker._execute_job(Job(function_name="work"), settings.default_queue_name)
    # The second is what every task says at its end, and counts only when nothing was said before.
    assert tracer.ends == [("retry", "ValueError"), ("lost", "NoneType")]


async def test_only_the_attempt_that_owns_a_job_changes_its_trace(store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "a", trace_context='{"traceparent":"first"}')
    claimed = await worker.take_one()
    assert await store.leave_trace("a", claimed.token, '{"traceparent":"second"}')
    assert (await job_fields(store, "a"))["trace_context"] == '{"traceparent":"second"}'

    await enqueue(store, "a", is_chosen_id=1)
    for job_id in ("a", "nobody"):
        assert not await store.leave_trace(job_id, claimed.token, '{"traceparent":"third"}')
        assert "trace_context" not in await job_fields(store, job_id)
