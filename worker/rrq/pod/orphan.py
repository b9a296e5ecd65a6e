"""Ends a child that has lost its supervisor and does not end by itself.

In a container the kernel ends what process 1 leaves behind. Anywhere else a handler that holds the event loop, or
ignores its cancellation, would go on unseen for as long as it likes, with the job of which others think that it is
theirs by then. So a thread does what the supervisor would have done: it has the lease renewed, which costs nobody
anything while the job may go on, and kills what is left when the time of a drain is over. No supervisor is there to
certify that death, and whoever is about to die cannot: it shortens its lease, so that others need not wait for all of it.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable

from rrq.broker.connection import REDIS_ERRORS
from rrq.pod.channel import ChildEnd
from rrq.pod.plan import KILL_AFTER_GRACE_SECONDS
from rrq.settings import RRQSettings
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_LAST_WORD_SECONDS = 1.0


class OrphanWatch:
    """Waits, in a thread, for a death that most children never see."""

    def __init__(
        self,
        end: ChildEnd,
        renew_alone: Callable[[], None],
        get_worker_id: Callable[[], str],
        settings: RRQSettings,
    ) -> None:
        # Copied now: by the time the thread runs, a child that fails at once has closed its end.
        self._line = end.copy_line()
        self._renew_alone = renew_alone
        self._get_worker_id = get_worker_id
        self._settings = settings

    def start(self) -> None:
        threading.Thread(target=self._run, name="rrq-orphan", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        # Of nothing that arrives, only of the end.
        poll.register(self._line, 0)
        poll.poll()
        self._renew_alone()
        # Not time.sleep, which fails in a process whose clock is faked.
        threading.Event().wait(self._settings.worker_shutdown_grace_period_seconds + KILL_AFTER_GRACE_SECONDS)
        logger.critical("the supervisor is gone and this process did not end in time, killed")
        self._shorten_lease()
        # With what its handlers have started: the group is this process's own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpid(), signal.SIGKILL)

    def _shorten_lease(self) -> None:
        try:
            asyncio.run(asyncio.wait_for(self._send_shorten(), _LAST_WORD_SECONDS))
        except (*REDIS_ERRORS, TimeoutError) as error:
            logger.warning(
                "the jobs of this process are due when its lease ends", extra={"error": str(error)}
            )

    async def _send_shorten(self) -> None:
        # On a connection of its own: the loop that has the others may stand still.
        store = JobStore(self._settings)
        try:
            await store.shorten_leases([self._get_worker_id()])
        finally:
            await store.aclose()
