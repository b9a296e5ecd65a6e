"""Registers the worker with Redis and reconciles the jobs in hand: after this, both list the same attempts.

A lost answer, a new connection, a lost lease or a restarted Redis sets ``needs_reconcile``; the next claim and the
next outcome then reconcile first. The lease itself is renewed by ``lease.py`` or by the supervisor of the pod.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

from rrq.broker.connection import LOST_REPLY_ERRORS
from rrq.broker.messages import Beat, BeatReply, LeaseState, Renewal, WorkerIdentity
from rrq.constants import DEFAULT_WORKER_ID_PREFIX
from rrq.engine.attempts import AttemptBook
from rrq.engine.host import Host
from rrq.engine.lease import Lease, LeaseKeeper, build_health_record
from rrq.engine.loop_monitor import LoopMonitor
from rrq.exc import LeaseLost

logger = logging.getLogger(__name__)

# What was cancelled gets this long to end before the worker claims again.
_CANCEL_SECONDS = 1.0


def build_worker_id() -> str:
    """Return an id that is unique in a fleet, where all pods have the same process ids."""
    return f"{DEFAULT_WORKER_ID_PREFIX}{os.getpid()}_{secrets.token_hex(3)}"


class Registration:
    """What Redis knows of one worker process, under one lease."""

    def __init__(
        self,
        worker: Host,
        book: AttemptBook,
        loop_monitor: LoopMonitor,
        restore_limits: Callable[[], Awaitable[None]],
        *,
        may_rename: bool,
    ) -> None:
        self._worker = worker
        self._book = book
        self._loop_monitor = loop_monitor
        self._restore_limits = restore_limits
        self._may_rename = may_rename
        self.identity = self._build_identity(secrets.token_hex(16))
        #: Renewed from a thread of this process, unless a supervisor or a test sets its own.
        self.lease: Lease = LeaseKeeper(lambda: worker.job_store.settings, self._describe, self._pass_on)
        self.is_registered = False
        #: Whether Redis and this worker may list different jobs in hand.
        self.needs_reconcile = False
        #: Taken by a claim, and while Redis and this worker reconcile.
        self.lock = asyncio.Lock()
        self._mismatches = 0

    def note_reconnect(self) -> None:
        """A new socket may mean a restarted Redis: reconcile before the next claim."""
        self.needs_reconcile = True

    async def reconcile_if_needed(self) -> None:
        """Do what a claim would do first, for a worker that has no free slot to claim for."""
        if self.needs_reconcile:
            async with self.lock:
                await self.agree()

    async def agree_before_report(self) -> None:
        """Have a Redis that may have restarted know the claims before it learns how they ended."""
        if not self.is_registered:
            return
        async with self.lock:
            # Outcomes of lost jobs are refused one by one, which needs no error here.
            with contextlib.suppress(LeaseLost):
                await self.agree()

    async def agree(self) -> None:
        """Connect, register and reconcile. The caller may send its next call without awaiting."""
        if not self.is_registered:
            await self._register()
        # A claim that opened the socket by itself would reach a restarted Redis before the list of
        # what is in hand, and be given the same jobs once more.
        while self.needs_reconcile or not self._worker.job_store.connection.is_open:
            await self._worker.job_store.connection.ensure_open()
            self.needs_reconcile = False
            try:
                await self._reconcile()
            # A cancellation too: Redis may have the list or not, so the worker sends it again.
            except BaseException:
                self.needs_reconcile = True
                raise

    async def _register(self) -> None:
        worker, connection = self._worker, self._worker.job_store.connection
        self._loop_monitor.note_turn()
        tasks = {attempt.task for attempt in self._book if attempt.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        while True:
            self.identity = self._build_identity(self.identity.incarnation)
            renewal = await worker.job_store.renew_leases([self.build_beat(is_registration=True)])
            if renewal.replies[0].state is not LeaseState.TAKEN:
                break
            if not self._may_rename:
                raise LeaseLost(
                    f"Another living process is registered as worker {worker.worker_id}. "
                    "Give each worker an id of its own; if that process has died, its lease "
                    f"ends within {worker.settings.worker_lease_seconds:g} s."
                )
            worker.worker_id = build_worker_id()
        self.is_registered = True
        connection.on_connect = self.note_reconnect
        # A claim that follows its slot to another node would reach it before the list of what is in hand.
        connection.resends_refused = False
        if not self.lease.is_running:
            self.lease.start()

    def _build_identity(self, incarnation: str) -> WorkerIdentity:
        pod_uid, pool = os.environ.get("RRQ_POD_UID", ""), os.environ.get("RRQ_POOL", "")
        return WorkerIdentity(self._worker.worker_id, incarnation, pod_uid, pool)

    async def _reconcile(self) -> None:
        store = self._worker.job_store
        renewal = await store.renew_leases([self.build_beat()])
        if renewal.replies[0].state is not LeaseState.ALIVE:
            self._lose_all()
            await self._register()
        # Before anything is claimed: a Redis that came back empty knows of no limit.
        await self._restore_limits()
        owned, reported = self._book.owned(), self._book.recently_reported()
        # In the order in which they were made: a job that is in hand may have been tried before.
        in_hand = [*(claimed for claimed, _ in reported), *(attempt.claimed for attempt in owned)]
        result = await store.reconcile_worker(self.identity, in_hand)
        if result.lease_lost:
            self.needs_reconcile = True
            return
        for position, attempt in enumerate(owned, len(reported)):
            if position in result.lost:
                self._book.lose(attempt)
        if result.given_back or result.set_up_again or result.lost:
            logger.warning(
                "worker and Redis disagreed about jobs in hand",
                extra={
                    "worker_id": self._worker.worker_id,
                    "given_back": result.given_back,
                    "set_up_again": result.set_up_again,
                    "lost": len(result.lost),
                },
            )
        again = [outcome for position, (_, outcome) in enumerate(reported) if position not in result.lost]
        if again:
            await store.finish_jobs(self._worker.worker_id, again)

    def _lose_all(self) -> None:
        owned = self._book.owned()
        if owned:
            logger.error(
                "lease lost, jobs in hand were given to others",
                extra={"worker_id": self._worker.worker_id, "jobs": len(owned)},
            )
        for attempt in owned:
            self._book.lose(attempt)
        self.is_registered = False

    def describe_health(self) -> dict[str, object]:
        """Return the health record; also called from the thread that renews the lease."""
        worker = self._worker
        return build_health_record(
            worker.worker_id,
            worker.status,
            len(worker._running_tasks),
            worker.settings.worker_concurrency,
            worker.queues,
        )

    def build_beat(self, *, is_registration: bool = False) -> Beat:
        worker = self._worker
        return Beat(
            self.identity,
            worker.settings.worker_concurrency,
            worker.queues,
            self.describe_health(),
            worker.settings.health_ttl_seconds,
            is_registration,
            worker.job_registry.get_registered_functions() if is_registration else (),
        )

    def _describe(self) -> Beat | None:
        """Called in the thread that renews the lease."""
        is_hung = self._loop_monitor.is_hung(self._book.latest_deadline)
        return None if is_hung else self.build_beat()

    def _pass_on(self, beat: Beat, renewal: Renewal) -> None:
        """Called in the thread that renews the lease."""
        self._loop_monitor.call_in_loop(self.hear, beat.worker.worker_id, beat.health, renewal.replies[0])

    def hear(self, worker_id: str, health: Mapping[str, object], reply: BeatReply) -> None:
        """Act on the answer to a heartbeat that was sent for this worker."""
        worker = self._worker
        if not self.is_registered or worker_id != worker.worker_id:
            return
        if reply.state is not LeaseState.ALIVE:
            self.needs_reconcile = True
            self._lose_all()
            return
        # Claims and outcomes are on their way all the time; only a difference that lasts is one.
        self._mismatches = self._mismatches + 1 if reply.active_count != len(self._book) else 0
        # What has been in hand since before the beat was sent must be counted in its answer. If it is not, Redis has
        # lost it from its list, and would return it to no queue if this process died now.
        before_beat = monotonic() - worker.settings.lease_renewal_seconds
        if self._mismatches >= 2 or reply.active_count < self._book.count_unreported_since(before_beat):
            self.needs_reconcile = True
        for job_id in reply.cancel_job_ids:
            for attempt in self._book.find_by_id(job_id):
                if not attempt.is_cancel_requested and attempt.task is not None:
                    attempt.is_cancel_requested = True
                    attempt.task.cancel()
        worker._hooks.trigger_soon("on_worker_heartbeat", worker_id, dict(health))

    async def stop(self) -> None:
        """End the lease and deregister; jobs that could not be stopped go back when this process has ended."""
        was_registered, self.is_registered = self.is_registered, False
        await self.lease.stop()
        if not was_registered:
            return
        store, owned = self._worker.job_store, self._book.owned()
        store.connection.on_connect = None
        store.connection.resends_refused = True
        # What could not be stopped goes on until the process ends; it has nothing more to report.
        for attempt in owned:
            attempt.is_lost = True
        try:
            if self.needs_reconcile:
                await store.reconcile_worker(self.identity, [attempt.claimed for attempt in owned])
            remaining = await store.deregister_worker(self.identity)
        except LOST_REPLY_ERRORS as error:
            logger.warning("worker not deregistered, Redis gave no answer", extra={"error": str(error)})
            return
        if remaining:
            logger.warning(
                "jobs that ignored their cancellation are requeued when this process has ended",
                extra={"worker_id": self._worker.worker_id, "jobs": remaining},
            )
