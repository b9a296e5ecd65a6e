"""Graceful shutdown: the worker stops claiming, lets its jobs end within the grace period, and hands back the rest.

A signal or the supervisor begins it. A job that is handed back is due again at its original time, and the attempt is
not counted; ``failures.py`` reports that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from math import inf
from time import monotonic

from rrq.broker.messages import Outcome
from rrq.engine.attempts import AttemptBook
from rrq.engine.consumer import Consumer
from rrq.engine.executor import Executor
from rrq.engine.host import Host
from rrq.engine.registration import Registration

logger = logging.getLogger(__name__)

#: How long after the grace period a cancelled handler has to end, and an outcome to be stored. A supervisor kills the
#: process soon after.
CANCEL_SECONDS = 1.0
#: Also after handlers that took all of that time, their outcomes are sent once.
_LAST_TRY_SECONDS = 0.1
# Of jobs that must all be named, one line of the log has so many.
_LISTED_IN_LOG = 100


class Drain:
    """Brings one worker to its end."""

    def __init__(
        self,
        worker: Host,
        book: AttemptBook,
        registration: Registration,
        consumer: Consumer,
        executor: Executor,
    ) -> None:
        self._worker = worker
        self._book = book
        self._registration = registration
        self._consumer = consumer
        self._executor = executor
        #: Monotonic time at which jobs in hand are cut short; ``inf`` for never, None when not set yet.
        self._until: float | None = None
        #: Set when ``_until`` has changed during a drain.
        self._until_changed = asyncio.Event()
        #: Monotonic time until which cancelled jobs may report; ``inf`` when none was cancelled.
        self._patience_ends_at = inf

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._worker.SIGNALS:
            try:
                loop.add_signal_handler(number, self._on_signal)
            except (NotImplementedError, RuntimeError, ValueError):
                logger.warning("signals cannot be handled here", extra={"signal": number.name})

    def ignore_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._worker.SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        """The first signal drains; another one ends the grace period, or begins that of a retiring worker."""
        if self._worker._shutdown_event.is_set() and self._until != inf:
            self.cut_short(0.0)
        else:
            self.begin()

    def begin(self) -> None:
        """Let the jobs in hand end within the grace period, also those of a retiring worker."""
        if self._until == inf:
            self.cut_short(self._worker.settings.worker_shutdown_grace_period_seconds)
        else:
            self._worker._request_shutdown()

    def request(self) -> None:
        worker = self._worker
        if worker._shutdown_event.is_set():
            logger.info("shutdown is under way already", extra={"worker_id": worker.worker_id})
            return
        logger.info("shutdown requested", extra={"worker_id": worker.worker_id})
        if self._until is None:
            # From now on, like that of a supervisor: a claim that Redis does not answer may hold up the drain.
            self._until = monotonic() + worker.settings.worker_shutdown_grace_period_seconds
        worker._shutdown_event.set()

    def retire(self) -> None:
        """Stop claiming and end when the jobs in hand have ended, however long they take."""
        if not self._worker._shutdown_event.is_set():
            self._until = inf
            self._worker._request_shutdown()

    def cut_short(self, grace_seconds: float) -> None:
        """Let the jobs in hand end within so many seconds from now."""
        logger.info(
            "drain is cut short", extra={"worker_id": self._worker.worker_id, "seconds": grace_seconds}
        )
        self._until = monotonic() + grace_seconds
        self._until_changed.set()

    async def finish_jobs(self) -> None:
        """Let running jobs end and outcomes be stored within the grace period, then cancel and hand back the rest."""
        worker, consumer = self._worker, self._consumer
        jobs = worker._running_tasks - self._executor.ignored_tasks
        # Not every outcome has a task that waits for it, such as that of a handler that ignored its timeout.
        awaited = jobs | consumer.tasks
        if not awaited:
            self._until = None
            return
        consumer.hurry()
        if self._until is None:
            self._until = monotonic() + worker.settings.worker_shutdown_grace_period_seconds
        logger.info(
            "draining",
            extra={"worker_id": worker.worker_id, "jobs": len(jobs), "seconds": self._until - monotonic()},
        )
        unfinished = await self._wait_for_tasks(awaited) - consumer.tasks
        self._until = None
        self._patience_ends_at = monotonic() + CANCEL_SECONDS
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=CANCEL_SECONDS)

    async def release_claims(self) -> None:
        """Hand back jobs that never started, send the last outcomes for a moment, and deregister."""
        seconds = min(CANCEL_SECONDS, max(_LAST_TRY_SECONDS, self._patience_ends_at - monotonic()))
        self._patience_ends_at = inf
        for attempt in self._book.owned():
            if attempt.task is None:
                self._consumer.hand_back(attempt, "Worker stopped before the job was started. Re-queued.")
        self._log_unstored(await self._consumer.stop(seconds))
        await self._registration.stop()

    async def _wait_for_tasks(self, tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Wait until ``_until``, which may change meanwhile; returns what still runs then."""
        all_ended = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            while (left := (self._until or 0.0) - monotonic()) > 0 and not all_ended.done():
                self._until_changed.clear()
                change = asyncio.ensure_future(self._until_changed.wait())
                await asyncio.wait(
                    {all_ended, change},
                    timeout=None if left == inf else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                change.cancel()
        finally:
            all_ended.cancel()
        return {task for task in tasks if not task.done()}

    def _log_unstored(self, outcomes: Sequence[Outcome]) -> None:
        # All of them: their work was done, and is done again.
        job_ids = [_to_text(outcome.job_id) for outcome in outcomes]
        for start in range(0, len(job_ids), _LISTED_IN_LOG):
            logger.error(
                "outcomes not stored before the worker had to end; their jobs run again after its lease",
                extra={
                    "worker_id": self._worker.worker_id,
                    "jobs": len(job_ids),
                    "job_ids": job_ids[start : start + _LISTED_IN_LOG],
                },
            )


def _to_text(job_id: str | bytes) -> str:
    return job_id.decode("utf-8", "backslashreplace") if isinstance(job_id, bytes) else job_id
