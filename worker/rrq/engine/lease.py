"""Renews the lease of a worker without a supervisor, from a thread with a connection of its own.

The lease belongs to the process, not to its jobs: one renewal however many jobs run. A thread, so that a handler
which blocks the event loop for half a minute does not cost the worker its lease. ``registration.py`` says what a
heartbeat reports and acts on its answer; in a pod the supervisor renews instead (``pod/heartbeat.py``).
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Beat, Renewal
from rrq.engine.reaper import Reaper
from rrq.runtime.backoff import jittered_delay_seconds
from rrq.settings import RRQSettings
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_JOIN_SECONDS = 2.0


def build_health_record(
    worker_id: str, status: str, active_jobs: int, concurrency_limit: int, queues: Sequence[str]
) -> dict[str, object]:
    """Return the health record of a worker, with the fields that monitors of RRQ 0.7 read."""
    return {
        "worker_id": worker_id,
        "timestamp": datetime.now(UTC).isoformat(),
        "status": status,
        "active_jobs": active_jobs,
        "concurrency_limit": concurrency_limit,
        "queues": queues,
    }


class Lease(Protocol):
    """What renews the lease of a worker: its own thread, or the supervisor of its pod."""

    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    async def stop(self) -> None: ...


class LeaseKeeper:
    """Renews the lease of one worker from a daemon thread, waits for cancellations, and reaps other workers.

    ``describe`` returns what to report, or None for a process that hangs and must lose its lease. ``pass_on``
    receives every answer. Both are called in the thread.
    """

    def __init__(
        self,
        get_settings: Callable[[], RRQSettings],
        describe: Callable[[], Beat | None],
        pass_on: Callable[[Beat, Renewal], None],
    ) -> None:
        # Called when the thread starts: an application may have replaced the store of its worker.
        self._get_settings = get_settings
        self._describe = describe
        self._pass_on = pass_on
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; it beats at once."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="rrq-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; the lease then runs out unless the worker deregisters."""
        thread, self._thread = self._thread, None
        self._is_stopping = True
        if thread is None:
            return
        if self._loop is not None and thread.is_alive():
            # The loop may close between the check and the call.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._interrupt)
        await asyncio.to_thread(thread.join, _JOIN_SECONDS)

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        store = JobStore(self._get_settings())
        reaper = Reaper(store)
        try:
            while not self._is_stopping:
                await self.run_once(store, reaper)
        finally:
            await store.aclose()

    async def run_once(self, store: JobStore, reaper: Reaper) -> None:
        """Send one heartbeat, then wait for cancellations and reap until the next one is due."""
        renewal_seconds = store.settings.lease_renewal_seconds
        next_beat_at = monotonic() + renewal_seconds
        beat = self._describe()
        try:
            if beat is None:
                await asyncio.sleep(renewal_seconds)
                return
            renewal = await store.renew_leases([beat])
            self._pass_on(beat, renewal)
            reaper.plan(renewal)
            # A cancellation may be swallowed while a connection opens; the flag is not.
            while monotonic() < next_beat_at and not self._is_stopping:
                if await self._listen(store, reaper, beat.worker.worker_id, next_beat_at):
                    return
        except REDIS_ERRORS as error:
            logger.warning("heartbeat failed, trying again", extra={"error": str(error)})
            await self._pause()
        # Without this thread the worker loses its lease, so no answer of Redis may end it.
        except Exception:
            logger.exception("heartbeat failed, trying again on another connection")
            await store.wire.aclose()
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(jittered_delay_seconds(_RETRY_SECONDS, 0.5, random.uniform))

    async def _listen(self, store: JobStore, reaper: Reaper, worker_id: str, next_beat_at: float) -> bool:
        """Wait for a cancellation, the next reap or the next heartbeat; True when a job was cancelled.

        The answer to the next heartbeat lists the jobs to cancel, so that a lost wake-up does no harm.
        """
        wait_seconds = max(0.0, next_beat_at - monotonic())
        until_reap = reaper.seconds_until_due()
        if until_reap is not None and until_reap < wait_seconds:
            if until_reap > 0 and await store.wait_for_control([worker_id], until_reap):
                return True
            await reaper.run_once()
            return False
        return wait_seconds > 0 and await store.wait_for_control([worker_id], wait_seconds)
