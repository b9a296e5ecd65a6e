"""How a command reaches Redis, and what it prints when Redis cannot be reached."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.redis_advice import describe_redis_trouble
from rrq.commands.options import settings_option
from rrq.commands.refusal import Refusal
from rrq.inspect.jobs import read_stored_job
from rrq.jobs.stored_job import StoredJob
from rrq.settings_loading import load_settings
from rrq.store import JobStore

T = TypeVar("T")
Work = Callable[[JobStore], Coroutine[Any, Any, T]]


class RunOnStore(Protocol):
    """Opens a store, runs ``work`` on it and closes it."""

    def __call__(self, work: Work[T]) -> T: ...


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--settings``; the command gets ``run``, which works on the store that these settings name."""

    @settings_option
    @functools.wraps(command)
    def with_store(*arguments: Any, settings_path: str | None, **options: Any) -> Any:
        def run(work: Work[T]) -> T:
            settings = load_settings(settings_path)
            return run_on_store(
                JobStore(settings), work, lambda error: describe_redis_trouble(settings.redis_dsn, error)
            )

        return command(*arguments, run=run, **options)

    return with_store


def run_on_store(store: JobStore, work: Work[T], describe: Callable[[BaseException], str]) -> T:
    """Run ``work`` on a store, then close the store. Raises Refusal with the words of ``describe`` when Redis fails."""

    async def run_and_close() -> T:
        try:
            # On the engine's own connection, which gives up at the first refusal. The client that ``work`` may use
            # retries several times before it fails.
            await store.read_time()
            return await work(store)
        finally:
            await store.aclose()

    try:
        return asyncio.run(run_and_close())
    except REDIS_ERRORS as error:
        raise Refusal(f"ERROR: {describe(error)}") from error


async def read_chosen_job(store: JobStore, job_id: str) -> StoredJob:
    """Read the job that the user named. Raises Refusal when there is none."""
    job = await read_stored_job(store, job_id)
    if job is None:
        raise job_not_found(job_id)
    return job


def job_not_found(job_id: str) -> Refusal:
    return Refusal(
        f"Job '{job_id}' not found. 'rrq job list' lists the stored jobs. A job that has ended expires after its "
        "result_ttl_seconds; RRQ_REDIS_DSN or --settings may name another Redis."
    )
