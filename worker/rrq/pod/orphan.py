"""Ends a child whose supervisor has died and that does not end by itself.

In a container the kernel kills all processes with process 1. Elsewhere a handler that blocks the event loop, or ignores
its cancellation, would run on, while another worker already runs the same job. So a thread does what the supervisor would
have done: it renews the lease, and kills the process when the time for draining is over. No supervisor is left to certify
this death, so the thread shortens the lease first: other workers then take over its jobs sooner.
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

_SHORTEN_SECONDS = 1.0


class OrphanWatch:
    """Waits in a thread for the death of the supervisor."""

    def __init__(
        self,
        end: ChildEnd,
        renew_alone: Callable[[], None],
        get_worker_id: Callable[[], str],
        settings: RRQSettings,
    ) -> None:
        # Copied here, because a child that fails at once has closed its end before the thread runs.
        self._socket = end.copy_socket()
        self._renew_alone = renew_alone
        self._get_worker_id = get_worker_id
        self._settings = settings

    def start(self) -> None:
        threading.Thread(target=self._run, name="rrq-orphan", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        # Wakes up only when the other end closes, not for messages.
        poll.register(self._socket, 0)
        poll.poll()
        self._renew_alone()
        # Not time.sleep, which fails in a process whose clock is faked.
        threading.Event().wait(self._settings.worker_shutdown_grace_period_seconds + KILL_AFTER_GRACE_SECONDS)
        logger.critical("the supervisor has died and this process did not end in time, killed")
        self._shorten_lease()
        # The process group includes the programs that its handlers have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpid(), signal.SIGKILL)

    def _shorten_lease(self) -> None:
        try:
            asyncio.run(asyncio.wait_for(self._send_shorten(), _SHORTEN_SECONDS))
        except (*REDIS_ERRORS, TimeoutError) as error:
            logger.warning(
                "the jobs of this process are due when its lease ends", extra={"error": str(error)}
            )

    async def _send_shorten(self) -> None:
        # On a connection of its own, because the event loop with the other one may be blocked.
        store = JobStore(self._settings)
        try:
            await store.shorten_leases([self._get_worker_id()])
        finally:
            await store.aclose()
