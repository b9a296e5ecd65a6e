"""How a worker waits: for a slot, for work, or for better times. Everything is cut short by its end."""

import asyncio
import random
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Claim, ClaimCode
from rrq.runtime.backoff import jittered_delay_seconds
from rrq.settings import RRQSettings
from rrq.store import JobStore


class Pacing:
    """The part of a worker that waits."""

    settings: RRQSettings
    job_store: JobStore
    queues: list[str]
    _shutdown_event: asyncio.Event
    _slot_freed: asyncio.Event
    _random: random.Random
    _next_delay: float
    #: A token woke this worker, so that it expects to find a job.
    _was_woken: bool

    async def _wait_for_slot(self) -> None:
        """Sleep until a handler has ended or the worker is to stop; now and then look regardless."""
        longest_seconds = self._within_renewal(self.settings.worker_idle_poll_max_seconds)
        delay = self._calculate_jittered_delay(longest_seconds)
        # An event and a timer, not a pair of tasks: at full speed this is passed once per batch.
        timer = asyncio.get_running_loop().call_later(delay, self._slot_freed.set)
        try:
            await self._slot_freed.wait()
        finally:
            timer.cancel()
            self._slot_freed.clear()

    async def _wait_for_work(self, claim: Claim | None) -> None:
        """Sleep until a job may have come: a wake-up, the next due time, or the next poll."""
        delay = self._next_delay
        if claim is not None and claim.next_due_ms is not None:
            delay = min(delay, max(0.001, (claim.next_due_ms - claim.now_ms) / 1000))
        if claim is None or claim.code is not ClaimCode.ANSWERED:
            # A worker that may not claim must not take wake-ups from those that may.
            await self._pause(delay)
            return
        try:
            await self._first_of(self._wait_for_wake(delay), self._shutdown_event.wait())
        except REDIS_ERRORS:
            # The poll that follows meets the same trouble and says so.
            await self._pause(self._within_renewal(delay))

    async def _wait_for_wake(self, delay: float) -> None:
        self._was_woken = await self.job_store.wait_for_wake(self.queues, delay)

    async def _pause(self, seconds: float) -> None:
        await self._first_of(self._shutdown_event.wait(), timeout_seconds=seconds)

    async def _first_of(self, *waits: Any, timeout_seconds: float | None = None) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            done, _ = await asyncio.wait(tasks, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def _within_renewal(self, seconds: float) -> float:
        """Return a wait after which, jitter included, this worker is back within one renewal.

        After a restart of Redis the fleet waits for each worker to tell what it holds, but not for long.
        """
        return min(seconds, self.settings.lease_renewal_seconds / 2)

    def _calculate_jittered_delay(self, base_delay: float, jitter_factor: float = 0.5) -> float:
        """Return a draw from ``base_delay`` ± ``jitter_factor``, independent of other workers."""
        return jittered_delay_seconds(base_delay, jitter_factor, self._random.uniform)
