"""A session with everything around it: Redis, logs, signals and the display."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from rrq.broker.connection import mask_dsn
from rrq.embedded import DSN_VARIABLE, EmbeddedRedis
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.local.display import Display
from rrq_operator.local.redis_choice import choose_redis
from rrq_operator.local.session import LocalSession


@contextlib.asynccontextmanager
async def running(session: LocalSession, display: Display) -> AsyncIterator[asyncio.Task[None]]:
    """Run and show a session for the length of the block, then drain it. Yields the task that runs it.

    Signals that usually end a program stop the session; a second one hurries.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, session.stop)
    showing = asyncio.create_task(display.run(session))
    task = asyncio.create_task(session.run())
    try:
        yield task
    finally:
        if not session.is_stopping:
            session.stop()
        try:
            await task
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


@contextlib.contextmanager
def redis_of(
    pools: Sequence[Pool], redis_url: str | None, say: Callable[[str], None]
) -> Iterator[list[RedisIdentity]]:
    """Yield the Redis of each pool; those that name none share a server of our own."""
    choices = [choose_redis(pool.spec, redis_url, os.environ.get(DSN_VARIABLE)) for pool in pools]
    reasons = dict.fromkeys(choice.reason for choice in choices if choice.dsn is None)
    with contextlib.ExitStack() as stack:
        # On disk, so that jobs outlive a crash of the server.
        own = stack.enter_context(EmbeddedRedis(appendonly=True)).dsn if reasons else ""
        for reason in reasons:
            say(f"Redis is started here and stopped at the end: {reason}.")
        addresses = [RedisIdentity(choice.dsn or own, choice.key_prefix) for choice in choices]
        for dsn in dict.fromkeys(address.url for address in addresses):
            say(f"Redis: {mask_dsn(dsn)} (to enqueue from another shell, set {DSN_VARIABLE} to it)")
        yield addresses


@contextlib.contextmanager
def log_folder_of(wanted: Path | None) -> Iterator[Path]:
    """Yield the folder for logs: the one that was asked for, or one that is removed at the end."""
    if wanted is not None:
        # Applications log anything, and only the user who runs this should read it.
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield wanted
        return
    folder = Path(tempfile.mkdtemp(prefix="rrq-local-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
