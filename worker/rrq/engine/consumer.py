"""Claims jobs from their queues and stores the outcomes of attempts: the calls to Redis that each job needs.

While one batch of outcomes is on its way the next one gathers, so that a busy worker sends large batches. Outcomes
are sent again until Redis has acknowledged them. What an outcome is, ``executor.py`` and ``failures.py`` decide;
that Redis and this worker agree about the jobs in hand is the business of ``registration.py``.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from time import monotonic

from rrq.broker.connection import REDIS_ERRORS, is_script_failure
from rrq.broker.messages import Claim, ClaimCode, ClaimedJob, ClaimRequest, Outcome, OutcomeKind, Verdict
from rrq.engine.attempts import Attempt, AttemptBook, choose_timeout_seconds
from rrq.engine.host import Host
from rrq.engine.registration import Registration
from rrq.exc import LeaseLost, UnreadableJob
from rrq.jobs.codec import parse_claimed_job, storable_text
from rrq.runtime.backoff import idle_delay_seconds, jittered_delay_seconds

logger = logging.getLogger(__name__)

_LARGEST_BATCH = 500
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0
# While the worker drains: Redis may come back for the last moment of its grace period.
_DRAINING_RETRY_SECONDS = 0.3
# Of many things that are wrong in the same way, a line of the log names so many.
_NAMED_IN_LOG = 10

#: (attempt or None when the job was never claimed, what to store, what waits for the verdict)
_Entry = tuple[Attempt | None, Outcome, "asyncio.Future[Verdict]"]


class Consumer:
    """Claims jobs for one worker and sends the outcomes of its attempts."""

    def __init__(self, worker: Host, book: AttemptBook, registration: Registration) -> None:
        self._worker = worker
        self._book = book
        self._registration = registration
        self.last_claim: Claim | None = None
        self._claims_sent = 0
        self._suspects: list[str] = []
        self._waiting: list[_Entry] = []
        self._in_flight: list[_Entry] = []
        self._sender: asyncio.Task[None] | None = None
        self._is_draining = asyncio.Event()
        #: Set when an attempt has ended: its slot may be claimed for while the outcome is on its way.
        self.slot_freed = asyncio.Event()

    @property
    def is_making_room(self) -> bool:
        """Whether suspects wait until this worker has nothing else in hand; until then it claims nothing."""
        return bool(self._suspects)

    async def claim(
        self, count: int, queues: Sequence[str], *, wait_ms: int = 0, job_ids: Sequence[str] = ()
    ) -> list[Attempt]:
        """Claim jobs and take them in hand. Raises a Redis error or LeaseLost."""
        async with self._registration.lock:
            if self._suspects and not job_ids:
                attempts = await self._claim(1, queues, 0, self._suspects)
                if attempts or self._suspects:
                    return attempts
            return await self._claim(count, queues, wait_ms, job_ids)

    async def _claim(
        self, count: int, queues: Sequence[str], wait_ms: int, job_ids: Sequence[str]
    ) -> list[Attempt]:
        self.last_claim = None
        claim, sent_at = await self._send_claim(count, queues, wait_ms, job_ids)
        if claim.code is ClaimCode.LEASE_LOST:
            self._registration.needs_reconcile = True
            claim, sent_at = await self._send_claim(count, queues, wait_ms, job_ids)
            if claim.code is ClaimCode.LEASE_LOST:
                raise LeaseLost(f"Worker {self._worker.worker_id} could not renew its lease.")
        self.last_claim = claim
        self._note(claim)
        attempts = [
            attempt for claimed in claim.jobs if (attempt := self._take_in_hand(claimed, sent_at)) is not None
        ]
        if self._worker.observer is not None:
            self._worker.observer.on_claim(claim, self._book.latest_deadline)
        return attempts

    async def _send_claim(
        self, count: int, queues: Sequence[str], wait_ms: int, job_ids: Sequence[str]
    ) -> tuple[Claim, float]:
        """Return the answer to a claim and the monotonic time at which it was sent."""
        worker, registration, connection = self._worker, self._registration, self._worker.job_store.connection
        if registration.needs_reconcile or not registration.is_registered or not connection.is_open:
            await registration.agree()
        self._claims_sent += 1
        request = ClaimRequest(
            registration.identity,
            # Unique in the fleet whatever Redis forgets: never a counter kept there.
            token_base=f"{registration.identity.incarnation}.{self._claims_sent}",
            queues=queues,
            count=count,
            wait_ms=wait_ms,
            job_ids=job_ids,
            weights=() if job_ids else self._weights_of(queues),
        )
        sent_at = monotonic()
        try:
            return await worker.job_store.claim_jobs(request), sent_at
        # Redis may have claimed jobs for this worker; reconciling requeues them. A cancellation hides the reply too.
        except BaseException:
            registration.needs_reconcile = True
            if worker.observer is not None:
                worker.observer.on_failed_claim()
            raise

    def _weights_of(self, queues: Sequence[str]) -> list[float]:
        """Return the share of each queue; nothing where they are served in order."""
        weights = self._worker.settings.worker_queue_weights
        if not weights or len(queues) < 2:
            return []
        short = self._worker.job_store.keys.queue_name
        by_name = {short(name): weight for name, weight in weights.items()}
        return [by_name.get(short(name), 1.0) for name in queues]

    def _note(self, claim: Claim) -> None:
        if claim.jobs and claim.jobs[0].is_suspect:
            # The other suspects come next: with empty hands one worker can run them all in turn.
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

    def _take_in_hand(self, claimed: ClaimedJob, sent_at: float) -> Attempt | None:
        try:
            job = parse_claimed_job(claimed.job_id, claimed.fields)
        except UnreadableJob as error:
            logger.error("job cannot be read, dead-lettered", extra={"error": str(error)})
            self.submit(None, self._build_burial(claimed.job_id, claimed.token, str(error)))
            return None
        attempt = Attempt(job, claimed, sent_at)
        self._book.add(attempt, choose_timeout_seconds(job, self._worker.settings))
        return attempt

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The task that sends what is not acknowledged yet; empty when there is nothing to send."""
        return set() if self._sender is None or self._sender.done() else {self._sender}

    @property
    def unacknowledged(self) -> int:
        """How many outcomes Redis has not answered yet."""
        return len(self._waiting) + len(self._in_flight)

    def submit(self, attempt: Attempt | None, outcome: Outcome) -> "asyncio.Future[Verdict]":
        """Have an outcome stored; the future gets what Redis made of it."""
        loop = asyncio.get_running_loop()
        verdict = loop.create_future()
        self._waiting.append((attempt, outcome, verdict))
        if self._sender is None or self._sender.done():
            # A task starts in the next turn of the loop: all that ends in this turn travels together.
            self._sender = loop.create_task(self._send_all(), name="rrq-outcomes")
        self.slot_freed.set()
        return verdict

    def hand_back(self, attempt: Attempt, reason: str) -> None:
        """Return a job that does not run to its queue, due as before and uncounted, unless its end was reported."""
        if attempt.is_lost:
            self._book.drop(attempt)
        elif not attempt.is_reported:
            attempt.is_reported = True
            self.submit(attempt, Outcome(attempt.job.id, attempt.token, OutcomeKind.BACK, reason))

    def hurry(self) -> None:
        """Send again now, and more often from now on: the worker drains."""
        self._is_draining.set()

    async def stop(self, flush_seconds: float) -> list[Outcome]:
        """Send outcomes for so long, and return those that Redis has not acknowledged. Their jobs run again."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=flush_seconds)
        for task in self.tasks:
            task.cancel()
            await asyncio.wait({task})
        given_up = [*self._in_flight, *self._waiting]
        for _, _, verdict in given_up:
            verdict.cancel()
        self._in_flight, self._waiting = [], []
        self._is_draining.clear()
        return [outcome for _, outcome, _ in given_up]

    async def _send_all(self) -> None:
        while self._waiting:
            self._in_flight = self._waiting[:_LARGEST_BATCH]
            del self._waiting[:_LARGEST_BATCH]
            await self._send(self._in_flight)
            self._in_flight = []

    async def _send(self, batch: list[_Entry]) -> None:
        outcomes = [outcome for _, outcome, _ in batch]
        worker, registration, failures = self._worker, self._registration, 0
        while True:
            try:
                if registration.needs_reconcile or not worker.job_store.connection.is_open:
                    await registration.agree_before_report()
                verdicts = await worker.job_store.finish_jobs(worker.worker_id, outcomes)
                break
            # Whatever goes wrong on the way, an outcome is not given up.
            except Exception as error:
                if is_script_failure(error):
                    await self._send_apart(batch, str(error))
                    return
                if not isinstance(error, REDIS_ERRORS):
                    # Perhaps the answer to another call.
                    logger.exception("outcomes not stored yet, their answer is not understood")
                    await worker.job_store.connection.aclose()
                failures += 1
                pause_seconds = self._choose_pause(failures)
                logger.warning(
                    "outcomes not stored yet, Redis gives no answer; trying again",
                    extra={"jobs": len(batch), "error": str(error), "pause_seconds": pause_seconds},
                )
                await self._pause(pause_seconds)
        self._settle(batch, verdicts)

    def _choose_pause(self, failures: int) -> float:
        delay_seconds = _DRAINING_RETRY_SECONDS
        if not self._is_draining.is_set():
            # Back before others may claim what a restarted Redis has forgotten, which is one renewal later.
            longest_seconds = min(_LONGEST_RETRY_SECONDS, self._worker.settings.lease_renewal_seconds / 2)
            delay_seconds = idle_delay_seconds(failures, _FIRST_RETRY_SECONDS, longest_seconds)
        return jittered_delay_seconds(delay_seconds, 0.5, random.uniform)

    async def _pause(self, seconds: float) -> None:
        if self._is_draining.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_draining.wait()

    async def _send_apart(self, batch: list[_Entry], complaint: str) -> None:
        """A script failed on this batch: find the outcome that Redis cannot take, and dead-letter its job."""
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
        reason = storable_text(f"Redis could not store the outcome: {complaint}")
        await self._send([(attempt, self._build_burial(outcome.job_id, outcome.token, reason), waiter)])

    def _build_burial(self, job_id: str | bytes, token: str, reason: str) -> Outcome:
        settings, keys = self._worker.settings, self._worker.job_store.keys
        ttl_seconds = settings.default_dlq_result_ttl_seconds
        dlq_key = keys.dlq_key(settings.default_dlq_name)
        return Outcome(job_id, token, OutcomeKind.DEAD, reason, ttl_seconds, dlq_key)

    def _settle(self, batch: list[_Entry], verdicts: list[Verdict]) -> None:
        observer, reported = self._worker.observer, []
        for (attempt, outcome, waiter), verdict in zip(batch, verdicts, strict=True):
            if attempt is not None:
                self._book.drop(attempt)
                if observer is not None:
                    observer.on_end(attempt, outcome, verdict)
                if verdict is Verdict.FENCED:
                    logger.warning(
                        "late outcome refused, the job had been given to another attempt",
                        extra={"job_id": attempt.job.id, "worker_id": self._worker.worker_id},
                    )
                else:
                    # What the job was made of is not needed to recognise it, and may be large.
                    attempt.claimed.fields.clear()
                    reported.append((attempt.claimed, outcome))
            if not waiter.done():
                waiter.set_result(verdict)
        if reported:
            self._book.keep_reported(reported)
