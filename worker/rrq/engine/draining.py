"""How a worker ends: told by a signal or by its supervisor, it stops claiming and lets its jobs end.

What still runs when the time is up is cancelled and handed back, uncounted and at its original due time;
that last step is done by ``outcomes.py``.
"""

import asyncio
import contextlib
import logging
import signal
from math import inf
from time import monotonic

from rrq.engine.ownership import Ownership
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

#: How long after the grace period a cancelled handler has to end, and an outcome to be stored, before they are left
#: behind. A supervisor waits no longer than a moment more.
CANCEL_SECONDS = 1.0
#: Also after handlers that took all of that time, what they left is tried once.
_LAST_TRY_SECONDS = 0.1


class Draining:
    """The part of a worker that brings it to its end."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    settings: RRQSettings
    worker_id: str
    _running_tasks: set[asyncio.Task[None]]
    _ignored_tasks: set[asyncio.Task[None]]
    _shutdown_event: asyncio.Event
    #: Monotonic time at which jobs in hand are cut short; ``inf`` for never, None when not set yet.
    _drain_until: float | None
    #: Set when ``_drain_until`` has moved under a drain that waits for it.
    _drain_changed: asyncio.Event
    #: Monotonic time at which everything is left behind that was cut short; ``inf`` when nothing was.
    _patience_ends_at: float
    _ownership: Ownership

    def _setup_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            try:
                loop.add_signal_handler(number, self._on_signal)
            except (NotImplementedError, RuntimeError, ValueError):
                logger.warning("signals cannot be handled here", extra={"signal": number.name})

    def _remove_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        """The first signal drains; another one hurries, or ends the patience of a retirement."""
        if self._shutdown_event.is_set() and self._drain_until != inf:
            self._cut_drain(0.0)
        else:
            self.drain()

    def drain(self) -> None:
        """Let the jobs in hand end within the grace period, also those that had all the time they need."""
        if self._drain_until == inf:
            self._cut_drain(self.settings.worker_shutdown_grace_period_seconds)
        else:
            self._request_shutdown()

    def _cut_drain(self, grace_seconds: float) -> None:
        logger.info("drain is cut short", extra={"worker_id": self.worker_id, "seconds": grace_seconds})
        self._drain_until = monotonic() + grace_seconds
        self._drain_changed.set()

    def _request_shutdown(self) -> None:
        if self._shutdown_event.is_set():
            logger.info("shutdown is under way already", extra={"worker_id": self.worker_id})
            return
        logger.info("shutdown requested", extra={"worker_id": self.worker_id})
        if self._drain_until is None:
            # From now on, like that of a supervisor: a claim that Redis does not answer may hold up the drain.
            self._drain_until = monotonic() + self.settings.worker_shutdown_grace_period_seconds
        self._shutdown_event.set()

    def retire(self) -> None:
        """Stop claiming and end when the jobs in hand have ended, however long they take."""
        if not self._shutdown_event.is_set():
            self._drain_until = inf
            self._request_shutdown()

    async def _drain_tasks(self) -> None:
        """Let running jobs end and outcomes be stored within the grace period, then cancel and hand back the rest."""
        reporter, jobs = self._ownership.reporter, self._running_tasks - self._ignored_tasks
        # Not every outcome has a task that waits for it: its handler may have been given up, say.
        awaited = jobs | reporter.tasks
        if not awaited:
            self._drain_until = None
            return
        reporter.hurry()
        if self._drain_until is None:
            self._drain_until = monotonic() + self.settings.worker_shutdown_grace_period_seconds
        logger.info(
            "draining",
            extra={
                "worker_id": self.worker_id,
                "jobs": len(jobs),
                "seconds": self._drain_until - monotonic(),
            },
        )
        unfinished = await self._wait_for_tasks(awaited) - reporter.tasks
        self._drain_until = None
        self._patience_ends_at = monotonic() + CANCEL_SECONDS
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=CANCEL_SECONDS)

    async def _release_claims(self) -> None:
        """Hand back what never started, and see the last outcomes stored while the patience lasts."""
        seconds = min(CANCEL_SECONDS, max(_LAST_TRY_SECONDS, self._patience_ends_at - monotonic()))
        self._patience_ends_at = inf
        await self._ownership.release(seconds)

    async def _wait_for_tasks(self, tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Wait until ``_drain_until``, which may move meanwhile; returns what still runs then."""
        all_ended = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            while (left := (self._drain_until or 0.0) - monotonic()) > 0 and not all_ended.done():
                self._drain_changed.clear()
                change = asyncio.ensure_future(self._drain_changed.wait())
                await asyncio.wait(
                    {all_ended, change},
                    timeout=None if left == inf else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                change.cancel()
        finally:
            all_ended.cancel()
        return {task for task in tasks if not task.done()}
