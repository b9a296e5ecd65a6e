"""Whether the event loop of the worker turns: a process whose loop hangs must lose its lease."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from rrq.engine.host import Host

logger = logging.getLogger(__name__)

# The event loop shows that it turns this often.
_TURN_SECONDS = 1.0


class LoopMonitor:
    """Notes when the event loop of a worker turned last; may be asked from a thread."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._turned_at = monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_hung = False

    def note_turn(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turned_at = monotonic()

    async def run(self) -> None:
        """Note a turn every second until cancelled."""
        due_at = monotonic()
        while True:
            self.note_turn()
            observer = self._worker.observer
            if observer is not None:
                observer.on_turn(max(0.0, self._turned_at - due_at))
            due_at = monotonic() + _TURN_SECONDS
            await asyncio.sleep(_TURN_SECONDS)

    def is_hung(self, latest_deadline: float) -> bool:
        """Whether the loop stands still longer than the jobs in hand and the settings allow."""
        limit_seconds = self._worker.settings.worker_loop_stall_limit_seconds
        is_hung = monotonic() > max(latest_deadline, self._turned_at + limit_seconds)
        if is_hung and not self._is_hung:
            logger.critical(
                "event loop does not turn, lease is no longer renewed",
                extra={"worker_id": self._worker.worker_id},
            )
        self._is_hung = is_hung
        return is_hung

    def call_in_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """Call from a thread what has to run in the event loop; nothing happens when the loop is closed."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)
