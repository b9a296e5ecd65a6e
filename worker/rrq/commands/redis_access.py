"""How a command gets at Redis, and what it says when it does not."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.redis_advice import describe_redis_trouble
from rrq.commands.refusal import Refusal
from rrq.exc import RRQError
from rrq.settings import RRQSettings
from rrq.settings_loading import load_settings
from rrq.store import JobStore

T = TypeVar("T")


def run_with_store(settings_path: str | None, work: Callable[[JobStore], Coroutine[Any, Any, T]]) -> T:
    """Load the settings, run ``work`` on a store, and close it. Trouble becomes a Refusal."""
    settings = load_settings(settings_path)
    store = open_store(settings)
    with telling_redis_trouble(settings):
        return asyncio.run(_run(store, work))


async def _run(store: JobStore, work: Callable[[JobStore], Coroutine[Any, Any, T]]) -> T:
    try:
        # On the engine's own connection, which gives up at the first refusal; the client that the
        # work below may use would try several times before it said so.
        await store.read_time()
        return await work(store)
    finally:
        await store.aclose()


def open_store(settings: RRQSettings) -> JobStore:
    """Return a store. A DSN that can never work is refused here, before anything is sent."""
    try:
        return JobStore(settings)
    except RRQError as error:
        raise Refusal(f"ERROR: {error}") from error


@contextlib.contextmanager
def telling_redis_trouble(settings: RRQSettings) -> Iterator[None]:
    """Turn errors of Redis and of RRQ into one line that says what to do."""
    try:
        yield
    except RRQError as error:
        raise Refusal(f"ERROR: {error}") from error
    except REDIS_ERRORS as error:
        raise Refusal(f"ERROR: {describe_trouble(settings, error)}") from error


def describe_trouble(settings: RRQSettings, error: BaseException) -> str:
    """Return what happened, to which Redis, and what to do about it."""
    return describe_redis_trouble(settings.redis_dsn, error)
