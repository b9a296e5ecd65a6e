"""Middleware around handlers, in a real worker: what it sees, what it may change, and what it cannot escape."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from fleet import running_worker
from rrq import App
from rrq.exc import JobFailed, RetryJob
from rrq.job import JobStatus
from rrq.settings import RRQSettings
from running import run_burst
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.context import JobContext
    from rrq.middleware import CallNext


@pytest.fixture
async def app(settings: RRQSettings) -> AsyncIterator[App]:
    async with App(settings) as app:
        yield app


async def run_due(app: App) -> None:
    await run_burst(app.settings, app.registry)


async def test_layers_run_around_the_handler_first_one_outermost_and_share_its_context(app: App) -> None:
    steps: list[Any] = []

    @app.middleware
    async def outer(ctx: JobContext, call_next: CallNext) -> Any:
        job = ctx.job
        steps.append((job.function_name, job.job_args, job.job_kwargs, ctx["job_id"] == job.id))
        ctx["session"] = "of this job"
        result = await call_next()
        steps.append(f"outer out with {result[0]}")
        return [result[0] + 1, *result[1:]]

    @app.middleware
    async def inner(ctx: JobContext, call_next: CallNext) -> Any:
        steps.append("inner in")
        result = await call_next()
        steps.append(f"inner out with {result[0]}")
        return [result[0] * 10, *result[1:]]

    @app.job("books.add")
    async def add(ctx: dict[str, Any], number: int, *, copies: int) -> Any:
        steps.append("handler")
        return [number, sorted(ctx), ctx["session"]]

    handle = await add.enqueue(4, copies=2)
    await run_due(app)

    first = ("books.add", [4], {"copies": 2}, True)
    assert steps == [first, "inner in", "handler", "inner out with 4", "outer out with 40"]
    number, keys, session = await handle.result()
    assert (number, session) == (41, "of this job")
    # The keys of RRQ 0.7 and what the layer put in: the job itself is none of them.
    assert keys == [
        "enqueue_time", "job_id", "job_try", "queue_name", "rrq_client", "session", "settings", "worker_id",
    ]  # fmt: skip


async def test_an_exception_passes_through_the_layers_and_one_of_them_may_catch_it(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    async def forgive(ctx: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except LookupError:
            return "forgiven"

    @app.middleware
    async def watch(ctx: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(repr(error))
            raise

    @app.job(max_retries=1)
    async def fail(ctx: dict[str, Any], message: str) -> str:
        raise {"lookup": LookupError, "value": ValueError}[message](message)

    forgiven, failed = await fail.enqueue("lookup"), await fail.enqueue("value")
    await run_due(app)

    assert sorted(seen) == ["LookupError('lookup')", "ValueError('value')"]
    assert await forgiven.result() == "forgiven"
    with pytest.raises(JobFailed, match="value"):
        await failed.result()


async def test_a_layer_may_have_the_job_tried_again_and_call_the_rest_again(app: App) -> None:
    calls: list[int] = []

    @app.middleware
    async def closed_at_first(ctx: JobContext, call_next: CallNext) -> Any:
        if ctx["job_try"] == 1:
            raise RetryJob("closed", defer_seconds=0)
        with contextlib.suppress(ConnectionError):
            return await call_next()
        return await call_next()

    @app.job()
    def work(ctx: dict[str, Any]) -> int:
        calls.append(ctx["job_try"])
        if len(calls) == 1:
            raise ConnectionError
        return int(ctx["job_try"])

    handle = await work.enqueue()
    await run_due(app)

    assert await handle.result() == 2
    assert calls == [2, 2]


async def test_the_timeout_of_a_job_covers_its_middleware_and_its_thread(app: App) -> None:
    cut: list[str] = []
    release = threading.Event()

    @app.middleware
    async def dawdle(ctx: JobContext, call_next: CallNext) -> Any:
        try:
            await asyncio.wait_for(call_next(), 60)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append(ctx.job.function_name)
            raise

    async def work(ctx: dict[str, Any]) -> None: ...
    def plain(ctx: dict[str, Any]) -> None: ...
    def stuck(ctx: dict[str, Any]) -> None:
        release.wait(60)

    functions: list[Any] = [work, plain, stuck]
    handles = [await app.job(timeout_seconds=1)(function).enqueue() for function in functions]
    try:
        await run_due(app)
        for handle in handles:
            with pytest.raises(JobFailed, match="timed out after 1s"):
                await handle.result()
    finally:
        release.set()
    assert sorted(cut) == ["plain", "stuck", "work"]


async def test_a_cancellation_and_a_drain_pass_through_the_layers(app: App) -> None:
    steps: list[str] = []
    app.settings.worker_shutdown_grace_period_seconds = 0.1

    @app.middleware
    async def clean_up(ctx: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            steps.append("cleaned up")

    @app.job()
    async def endless(ctx: dict[str, Any]) -> None:
        steps.append("started")
        await asyncio.Event().wait()

    handle = await endless.enqueue()
    async with running_worker(app.settings, app.registry):
        await eventually(lambda: steps == ["started"])
        await handle.cancel()
        await eventually(lambda: steps == ["started", "cleaned up"])

        async def is_cancelled() -> bool:
            return await handle.status() is JobStatus.CANCELLED

        await eventually(is_cancelled)
        handed_back = await endless.enqueue()
        await eventually(lambda: len(steps) == 3)

    assert steps == ["started", "cleaned up"] * 2
    assert await handed_back.status() is JobStatus.PENDING


async def test_a_plain_function_that_ends_during_a_drain_returns_its_result_to_its_layers(app: App) -> None:
    started, release = threading.Event(), threading.Event()
    app.settings.worker_shutdown_grace_period_seconds = 0

    @app.middleware
    async def mark(ctx: JobContext, call_next: CallNext) -> Any:
        # The worker has cancelled this task by now; the function cannot be stopped, and its result counts.
        return f"<{await call_next()}>"

    @app.job()
    def slow(ctx: dict[str, Any]) -> str:
        started.set()
        release.wait(60)
        return "done"

    handle = await slow.enqueue()
    async with running_worker(app.settings, app.registry) as worker:
        await eventually(started.is_set)
        asyncio.get_running_loop().call_later(0.3, release.set)
        worker._request_shutdown()

    assert await handle.result(timeout_seconds=1) == "<done>"


async def test_a_plain_function_runs_in_its_thread_with_the_context_variables_of_the_layers(app: App) -> None:
    tenant = contextvars.ContextVar("tenant", default="none")

    @app.middleware
    async def set_tenant(ctx: JobContext, call_next: CallNext) -> Any:
        tenant.set(ctx.job.job_kwargs["tenant_name"])
        return await call_next()

    @app.job()
    def work(ctx: dict[str, Any], *, tenant_name: str) -> list[Any]:
        return [tenant.get(), threading.current_thread() is threading.main_thread()]

    handle = await work.enqueue(tenant_name="shop")
    await run_due(app)

    assert await handle.result() == ["shop", False]


def test_a_layer_that_is_not_a_coroutine_function_is_refused(settings: RRQSettings) -> None:
    def plain(ctx: JobContext, call_next: CallNext) -> Any: ...

    with pytest.raises(ValidationError, match="Middleware must be an async function"):
        RRQSettings(middleware=[plain])
    with pytest.raises(ValueError, match="Middleware must be an async function"):
        App(settings).middleware(plain)
    assert settings.middleware == []
