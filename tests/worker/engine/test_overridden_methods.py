"""Methods of the worker that applications of RRQ 0.7 override: the engine calls each of them, whichever part it is in."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rrq.cron import CronJob
from rrq.exc import RetryJob
from rrq.registry import JobRegistry
from rrq.worker import RRQWorker
from running import running
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.client import RRQClient
    from rrq.settings import RRQSettings

COROUTINES = (
    "_run_loop",
    "_call_startup_hook",
    "_call_shutdown_hook",
    "_close_resources",
    "_drain_tasks",
    "_heartbeat_loop",
    "_cron_loop",
    "_maybe_enqueue_cron_jobs",
    "_poll_for_jobs",
    "_process_acquired_job",
    "_execute_job",
    "_handle_job_success",
    "_process_retry_job",
    "_process_other_failure",
    "_handle_job_timeout",
    "_handle_fatal_job_error",
    "_handle_job_cancellation_on_shutdown",
    "_move_to_dlq",
)
FUNCTIONS = (
    "_setup_signal_handlers",
    "_request_shutdown",
    "_task_cleanup",
    "_calculate_backoff_ms",
    "_calculate_jittered_delay",
)
# Not called by the loop, which claims many jobs at once.
ON_DEMAND = ("_try_acquire_job", "_try_process_job")


class Handlers:
    """One handler for each way in which an attempt can end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.registry = JobRegistry()
        for name in ("succeed", "ask_for_retry", "fail", "take_long"):
            self.registry.register(name, getattr(self, name))

    async def succeed(self, ctx: dict[str, Any]) -> None: ...

    async def ask_for_retry(self, ctx: dict[str, Any]) -> None:
        raise RetryJob("later", defer_seconds=60)

    async def fail(self, ctx: dict[str, Any]) -> None:
        raise RuntimeError("no")

    async def take_long(self, ctx: dict[str, Any]) -> None:
        self.started.set()
        await asyncio.sleep(600)


def recording(called: set[str]) -> type[RRQWorker]:
    """A worker class that overrides every method to note its name and call the original."""

    def override(name: str) -> Callable[..., Any]:
        original = getattr(RRQWorker, name)

        async def override_coroutine(self: RRQWorker, *args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return await original(self, *args, **kwargs)

        def override_function(self: RRQWorker, *args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return original(self, *args, **kwargs)

        return override_coroutine if inspect.iscoroutinefunction(original) else override_function

    names = (*COROUTINES, *FUNCTIONS, *ON_DEMAND)
    return type("Recording", (RRQWorker,), {name: override(name) for name in names})


async def test_the_engine_calls_every_overridden_method(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    called: set[str] = set()
    settings.worker_shutdown_grace_period_seconds = 0.1
    settings.unknown_function_patience_seconds = 0
    cron_job = CronJob(function_name="succeed", schedule="* * * * *")
    cron_job.next_run_time = datetime.now(UTC) + timedelta(hours=1)
    settings.cron_jobs = [cron_job]
    worker = recording(called)(settings, handlers.registry)
    async with running(worker):
        for function in ("succeed", "ask_for_retry", "fail", "take_long", "unknown"):
            await client.enqueue(function)
        await client.enqueue("take_long", _job_timeout_seconds=0)
        await asyncio.wait_for(handlers.started.wait(), 30)
        wanted = {*COROUTINES, *FUNCTIONS} - {
            "_call_shutdown_hook",
            "_close_resources",
            "_drain_tasks",
            "_request_shutdown",
            "_handle_job_cancellation_on_shutdown",
        }
        await eventually(lambda: called >= wanted, message="the engine passed a method by")
    assert called == {*COROUTINES, *FUNCTIONS}


async def test_a_job_that_is_asked_for_by_name_passes_the_overridden_methods(
    settings: RRQSettings, client: RRQClient, handlers: Handlers
) -> None:
    called: set[str] = set()
    worker = recording(called)(settings, handlers.registry)
    job = await client.enqueue("succeed")
    assert job is not None
    assert await worker._try_process_job(job.id, "default")
    await asyncio.gather(*worker._running_tasks)
    assert called >= {*ON_DEMAND, "_process_acquired_job", "_execute_job", "_handle_job_success"}
    await worker._wind_down()
    await worker.close()


@pytest.mark.parametrize("name", [*COROUTINES, *ON_DEMAND])
def test_what_was_a_coroutine_function_in_0_7_is_one(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(RRQWorker, name))


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()
