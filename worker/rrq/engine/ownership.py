"""Keeps what this process holds and what Redis thinks it holds the same.

Registration, claims, and everything that follows from a lease that was lost, an answer that never
came, or a Redis that restarted. Running jobs and their outcomes are the business of ``worker.py``.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from rrq.broker.connection import LOST_REPLY_ERRORS, REDIS_ERRORS
from rrq.broker.messages import (
    Beat,
    BeatReply,
    Claim,
    ClaimCode,
    ClaimedJob,
    ClaimRequest,
    LeaseState,
    Outcome,
    OutcomeKind,
    Renewal,
    Verdict,
    WorkerIdentity,
)
from rrq.engine.attempts import Attempt, AttemptBook
from rrq.engine.lease import Lease, LeaseKeeper
from rrq.engine.measuring import measure_claim, measure_end
from rrq.engine.reporter import Reporter
from rrq.exc import LeaseLost, UnreadableJob
from rrq.job import Job
from rrq.jobs.codec import parse_claimed_job
from rrq.registry import JobRegistry
from rrq.runtime.metrics import Meter
from rrq.settings import RRQSettings
from rrq.store import JobStore

logger = logging.getLogger(__name__)

# What was cancelled gets this long to end before the worker claims again.
_CANCEL_SECONDS = 1.0
# Of many things that are wrong in the same way, a line of the log names so many.
_NAMED_IN_LOG = 10
# Of jobs that must all be named, one line of the log has so many.
_LISTED_IN_LOG = 100


def _text(job_id: str | bytes) -> str:
    return job_id.decode("utf-8", "backslashreplace") if isinstance(job_id, bytes) else job_id


def timeout_of(job: Job, settings: RRQSettings) -> float:
    """Return how many seconds one attempt at a job may take; 0 is a real value."""
    if job.job_timeout_seconds is None:
        return settings.default_job_timeout_seconds
    return job.job_timeout_seconds


class Host(Protocol):
    """What ownership needs to know of its worker; read anew at each use."""

    settings: RRQSettings
    job_registry: JobRegistry
    job_store: JobStore
    worker_id: str
    queues: list[str]

    def describe_health(self) -> dict[str, object]: ...
    def rename(self) -> bool: ...
    async def restore_limits(self) -> None: ...


class Ownership:
    """The attempts of one worker process, under one lease."""

    def __init__(self, host: Host, uniform: Callable[[float, float], float]) -> None:
        self._host = host
        self.incarnation = secrets.token_hex(16)
        self.book = AttemptBook()
        self.reporter = Reporter(
            lambda: host.job_store, lambda: host.worker_id, self._agree_before_report, self._on_acknowledged
        )
        #: Renewed from a thread of this process, unless a supervisor puts its own in here.
        self.lease: Lease = LeaseKeeper(lambda: host.job_store.settings, self._describe, self._tell, uniform)
        self.meter = Meter()
        #: Outcomes that Redis has taken, of whatever kind.
        self.finished = 0
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_registered = False
        self._needs_resync = False
        self._is_hung = False
        self._mismatches = 0
        self._claims = 0
        self._claim_sent_at = 0.0
        self._suspects: list[str] = []
        self.last_claim: Claim | None = None
        #: Monotonic time of the last turn of the event loop, as far as the lease is concerned.
        self.last_turn = monotonic()
        #: Called in the event loop with the health record and the answer of each heartbeat.
        self.on_beat: Callable[[Mapping[str, object], BeatReply], None] | None = None
        #: Called with the latest deadline of the jobs in hand, before the first of them is started.
        self.on_deadline: Callable[[float], None] | None = None
        #: Called when the first outcome has been stored: this process is able to work.
        self.on_first_finish: Callable[[], None] | None = None

    @property
    def is_registered(self) -> bool:
        return self._is_registered

    @property
    def identity(self) -> WorkerIdentity:
        pod_uid, pool = os.environ.get("RRQ_POD_UID", ""), os.environ.get("RRQ_POOL", "")
        return WorkerIdentity(self._host.worker_id, self.incarnation, pod_uid, pool)

    @property
    def may_claim(self) -> bool:
        """False while a suspect runs, which must be alone."""
        return not self.book.has_suspect()

    @property
    def is_making_room(self) -> bool:
        """Whether suspects wait until this worker has nothing else in hand; until then it claims nothing."""
        return bool(self._suspects)

    # Claiming

    async def claim(
        self,
        count: int,
        queues: Sequence[str],
        *,
        wait_ms: int = 0,
        job_ids: Sequence[str] = (),
    ) -> list[Attempt]:
        """Claim jobs and take them in hand. Raises a Redis error or LeaseLost."""
        async with self._lock:
            if self._suspects and not job_ids:
                attempts = await self._claim(1, queues, 0, self._suspects)
                if attempts or self._suspects:
                    return attempts
            return await self._claim(count, queues, wait_ms, job_ids)

    async def _claim(
        self, count: int, queues: Sequence[str], wait_ms: int, job_ids: Sequence[str]
    ) -> list[Attempt]:
        self.last_claim = None
        await self._agree()
        claim = await self._send_claim(count, queues, wait_ms, job_ids)
        if claim.code is ClaimCode.LEASE_LOST:
            self._needs_resync = True
            await self._agree()
            claim = await self._send_claim(count, queues, wait_ms, job_ids)
            if claim.code is ClaimCode.LEASE_LOST:
                raise LeaseLost(f"Worker {self._host.worker_id} could not renew its lease.")
        self.last_claim = claim
        self._note(claim)
        measure_claim(self.meter, claim)
        attempts = [attempt for claimed in claim.jobs if (attempt := self._take_in_hand(claimed)) is not None]
        if attempts:
            self._extend_deadline(attempts)
        return attempts

    def _extend_deadline(self, attempts: list[Attempt]) -> None:
        settings = self._host.settings
        longest_seconds = max(timeout_of(attempt.job, settings) for attempt in attempts)
        self.book.latest_deadline = max(self.book.latest_deadline, monotonic() + longest_seconds)
        if self.on_deadline is not None:
            self.on_deadline(self.book.latest_deadline)

    async def _send_claim(
        self, count: int, queues: Sequence[str], wait_ms: int, job_ids: Sequence[str]
    ) -> Claim:
        self._claims += 1
        request = ClaimRequest(
            self.identity,
            # Unique in the fleet whatever Redis forgets: never a counter kept there.
            token_base=f"{self.incarnation}.{self._claims}",
            queues=queues,
            count=count,
            wait_ms=wait_ms,
            job_ids=job_ids,
            weights=() if job_ids else self._weights_of(queues),
        )
        self._claim_sent_at = monotonic()
        try:
            return await self._host.job_store.claim_jobs(request)
        except BaseException:
            # Jobs may be ours now without our knowing; the next agreement gives them back.
            self._needs_resync = True
            self.meter.count("rrq_claims_total", "failed")
            raise

    def _weights_of(self, queues: Sequence[str]) -> list[float]:
        """Return the share of each queue; nothing where they are served in order."""
        weights = self._host.settings.worker_queue_weights
        if not weights or len(queues) < 2:
            return []
        short = self._host.job_store.keys.queue_name
        by_name = {short(name): weight for name, weight in weights.items()}
        return [by_name.get(short(name), 1.0) for name in queues]

    def _note(self, claim: Claim) -> None:
        if claim.jobs and claim.jobs[0].is_suspect:
            # The others that room was made for are next: with empty hands one can run them all in turn.
            taken = claim.jobs[0].job_id
            self._suspects = [job_id for job_id in self._suspects if job_id.encode() != taken]
        else:
            self._suspects = claim.make_room_for
        # There may be thousands: one line for all of them, with a few that one can look for.
        if claim.missing:
            logger.warning(
                "queue entries without a job dropped",
                extra={"entries": len(claim.missing), "job_ids": claim.missing[:_NAMED_IN_LOG]},
            )
        if claim.unreadable:
            logger.error(
                "jobs dead-lettered or queues skipped, their keys are of the wrong type",
                extra={"entries": len(claim.unreadable), "keys": claim.unreadable[:_NAMED_IN_LOG]},
            )

    def _take_in_hand(self, claimed: ClaimedJob) -> Attempt | None:
        try:
            job = parse_claimed_job(claimed.job_id, claimed.fields)
        except UnreadableJob as error:
            self._bury_unreadable(claimed, error)
            return None
        attempt = Attempt(job, claimed)
        attempt.claimed_at = self._claim_sent_at
        self.book.add(attempt)
        return attempt

    def _bury_unreadable(self, claimed: ClaimedJob, error: UnreadableJob) -> None:
        logger.error("job cannot be read, dead-lettered", extra={"error": str(error)})
        settings = self._host.settings
        self.reporter.submit(
            None,
            Outcome(
                claimed.job_id,
                claimed.token,
                OutcomeKind.DEAD,
                str(error),
                settings.default_dlq_result_ttl_seconds,
                self._host.job_store.keys.dlq_key(settings.default_dlq_name),
            ),
        )

    # Agreement with Redis

    def note_reconnect(self) -> None:
        """A new socket may mean a restarted Redis: agree with it before the next claim."""
        self._needs_resync = True

    async def agree_if_needed(self) -> None:
        """Do what a claim would do first, for a worker that has no free slot to claim for."""
        if self._needs_resync:
            async with self._lock:
                await self._agree()

    def may_have_lost(self, attempt: Attempt) -> bool:
        """Tell whether so long after its claim a job may have been given to others.

        Heard-of heartbeats are no proof: after a stop the answers to those before it are still to be read.
        """
        settings = self._host.settings
        shortest_seconds = settings.worker_lease_seconds - settings.lease_renewal_seconds
        return monotonic() - attempt.claimed_at > shortest_seconds

    async def may_start(self, attempt: Attempt) -> bool:
        """Ask Redis whether a job is still this worker's; if it cannot be asked, the job goes back."""
        self._needs_resync = True
        try:
            await self.agree_if_needed()
        except (*REDIS_ERRORS, LeaseLost):
            self.give_up(attempt, "The lease may have ended before the job was started. Re-queued.")
            return False
        return not attempt.is_lost

    async def _agree_before_report(self) -> None:
        """Have a Redis that may have restarted know the claims before it is told how they ended."""
        if self._is_registered and (self._needs_resync or not self._host.job_store.connection.is_open):
            async with self._lock:
                # What was lost is refused one by one, which is all there is to say about it.
                with contextlib.suppress(LeaseLost):
                    await self._agree()

    async def _agree(self) -> None:
        """Return with a socket on which nothing is left to agree on; nothing is awaited after that."""
        if not self._is_registered:
            await self._register()
        # A claim that opened the socket by itself would reach a restarted Redis before the list of
        # what is in hand, and be given the same jobs once more.
        while self._needs_resync or not self._host.job_store.connection.is_open:
            await self._host.job_store.connection.ensure_open()
            self._needs_resync = False
            try:
                await self._resync()
            except BaseException:
                self._needs_resync = True
                raise

    async def _register(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.last_turn = monotonic()
        tasks = {attempt.task for attempt in self.book if attempt.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        while True:
            beat = self._build_beat(is_registration=True)
            renewal = await self._host.job_store.renew_leases([beat])
            if renewal.replies[0].state is not LeaseState.TAKEN:
                break
            if not self._host.rename():
                raise LeaseLost(
                    f"Another living process is registered as worker {self._host.worker_id}. "
                    "Give each worker an id of its own; if that process has died, its lease "
                    f"ends within {self._host.settings.worker_lease_seconds:g} s."
                )
        self._is_registered = True
        self._host.job_store.connection.on_connect = self.note_reconnect
        # A claim that follows its slot to another node would reach it before the list of what is in hand.
        self._host.job_store.connection.resends_refused = False
        if not self.lease.is_running:
            self.lease.start()

    async def _resync(self) -> None:
        store = self._host.job_store
        renewal = await store.renew_leases([self._build_beat()])
        if renewal.replies[0].state is not LeaseState.ALIVE:
            self._lose_all()
            await self._register()
        # Before anything is claimed: a Redis that came back empty knows of no limit.
        await self._host.restore_limits()
        owned, reported = self.book.owned(), self.book.recently_reported()
        # In the order in which they were made: a job that is in hand may have been tried before.
        held = [*(claimed for claimed, _ in reported), *(attempt.claimed for attempt in owned)]
        result = await store.reconcile_worker(self.identity, held)
        if result.lease_lost:
            self._needs_resync = True
            return
        for position, attempt in enumerate(owned, len(reported)):
            if position in result.lost:
                self._lose(attempt)
        if result.given_back or result.set_up_again or result.lost:
            logger.warning(
                "worker and Redis disagreed about jobs in hand",
                extra={
                    "worker_id": self._host.worker_id,
                    "given_back": result.given_back,
                    "set_up_again": result.set_up_again,
                    "lost": len(result.lost),
                },
            )
        again = [outcome for position, (_, outcome) in enumerate(reported) if position not in result.lost]
        if again:
            await store.finish_jobs(self._host.worker_id, again)

    def _lose_all(self) -> None:
        owned = self.book.owned()
        if owned:
            logger.error(
                "lease lost, jobs in hand were given to others",
                extra={"worker_id": self._host.worker_id, "jobs": len(owned)},
            )
        for attempt in owned:
            self._lose(attempt)
        self._is_registered = False

    def _lose(self, attempt: Attempt) -> None:
        attempt.is_lost = True
        if attempt.task is None:
            self.book.drop(attempt)
        else:
            attempt.task.cancel()

    def _on_acknowledged(self, batch: Sequence[tuple[Attempt, Outcome, Verdict]]) -> None:
        reported = []
        is_first = self.finished == 0
        self.finished += len(batch)
        if is_first and self.on_first_finish is not None:
            self.on_first_finish()
        for attempt, outcome, verdict in batch:
            self.book.drop(attempt)
            measure_end(self.meter, self._host.job_registry, attempt, outcome, verdict)
            if verdict is Verdict.FENCED:
                logger.warning(
                    "late outcome refused, the job had been given to another attempt",
                    extra={"job_id": attempt.job.id, "worker_id": self._host.worker_id},
                )
                continue
            # What the job was made of is not needed to recognise it, and may be large.
            attempt.claimed.fields.clear()
            reported.append((attempt.claimed, outcome))
        if reported:
            self.book.keep_reported(reported)

    # Heartbeat; the first two run in the thread of the lease keeper

    def _describe(self) -> Beat | None:
        limit_seconds = self._host.settings.worker_loop_stall_limit_seconds
        hung_at = max(self.book.latest_deadline, self.last_turn + limit_seconds)
        is_hung = monotonic() > hung_at
        if is_hung and not self._is_hung:
            logger.critical(
                "event loop does not turn, lease is no longer renewed",
                extra={"worker_id": self._host.worker_id},
            )
        self._is_hung = is_hung
        return None if is_hung else self._build_beat()

    def _tell(self, beat: Beat, renewal: Renewal) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.hear, beat.worker.worker_id, beat.health, renewal.replies[0])

    def hear(self, worker_id: str, health: Mapping[str, object], reply: BeatReply) -> None:
        """Act on the answer to a heartbeat that was sent for this worker."""
        if not self._is_registered or worker_id != self._host.worker_id:
            return
        if reply.state is not LeaseState.ALIVE:
            self._needs_resync = True
            self._lose_all()
            return
        # Claims and outcomes are on their way all the time; only a difference that lasts is one.
        self._mismatches = self._mismatches + 1 if reply.active_count != len(self.book) else 0
        # What has been in hand since before the beat was sent must be counted in its answer. If it is not, Redis has
        # lost sight of it, and would give it to nobody if this process died now.
        before_beat = monotonic() - self._host.settings.lease_renewal_seconds
        if self._mismatches >= 2 or reply.active_count < self.book.held_since(before_beat):
            self._needs_resync = True
        for job_id in reply.cancel_job_ids:
            for attempt in self.book.find_by_id(job_id):
                if not attempt.is_told_to_cancel and attempt.task is not None:
                    attempt.is_told_to_cancel = True
                    attempt.task.cancel()
        if self.on_beat is not None:
            self.on_beat(health, reply)

    def _build_beat(self, *, is_registration: bool = False) -> Beat:
        settings = self._host.settings
        return Beat(
            self.identity,
            settings.worker_concurrency,
            self._host.queues,
            self._host.describe_health(),
            settings.health_ttl_seconds,
            is_registration,
            self._host.job_registry.get_registered_functions() if is_registration else (),
        )

    # The end

    async def release(self, flush_seconds: float) -> None:
        """Hand back what never started, see outcomes stored, and say goodbye to Redis."""
        for attempt in self.book.owned():
            if attempt.task is None:
                self.give_up(attempt, "Worker stopped before the job was started. Re-queued.")
        await self.reporter.flush(flush_seconds)
        self._tell_unreported(await self.reporter.stop())
        if not self._is_registered:
            await self.lease.stop()
            return
        self._is_registered = False
        await self.lease.stop()
        store = self._host.job_store
        store.connection.on_connect = None
        store.connection.resends_refused = True
        held = [attempt.claimed for attempt in self.book.owned()]
        # What could not be stopped goes on until the process ends; it has nothing more to report.
        for attempt in self.book.owned():
            attempt.is_lost = True
        try:
            if self._needs_resync:
                await store.reconcile_worker(self.identity, held)
            remaining = await store.deregister_worker(self.identity)
        except LOST_REPLY_ERRORS as error:
            logger.warning("worker left without telling Redis", extra={"error": str(error)})
            return
        if remaining:
            logger.warning(
                "jobs that could not be stopped are given back when this process has ended",
                extra={"worker_id": self._host.worker_id, "jobs": remaining},
            )

    def _tell_unreported(self, outcomes: Sequence[Outcome]) -> None:
        # All of them: their work was done, and is done again.
        job_ids = [_text(outcome.job_id) for outcome in outcomes]
        for start in range(0, len(job_ids), _LISTED_IN_LOG):
            logger.error(
                "outcomes not stored before the worker had to end; their jobs run again after its lease",
                extra={
                    "worker_id": self._host.worker_id,
                    "jobs": len(job_ids),
                    "job_ids": job_ids[start : start + _LISTED_IN_LOG],
                },
            )

    def give_up(self, attempt: Attempt, reason: str) -> None:
        """Hand back a job that nobody here runs any more, at its original due time, uncounted.

        Does nothing when its end was reported already.
        """
        if attempt.is_lost:
            self.book.drop(attempt)
        elif not attempt.is_reported:
            attempt.is_reported = True
            self.reporter.submit(attempt, Outcome(attempt.job.id, attempt.token, OutcomeKind.BACK, reason))

    async def stop_renewing(self) -> None:
        """End the thread of the lease, for a worker that is closed without having wound down."""
        await self.lease.stop()
