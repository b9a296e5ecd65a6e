"""One look a second for all browsers together.

However many pages are open, Redis is asked once: ``Feed`` takes the samples and keeps the last minutes of them, and
every open page waits for the next one. ``SharedReads`` does the same for the pages that show more than the samples
hold.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from rrq.broker.connection import REDIS_ERRORS
from rrq.dashboard.samples import MinuteDepths, build_history, build_sample
from rrq.dashboard.values import Picture
from rrq.exc import RRQError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WATCHED_SECONDS: Final = 1.0
# Slow, but not never: whoever opens the page wants to see how deep the queues were in the last hour.
_UNWATCHED_SECONDS: Final = 15.0
_FRESH_SECONDS: Final = 3.0
_KEPT_SAMPLES: Final = 300
#: A proxy ends connections that stay silent; a comment costs nothing.
_SILENCE_SECONDS: Final = 15.0

#: What may keep us from a picture: Redis itself, or what somebody put there.
TROUBLE: Final = (*REDIS_ERRORS, RRQError, TimeoutError)

Message = tuple[str, dict[str, Any]]


class Feed:
    """Takes samples while it runs; ``watch`` yields them to any number of pages."""

    def __init__(
        self, read: Callable[[], Awaitable[Picture]], describe: Callable[[BaseException], str]
    ) -> None:
        self._read = read
        self._describe = describe
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT_SAMPLES)
        self._depths = MinuteDepths()
        self._picture: Picture | None = None
        self._seen_at = -_FRESH_SECONDS
        self._trouble: dict[str, Any] | None = None
        self._news = asyncio.Condition()
        self._number = 0
        self._watchers = 0
        self._is_wanted = asyncio.Event()

    @property
    def picture(self) -> Picture | None:
        """The newest picture; None before the first."""
        return self._picture

    @property
    def fresh_picture(self) -> Picture | None:
        """The newest picture if it is of the last seconds, as it is while anybody watches."""
        return self._picture if monotonic() - self._seen_at < _FRESH_SECONDS else None

    async def run(self, ending: asyncio.Event) -> None:
        """Sample until cancelled, or until ``ending`` is set."""
        while True:
            started = monotonic()
            await self.run_once()
            # A cancellation that meets a connection half open comes out of it as trouble with Redis.
            if ending.is_set():
                return
            pause = _WATCHED_SECONDS if self._watchers else _UNWATCHED_SECONDS
            self._is_wanted.clear()
            try:
                async with asyncio.timeout(max(0.05, pause - (monotonic() - started))):
                    # The first to watch does not wait for the slow round to end.
                    await self._is_wanted.wait()
            except TimeoutError:
                pass

    async def run_once(self) -> None:
        """Take one sample, or learn that there is none, and tell everybody who watches."""
        try:
            picture = await self._read()
            sample = build_sample(self._picture, picture)
            self._depths.add(picture)
            self._samples.append(sample)
            self._picture, self._trouble, self._seen_at = picture, None, monotonic()
        except TROUBLE as error:
            # No sample: a queue that could not be read is not an empty one.
            if self._trouble is None:
                logger.warning("no picture of the queues", extra={"error": str(error)})
                since_ms = self._picture.now_ms if self._picture is not None else None
                self._trouble = {"since_ms": since_ms}
            self._trouble = {**self._trouble, "words": self._describe(error)}
        async with self._news:
            self._number += 1
            self._news.notify_all()

    async def watch(self) -> AsyncGenerator[Message | None]:
        """Yield what happened so far, then each new sample; None when there was none for a while.

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
                    if not has_history and self._picture is not None:
                        has_history = True
                        yield "history", build_history(self._picture, list(self._samples), self._depths)
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
    """Answers the same question of many pages with one reading, for as long as it is fresh."""

    def __init__(self) -> None:
        self._readings: dict[object, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, question: object, fresh_seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` said at most ``fresh_seconds`` ago, or says now."""
        now = monotonic()
        self._forget(now)
        known = self._readings.get(question)
        if known is None:
            known = (now + fresh_seconds, asyncio.ensure_future(_as_coroutine(read)))
            self._readings[question] = known
        # A browser that goes away must not take the answer from the others.
        answer: T = await asyncio.shield(known[1])
        return answer

    def forget_all(self) -> None:
        """After a change nobody shall be shown what was before."""
        self._readings.clear()

    def _forget(self, now: float) -> None:
        for question, (ends_at, reading) in list(self._readings.items()):
            if reading.done() and (ends_at <= now or reading.cancelled() or reading.exception() is not None):
                del self._readings[question]


async def _as_coroutine(read: Callable[[], Awaitable[Any]]) -> Any:
    return await read()
