"""The typed API at run time: registering, enqueueing, options, results. What mypy sees is in typed_users_code.py."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rrq import App
from rrq.broker.messages import CancelCode
from rrq.exc import JobCancelled, JobFailed, JobNotFound, JobUnfinished, RetryJob
from rrq.job import JobStatus
from rrq.job_function import AsyncJobFunction, PlainJobFunction
from rrq.jobs.options import JobOptions
from rrq.settings import RRQSettings
from running import run_burst

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.client import RRQClient
    from rrq.store import JobStore


@pytest.fixture
async def app(settings: RRQSettings) -> AsyncIterator[App]:
    async with App(settings) as app:
        yield app


async def run_due(app: App, **options: Any) -> None:
    await run_burst(app.settings, app.registry, **options)


# Registering


async def test_a_decorated_function_can_still_be_called(app: App) -> None:
    @app.job()
    async def double(ctx: dict[str, Any], number: int) -> int:
        """Twice as much."""
        return 2 * number

    @app.job()
    def half(ctx: dict[str, Any], number: float) -> float:
        return number / 2

    assert await double({}, 4) == 8
    assert half({}, number=3.0) == 1.5
    assert isinstance(double, AsyncJobFunction)
    assert isinstance(half, PlainJobFunction)
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert repr(double) == "<job function 'double'>"


def test_the_registry_holds_the_bare_function_under_its_name_or_the_one_given(settings: RRQSettings) -> None:
    app = App(settings)

    async def send(ctx: dict[str, Any]) -> None: ...

    app.job()(send)
    app.job("mail.send")(send)

    assert app.registry is settings.job_registry
    assert app.registry.get_registered_functions() == ["send", "mail.send"]
    assert app.registry.get_handler("send") is send


def test_what_cannot_be_registered_is_refused(settings: RRQSettings) -> None:
    class Nameless:
        def __call__(self, ctx: dict[str, Any]) -> None: ...

    def send(ctx: dict[str, Any]) -> None: ...

    app = App(settings)
    app.registry.register("send", print)
    with pytest.raises(ValueError, match="'send' is already registered"):
        app.job()(send)
    with pytest.raises(TypeError, match=r"Write @app.job\(\) with its parentheses"):
        app.job(send)  # type: ignore[arg-type]  # what mypy refuses is explained to others
    with pytest.raises(ValueError, match="has no name of its own"):
        app.job()(Nameless())
    assert app.job("named")(Nameless()).name == "named"


# Enqueueing


async def test_a_job_runs_with_the_arguments_it_was_enqueued_with(app: App) -> None:
    @app.job()
    async def add(ctx: dict[str, Any], left: int, right: int = 1, *, _queue_name: int = 1) -> int:
        return (left + right) * _queue_name

    @app.job()
    def shout(ctx: dict[str, Any], text: str) -> str:
        return text.upper()

    # A keyword may be called like an option of the client.
    added = await add.enqueue(2, right=3, _queue_name=10)
    shouted = await shout.enqueue("hello")
    await run_due(app)

    assert await added.result() == 50
    assert await shouted.result() == "HELLO"
    assert await added.status() is JobStatus.COMPLETED


async def test_options_of_the_decorator_reach_the_job(app: App, store: JobStore) -> None:
    @app.job(
        "mail.send",
        queue="mail",
        max_retries=7,
        timeout_seconds=11,
        result_ttl_seconds=13,
        unique_key=lambda to, **_: f"mail:{to}",
    )
    async def send(ctx: dict[str, Any], to: str, *, urgent: bool = False) -> None: ...

    handle = await send.enqueue("eve", urgent=True)

    job = await store.get_job_definition(handle.id)
    assert job is not None
    assert (job.function_name, job.queue_name, job.max_retries) == ("mail.send", "mail", 7)
    assert (job.job_timeout_seconds, job.result_ttl_seconds) == (11, 13)
    assert job.job_unique_key == "mail:eve"
    assert await store.get_unique_lock_holder("mail:eve") == handle.id


async def test_options_of_a_call_win_field_by_field_and_change_nothing_else(
    app: App, store: JobStore
) -> None:
    @app.job(queue="mail", max_retries=7, unique_key="all")
    async def send(ctx: dict[str, Any], to: str) -> None: ...

    soon = send.with_options(queue="urgent", job_id="one", unique_key=None)
    later = soon.with_options(job_id="two", defer_by=timedelta(hours=1))

    assert (await soon.enqueue("eve")).id == "one"
    assert (await later.enqueue("adam")).id == "two"
    one, two = await store.get_job_definition("one"), await store.get_job_definition("two")
    assert one is not None
    assert two is not None
    assert (one.queue_name, one.max_retries, one.job_unique_key) == ("urgent", 7, None)
    assert (two.queue_name, two.max_retries) == ("urgent", 7)
    assert two.next_scheduled_run_time is not None
    assert timedelta(minutes=59) < two.next_scheduled_run_time - two.enqueue_time < timedelta(minutes=61)
    plain = send.request("eve")
    assert plain.options == JobOptions(queue_name="mail", max_retries=7, unique_key="all")


def test_options_of_the_engine_are_passed_on_and_keys_are_made_from_the_arguments(
    settings: RRQSettings,
) -> None:
    def key(to: str, **_: Any) -> str:
        return f"to {to}"

    @App(settings).job(priority=3, limit_key=key, idempotency_key=key, idempotency_seconds=60)
    def send(ctx: dict[str, Any], to: str, *, copies: int = 1) -> None: ...

    once = send.request("eve", copies=2).options
    debounced = send.with_options(
        idempotency_key=None,
        idempotency_seconds=None,
        debounce_key=key,
        debounce_max_seconds=30,
        replace_if_pending=True,
    )

    assert once == JobOptions(
        priority=3, limit_key="to eve", idempotency_key="to eve", idempotency_seconds=60
    )
    assert debounced.request("eve").options == JobOptions(
        priority=3,
        limit_key="to eve",
        debounce_key="to eve",
        debounce_max_seconds=30,
        replace_if_pending=True,
    )


async def test_a_second_call_with_the_same_idempotency_key_has_the_handle_of_the_first(app: App) -> None:
    @app.job(idempotency_key=lambda order: f"charge {order}")
    async def charge(ctx: dict[str, Any], order: int) -> int:
        return order

    @app.job(queue="texts")
    async def shout(ctx: dict[str, Any], text: str) -> str:
        return text.upper()

    first = await charge.with_options(then=[shout.request("hey")]).enqueue(1)
    again, other = await charge.enqueue(1), await charge.enqueue(2)
    batch = await app.client.enqueue_many([charge.request(order=3), shout.request("ho")])
    await run_due(app, queues=[app.settings.default_queue_name, "texts"])

    assert first.id == again.id != other.id
    assert (await again.result(), await other.result()) == (1, 2)
    assert await charge.handle(batch[0].id).result() == 3
    assert await shout.handle(batch[1].id).result() == "HO"


# Results


async def test_a_result_is_waited_for_over_retries(app: App) -> None:
    @app.job()
    async def stubborn(ctx: dict[str, Any]) -> int:
        if ctx["job_try"] < 3:
            raise RetryJob(defer_seconds=0)
        return int(ctx["job_try"])

    handle = await stubborn.enqueue()
    waiting = asyncio.create_task(handle.result())
    await run_due(app)

    assert await waiting == 3


async def test_a_failed_job_raises_its_error_where_the_result_is_wanted(app: App) -> None:
    @app.job(max_retries=1)
    async def broken(ctx: dict[str, Any]) -> int:
        raise ValueError("no such customer")

    handle = await broken.enqueue()
    await run_due(app)

    with pytest.raises(JobFailed, match="no such customer") as failure:
        await handle.result()
    assert (failure.value.job_id, failure.value.reason) == (handle.id, "no such customer")
    assert "failed for good: ValueError: no such customer." in str(failure.value)


async def test_a_job_without_a_result_says_why(app: App) -> None:
    @app.job()
    async def waits(ctx: dict[str, Any]) -> int:
        return 1

    handle = await waits.enqueue()
    with pytest.raises(JobUnfinished, match=r"has not ended within 0\.05 s, it is PENDING"):
        await handle.result(timeout_seconds=0.05)
    assert await handle.cancel() is CancelCode.CANCELLED
    with pytest.raises(JobCancelled, match=handle.id):
        await handle.result()
    with pytest.raises(JobNotFound, match="There is no job nowhere"):
        await waits.handle("nowhere").result(timeout_seconds=0.05)
    assert await waits.handle("nowhere").status() is None


# The client


async def test_an_application_that_was_closed_opens_a_new_client_when_it_is_used_again(
    settings: RRQSettings,
) -> None:
    app = App(settings)

    @app.job()
    async def send(ctx: dict[str, Any]) -> None: ...

    async with app:
        first = app.client
        await send.enqueue()
    await send.enqueue()
    assert app.client is not first
    await app.aclose()
    await app.aclose()


async def test_a_bound_client_is_used_for_the_length_of_the_block_and_left_open(
    settings: RRQSettings, client: RRQClient
) -> None:
    app = App(RRQSettings(redis_dsn="redis://127.0.0.1:1/0"))

    @app.job()
    async def send(ctx: dict[str, Any]) -> None: ...

    with app.bind(client):
        handle = await send.enqueue()
        assert app.client is client
    await app.aclose()
    assert app.client is not client
    assert await client.get_job_status(handle.id) is not None
