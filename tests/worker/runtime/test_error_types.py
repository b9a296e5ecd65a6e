"""Which exception ended an attempt: named as a traceback names it, stored, and shown in front of its message."""

from __future__ import annotations

import json
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from queue_steps import back, dead, enqueue, job_fields, retry, start_worker
from rrq.broker.messages import DeathCertificate
from rrq.exc import RetryJob
from rrq.job import JobStatus
from rrq.runtime.error_types import LONGEST_ERROR_TYPE, describe_error, name_error_type
from running import run_burst

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from queue_steps import SteppedWorker
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


class CardRefused(Exception):
    class Later(Exception):
        pass


class InMain(Exception):
    __module__ = "__main__"


@pytest.mark.parametrize(
    "error",
    [KeyError("user_id"), ValueError(), RetryJob("busy"), CardRefused("7"), CardRefused.Later(), InMain("x")],
)
def test_an_error_is_described_as_its_traceback_ends(error: Exception) -> None:
    assert (
        describe_error(name_error_type(error), str(error))
        == traceback.format_exception_only(error)[-1].strip()
    )


def test_a_type_with_an_odd_name_is_one_short_line_of_text() -> None:
    nameless = type("Nameless", (Exception,), {"__module__": None})
    assert name_error_type(nameless()) == "<unknown>.Nameless"
    hostile = type("Bad\n\x1b[2J", (Exception,), {"__module__": "shop\ud800"})
    assert name_error_type(hostile()) == "shop\\ud800.Bad\\n\\x1b[2J"
    long = name_error_type(type("Long" * 100 + "End", (Exception,), {})())
    assert len(long) == LONGEST_ERROR_TYPE
    assert long.endswith("LongEnd")


async def test_the_type_is_stored_with_each_attempt_and_with_the_job(
    client: RRQClient, settings: RRQSettings, store: JobStore
) -> None:
    assert settings.job_registry is not None
    registry: JobRegistry = settings.job_registry
    errors: list[Exception] = [KeyError("user_id"), ValueError()]

    async def fail(ctx: dict[str, Any]) -> None:
        raise errors[ctx["job_try"] - 1]

    registry.register("fail", fail)
    settings.base_retry_delay_seconds, settings.worker_burst_linger_seconds = 0.01, 1
    job = await client.enqueue("fail", _max_retries=2)
    assert job is not None
    await run_burst(settings, registry)
    fields = await job_fields(store, job.id)
    assert (fields["last_error"], fields["error_type"]) == ("", "ValueError")
    attempts = json.loads(fields["attempts"])
    assert [(attempt["error_type"], attempt["error"]) for attempt in attempts] == [
        ("KeyError", "'user_id'"),
        ("ValueError", ""),
    ]
    known = await store.get_job_definition(job.id)
    assert known is not None
    assert (known.status, known.error_type) == (JobStatus.FAILED, "ValueError")
    seen = await client.get_job_status(job.id)
    assert seen is not None
    assert (seen.error_type, seen.last_error) == ("ValueError", "")


async def hand_back(store: JobStore, worker: SteppedWorker) -> None:
    await worker.finish(back(await worker.take_one()))


async def die(store: JobStore, worker: SteppedWorker) -> None:
    await worker.take_one()
    await store.reap_workers(DeathCertificate(worker.identity))


async def bury_without_type(store: JobStore, worker: SteppedWorker) -> None:
    await worker.finish(dead(await worker.take_one(), "No handler registered"))


async def move_by_name(store: JobStore, worker: SteppedWorker) -> None:
    await store.move_job_to_dlq("1", "default", "moved", datetime.now(UTC))


async def retry_by_name(store: JobStore, worker: SteppedWorker) -> None:
    await store.atomic_retry_job("1", "default", 0, "retried", JobStatus.RETRYING)


async def enqueue_again(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")


@pytest.mark.parametrize(
    "go_on", [hand_back, die, bury_without_type, move_by_name, retry_by_name, enqueue_again]
)
async def test_a_type_is_not_stored_with_the_text_of_another_end(
    store: JobStore, go_on: Callable[[JobStore, SteppedWorker], Awaitable[None]]
) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1")
    await worker.finish(retry(await worker.take_one(), "'id'")._replace(error_type="KeyError"))
    assert (await job_fields(store, "1"))["error_type"] == "KeyError"
    await go_on(store, worker)
    assert "error_type" not in await job_fields(store, "1")


async def test_a_requeued_dead_letter_still_has_its_error(store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1")
    await worker.finish(dead(await worker.take_one(), "'id'")._replace(error_type="KeyError"))
    await store.requeue_dlq("default", "default")
    fields = await job_fields(store, "1")
    assert (fields["last_error"], fields["error_type"]) == ("'id'", "KeyError")
