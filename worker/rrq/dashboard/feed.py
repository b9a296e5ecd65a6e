"""Reads once a second for all browsers together.

However many pages are open, the server reads Redis once: ``Feed`` takes samples and keeps those of the last minutes, and
every open page waits for the next sample. ``SharedReads`` shares all other readings.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from rrq.broker.connection import REDIS_ERRORS
from rrq.dashboard.samples import MinuteDepths, build_history, build_sample
from rrq.dashboard.values import DashboardSnapshot
from rrq.exc import RRQError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WATCHED_SECONDS: Final = 1.0
# Slow, but not never: a page that opens shows how deep the queues were in the last hour.
_UNWATCHED_SECONDS: Final = 15.0
_FRESH_SECONDS: Final = 3.0
_KEPT_SAMPLES: Final = 300
#: After this time a comment is sent, because proxies close silent connections.
_SILENCE_SECONDS: Final = 15.0

#: Errors that prevent a snapshot: of Redis, or of the data in it.
TROUBLE: Final = (*REDIS_ERRORS, RRQError, TimeoutError)

Message = tuple[str, dict[str, Any]]


class Feed:
    """Takes samples while it runs; ``watch`` yields them to any number of pages."""

    def __init__(
        self, read: Callable[[], Awaitable[DashboardSnapshot]], describe: Callable[[BaseException], str]
    ) -> None:
        self._read = read
        self._describe = describe
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT_SAMPLES)
        self._depths = MinuteDepths()
        self._snapshot: DashboardSnapshot | None = None
        self._seen_at = -_FRESH_SECONDS
        self._trouble: dict[str, Any] | None = None
        self._news = asyncio.Condition()
        self._number = 0
        self._watchers = 0
        self._is_wanted = asyncio.Event()

    @property
    def snapshot(self) -> DashboardSnapshot | None:
        """The newest snapshot; None before the first."""
        return self._snapshot

    @property
    def fresh_snapshot(self) -> DashboardSnapshot | None:
        """The newest snapshot if it is a few seconds old at most, as it is while a page watches."""
        return self._snapshot if monotonic() - self._seen_at < _FRESH_SECONDS else None

    async def run(self, ending: asyncio.Event) -> None:
        """Sample until cancelled, or until ``ending`` is set."""
        while True:
            started = monotonic()
            await self.run_once()
            # A cancellation while a connection opens is turned into an error of Redis, so it may not end this loop.
            if ending.is_set():
                return
            pause = _WATCHED_SECONDS if self._watchers else _UNWATCHED_SECONDS
            self._is_wanted.clear()
            try:
                async with asyncio.timeout(max(0.05, pause - (monotonic() - started))):
                    # The first watcher need not wait for the end of a slow round.
                    await self._is_wanted.wait()
            except TimeoutError:
                pass

    async def run_once(self) -> None:
        """Take one sample, or note why that failed, and wake all watchers."""
        try:
            snapshot = await self._read()
            sample = build_sample(self._snapshot, snapshot)
            self._depths.add(snapshot)
            self._samples.append(sample)
            self._snapshot, self._trouble, self._seen_at = snapshot, None, monotonic()
        except TROUBLE as error:
            # No sample, because a queue that could not be read is not an empty queue.
            if self._trouble is None:
                logger.warning("no snapshot of the queues", extra={"error": str(error)})
                since_ms = self._snapshot.now_ms if self._snapshot is not None else None
                self._trouble = {"since_ms": since_ms}
            self._trouble = {**self._trouble, "words": self._describe(error)}
        async with self._news:
            self._number += 1
            self._news.notify_all()

    async def watch(self) -> AsyncGenerator[Message | None]:
        """Yield the history, then each new sample; None after a time without one.

        A page that reads slowly misses samples instead of queueing them.
        """
        self._watchers += 1
        self._is_wanted.set()
        try:
            number, has_history = 0, False
            while True:
                if self._number > number:
                    number = self._number
                    if self._trouble is not None:
                        yield "trouble", self._trouble
                    elif has_history:
                        yield "sample", self._samples[-1]
                    if not has_history and self._snapshot is not None:
                        has_history = True
                        yield "history", build_history(self._snapshot, list(self._samples), self._depths)
                elif not await self._wait_beyond(number):
                    yield None
        finally:
            self._watchers -= 1

    async def _wait_beyond(self, number: int) -> bool:
        try:
            async with asyncio.timeout(_SILENCE_SECONDS), self._news:
                await self._news.wait_for(lambda: self._number > number)
        except TimeoutError:
            return False
        return True


class SharedReads:
    """Answers the same question of many pages with one reading, while that is fresh."""

    def __init__(self) -> None:
        self._readings: dict[object, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, question: object, fresh_seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return a result of ``read`` that is at most ``fresh_seconds`` old."""
        now = monotonic()
        self._forget(now)
        known = self._readings.get(question)
        if known is None:
            known = (now + fresh_seconds, asyncio.ensure_future(_as_coroutine(read)))
            self._readings[question] = known
        # A browser that disconnects must not cancel the reading for the others.
        answer: T = await asyncio.shield(known[1])
        return answer

    def forget_all(self) -> None:
        """Forget all results, after a change."""
        self._readings.clear()

    def _forget(self, now: float) -> None:
        for question, (ends_at, reading) in list(self._readings.items()):
            if reading.done() and (ends_at <= now or reading.cancelled() or reading.exception() is not None):
                del self._readings[question]


async def _as_coroutine(read: Callable[[], Awaitable[Any]]) -> Any:
    return await read()
