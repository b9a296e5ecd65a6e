"""Hooks and exporters that the settings name are really called by client and worker."""

import asyncio
import sys
import types
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rrq.client import JobRequest, RRQClient
from rrq.cron import CronJob
from rrq.hooks import RRQHook
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker
from running import run_burst, running
from waiting import eventually

MODULE = "hooks_of_an_application_under_test"


class Recorder(RRQHook):
    """Writes down every event, in the order in which they come."""

    events: list[tuple[Any, ...]]

    async def on_job_enqueued(self, job: Job) -> None:
        self.events.append(("enqueued", job.id))

    async def on_job_started(self, job: Job, worker_id: str) -> None:
        self.events.append(("started", job.id, worker_id))

    async def on_job_completed(self, job: Job, result: Any) -> None:
        self.events.append(("completed", job.id, result))

    async def on_job_failed(self, job: Job, error: Exception) -> None:
        assert isinstance(error, Exception)
        self.events.append(("failed", job.id, str(error)))

    async def on_job_retrying(self, job: Job, attempt: int) -> None:
        self.events.append(("retrying", job.id, attempt))

    async def on_worker_started(self, worker_id: str, queues: list[str]) -> None:
        self.events.append(("worker started", worker_id, queues))

    async def on_worker_stopped(self, worker_id: str) -> None:
        self.events.append(("worker stopped", worker_id))

    async def on_worker_heartbeat(self, worker_id: str, health_data: dict[str, Any]) -> None:
        self.events.append(("heartbeat", worker_id, health_data["status"]))


class Raising(RRQHook):
    """Fails at everything."""

    async def on_job_enqueued(self, job: Job) -> None:
        raise RuntimeError("hook")

    async def on_job_started(self, job: Job, worker_id: str) -> None:
        raise RuntimeError("hook")

    async def on_job_completed(self, job: Job, result: Any) -> None:
        # The outcome must not get lost meanwhile.
        await asyncio.sleep(0.3)
        raise RuntimeError("hook")

    async def on_worker_started(self, worker_id: str, queues: list[str]) -> None:
        raise RuntimeError("hook")

    async def on_worker_stopped(self, worker_id: str) -> None:
        raise RuntimeError("hook")


@pytest.fixture
def events() -> Iterator[list[tuple[Any, ...]]]:
    """Make the hooks importable by a dotted path, as those of an application are."""
    module = types.ModuleType(MODULE)
    Recorder.events = []
    for hook in (Recorder, Raising):
        setattr(module, hook.__name__, hook)
    sys.modules[MODULE] = module
    yield Recorder.events
    del sys.modules[MODULE]


@pytest.fixture
def hooked(settings: RRQSettings, events: list[tuple[Any, ...]]) -> RRQSettings:
    settings.event_handlers = [f"{MODULE}.Recorder"]
    return settings


def kinds(events: list[tuple[Any, ...]], leave_out: str = "heartbeat") -> list[str]:
    return [event[0] for event in events if event[0] != leave_out]


async def work(context: dict[str, Any]) -> str:
    return "result"


async def fail(context: dict[str, Any]) -> None:
    raise ValueError("bad address")


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.register("work", work)
    registry.register("fail", fail)
    return registry


async def test_hooks_learn_of_each_enqueued_job(hooked: RRQSettings, events: list[tuple[Any, ...]]) -> None:
    async with aclosing(RRQClient(hooked)) as client:
        with pytest.raises(TypeError):
            await client.enqueue("work", object())
        assert events == []
        first = await client.enqueue("work")
        many = await client.enqueue_many([JobRequest("work") for _ in range(3)], batch_size=2)
        assert first is not None
        assert sorted(events) == sorted(("enqueued", job.id) for job in (first, *many))

        cron_job = CronJob(function_name="work", schedule="* * * * *")
        cron_job.next_run_time = datetime.now(UTC) - timedelta(minutes=1)
        await client.enqueue_cron(cron_job)
        assert kinds(events) == ["enqueued"] * 5


async def test_hooks_learn_of_start_stop_and_each_success(
    hooked: RRQSettings, events: list[tuple[Any, ...]], client: RRQClient, registry: JobRegistry
) -> None:
    job = await client.enqueue("work")
    assert job is not None
    events.clear()

    worker = await run_burst(hooked, registry)

    assert [event for event in events if event[0] != "heartbeat"] == [
        ("worker started", worker.worker_id, worker.queues),
        ("started", job.id, worker.worker_id),
        ("completed", job.id, "result"),
        ("worker stopped", worker.worker_id),
    ]


async def test_hooks_learn_of_retries_failures_and_heartbeats(
    hooked: RRQSettings, events: list[tuple[Any, ...]], client: RRQClient, registry: JobRegistry
) -> None:
    hooked.base_retry_delay_seconds = 0.01
    hooked.unknown_function_patience_seconds = 0
    job = await client.enqueue("fail", _max_retries=2)
    unknown = await client.enqueue("unheard-of")
    assert job is not None
    assert unknown is not None
    events.clear()
    worker = RRQWorker(hooked, registry)
    async with running(worker):
        await eventually(lambda: ("failed", job.id, "bad address") in events)
        await eventually(lambda: "heartbeat" in kinds(events, leave_out=""))

    of_the_job = [event[0] for event in events if event[1] == job.id]
    assert of_the_job == ["started", "retrying", "started", "failed"]
    assert ("retrying", job.id, 1) in events
    assert ("failed", unknown.id, "No handler registered for function 'unheard-of'") in events
    assert next(event[1] for event in events if event[0] == "heartbeat") == worker.worker_id


async def test_hooks_learn_of_jobs_that_a_handler_enqueues(
    hooked: RRQSettings, events: list[tuple[Any, ...]], client: RRQClient, registry: JobRegistry
) -> None:
    async def parent(context: dict[str, Any]) -> None:
        await context["rrq_client"].enqueue("work", _job_id="child")

    registry.register("parent", parent)
    await client.enqueue("parent")

    await run_burst(hooked, registry)

    assert ("enqueued", "child") in events


async def test_a_broken_hook_fails_no_job(
    settings: RRQSettings, events: list[tuple[Any, ...]], registry: JobRegistry
) -> None:
    settings.event_handlers = [f"{MODULE}.Raising", f"{MODULE}.NotThere", f"{MODULE}.Recorder"]
    async with aclosing(RRQClient(settings)) as client:
        job = await client.enqueue("work")
        assert job is not None

        await run_burst(settings, registry)

        result = await client.get_job_status(job.id)
        assert result is not None
        assert result.result == "result"
        assert kinds(events) == ["enqueued", "worker started", "started", "completed", "worker stopped"]
