"""Sends outcomes to Redis: at once when idle, in groups when busy, and until they are acknowledged.

While one batch is on its way the next one gathers, so that the busier the worker the larger the
batches. Redis being away is waited out; what the outcomes are is decided in ``worker.py``.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from rrq.broker.connection import REDIS_ERRORS, is_script_failure
from rrq.broker.messages import Outcome, OutcomeKind, Verdict
from rrq.engine.attempts import Attempt
from rrq.jobs.codec import storable_text
from rrq.runtime.backoff import idle_delay_seconds, jittered_delay_seconds
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_LARGEST_BATCH = 500
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0
# Of a worker that is to end: Redis may come back for the last moment of its grace period.
_HURRIED_RETRY_SECONDS = 0.3

#: (attempt or None when the job was never claimed, what to store, who waits for the verdict)
_Entry = tuple[Attempt | None, Outcome, "asyncio.Future[Verdict]"]


class Reporter:
    """Groups the outcomes of one worker and sees them stored."""

    def __init__(
        self,
        get_store: Callable[[], JobStore],
        get_worker_id: Callable[[], str],
        before_send: Callable[[], Awaitable[None]],
        on_acknowledged: Callable[[Sequence[tuple[Attempt, Outcome, Verdict]]], None],
    ) -> None:
        # Asked for each time: applications may replace the store of a worker.
        self._get_store = get_store
        self._get_worker_id = get_worker_id
        self._before_send = before_send
        self._on_acknowledged = on_acknowledged
        self._waiting: list[_Entry] = []
        self._in_flight: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The task that sends what is not acknowledged yet; empty when there is nothing to send."""
        return set() if self._task is None or self._task.done() else {self._task}

    @property
    def unacknowledged(self) -> int:
        """How many outcomes Redis has not answered yet."""
        return len(self._waiting) + len(self._in_flight)

    def submit(self, attempt: Attempt | None, outcome: Outcome) -> "asyncio.Future[Verdict]":
        """Hand over an outcome; the future tells what Redis made of it."""
        loop = asyncio.get_running_loop()
        verdict = loop.create_future()
        self._waiting.append((attempt, outcome, verdict))
        if self._task is None or self._task.done():
            # A task starts in the next turn of the loop: all that ends in this turn travels
            # together.
            self._task = loop.create_task(self._send_all(), name="rrq-reporter")
        return verdict

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is acknowledged; False when the time is up before."""
        if not self.tasks:
            return True
        done, _ = await asyncio.wait(self.tasks, timeout=timeout_seconds)
        return bool(done)

    def hurry(self) -> None:
        """Try again now, and more often from now on: the worker is to end."""
        self._hurried.set()

    async def stop(self) -> list[Outcome]:
        """Give up what could not be sent, and return it; its jobs are given back when the lease ends."""
        for task in self.tasks:
            task.cancel()
            await asyncio.wait({task})
        given_up = [*self._in_flight, *self._waiting]
        for _, _, verdict in given_up:
            verdict.cancel()
        self._in_flight, self._waiting = [], []
        self._hurried.clear()
        return [outcome for _, outcome, _ in given_up]

    async def _send_all(self) -> None:
        while self._waiting:
            self._in_flight = self._waiting[:_LARGEST_BATCH]
            del self._waiting[:_LARGEST_BATCH]
            await self._send(self._in_flight)
            self._in_flight = []

    async def _send(self, batch: list[_Entry]) -> None:
        outcomes = [outcome for _, outcome, _ in batch]
        failures = 0
        while True:
            try:
                await self._before_send()
                verdicts = await self._get_store().finish_jobs(self._get_worker_id(), outcomes)
                break
            # Whatever goes wrong on the way, an outcome is not given up.
            except Exception as error:
                if is_script_failure(error):
                    await self._send_apart(batch, str(error))
                    return
                if not isinstance(error, REDIS_ERRORS):
                    # An answer that makes no sense: perhaps it belongs to somebody else.
                    logger.exception("outcomes not stored yet, their answer is not understood")
                    await self._get_store().connection.aclose()
                failures += 1
                pause_seconds = self._choose_pause(failures)
                logger.warning(
                    "outcomes not stored yet, Redis gives no answer; trying again",
                    extra={"jobs": len(batch), "error": str(error), "pause_seconds": pause_seconds},
                )
                await self._pause(pause_seconds)
        self._settle(batch, verdicts)

    def _choose_pause(self, failures: int) -> float:
        if self._hurried.is_set():
            return jittered_delay_seconds(_HURRIED_RETRY_SECONDS, 0.5, random.uniform)
        # Back before others may claim what a restarted Redis has forgotten, which is one renewal later.
        longest_seconds = min(_LONGEST_RETRY_SECONDS, self._get_store().settings.lease_renewal_seconds / 2)
        idle_seconds = idle_delay_seconds(failures, _FIRST_RETRY_SECONDS, longest_seconds)
        return jittered_delay_seconds(idle_seconds, 0.5, random.uniform)

    async def _pause(self, seconds: float) -> None:
        if self._hurried.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()

    async def _send_apart(self, batch: list[_Entry], complaint: str) -> None:
        """A script failed on this batch: find the outcome that Redis cannot take, and end its job."""
        if len(batch) > 1:
            for entry in batch:
                await self._send([entry])
            return
        attempt, outcome, waiter = batch[0]
        logger.error("outcome refused by Redis", extra={"job_id": outcome.job_id, "error": complaint})
        if outcome.kind is OutcomeKind.DEAD:
            # Not even that can be stored: the job stays where it is, for a person to look at.
            self._settle(batch, [Verdict.UNREADABLE])
            return
        store = self._get_store()
        burial = Outcome(
            outcome.job_id,
            outcome.token,
            OutcomeKind.DEAD,
            storable_text(f"Redis could not store the outcome: {complaint}"),
            store.settings.default_dlq_result_ttl_seconds,
            store.keys.dlq_key(store.settings.default_dlq_name),
        )
        await self._send([(attempt, burial, waiter)])

    def _settle(self, batch: list[_Entry], verdicts: list[Verdict]) -> None:
        self._on_acknowledged(
            [
                (attempt, outcome, verdict)
                for (attempt, outcome, _), verdict in zip(batch, verdicts, strict=True)
                if attempt is not None
            ]
        )
        for (_, _, waiter), verdict in zip(batch, verdicts, strict=True):
            if not waiter.done():
                waiter.set_result(verdict)
