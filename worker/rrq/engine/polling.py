"""Decides when a worker claims jobs and how many, starts them, and waits while there is nothing to do.

The claim itself is sent by ``consumer.py``, the jobs are run by ``executor.py``, and whether a burst is over is
decided in ``burst.py``.
"""

import asyncio
import functools
import logging
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Claim, ClaimCode
from rrq.engine.attempts import Attempt, AttemptBook
from rrq.engine.burst import Burst, BurstStep
from rrq.engine.consumer import Consumer
from rrq.engine.failures import INTERRUPTED, describe_job
from rrq.engine.host import Host
from rrq.engine.registration import Registration
from rrq.exc import BurstFailed, LeaseLost
from rrq.job import Job, JobStatus
from rrq.runtime.backoff import idle_delay_seconds

logger = logging.getLogger(__name__)

NOT_STARTED = "Job could not be started. Re-queued."
# While Redis prepares one batch, this process runs another: a claim for all slots at once would make
# them wait for each other in turns. Below a certain size a batch is not worth its round trip.
_BATCHES = 2
_SMALL_BATCH = 16
# A cut connection is opened again at once; a Redis that stays away is tried once a second.
_FIRST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 1.0
# A waiting worker is counted as waiting a little longer than it blocks, because the answer to its
# claim has to reach it first.
_WAIT_MARGIN_SECONDS = 0.5
# In a roll-out an old worker claims deferred jobs this much later than the others, or its empty hands would win each race
# for the jobs that it has to defer again.
_SECONDS_BEHIND_OTHERS = 0.2


class Poller:
    """Claims and starts jobs for the free slots of one worker."""

    def __init__(
        self,
        worker: Host,
        book: AttemptBook,
        registration: Registration,
        consumer: Consumer,
        burst: Burst,
        missing_functions: Collection[str],
    ) -> None:
        self._worker = worker
        self._book = book
        self._registration = registration
        self._consumer = consumer
        self._burst = burst
        self._missing_functions = missing_functions
        # Made once and not per job; it is made anew when an application replaces the semaphore.
        self._clean_up = functools.partial(worker._task_cleanup, semaphore=worker._semaphore)
        self._empty_polls = 0
        self._next_delay_seconds = worker.settings.default_poll_delay_seconds
        #: A wake-up ended the last wait, so that this worker expects to find a job.
        self._was_woken = False
        #: Monotonic time since which Redis gives no answer; None while it does.
        self.failing_since: float | None = None
        self._failures = 0

    async def run(self) -> None:
        """Claim and start jobs until shutdown or the end of a burst."""
        worker = self._worker
        shutdown = asyncio.ensure_future(worker._shutdown_event.wait())
        shutdown.add_done_callback(lambda _: self._consumer.slot_freed.set())
        try:
            while not worker._shutdown_event.is_set():
                try:
                    if await self.run_round():
                        break
                except BurstFailed:
                    raise
                # The loop survives whatever a round raises; overridden methods are foreign code.
                except Exception:
                    logger.exception("worker round failed", extra={"worker_id": worker.worker_id})
                    await self.pause(worker._calculate_jittered_delay(_LONGEST_RETRY_SECONDS))
        finally:
            shutdown.cancel()

    async def run_round(self) -> bool:
        """Poll once, or wait for a free slot; True when a burst is over."""
        worker, consumer = self._worker, self._consumer
        free = self.count_free_slots()
        if free <= 0 or self._book.has_suspect():
            worker.status = "idle (concurrency limit)"
            await self._wait_for_slot()
            try:
                await self._registration.reconcile_if_needed()
            except (*REDIS_ERRORS, LeaseLost) as error:
                await self.back_off(error)
            return False
        worker.status = "polling"
        batch = max(_SMALL_BATCH, worker.settings.worker_concurrency // _BATCHES)
        free = min(batch, await self._let_slots_gather(free, batch))
        consumer.last_claim = None
        asked_at = monotonic()
        started = await worker._poll_for_jobs(free)
        claim = consumer.last_claim
        has_failed = self.failing_since is not None
        # A claim without an answer found no queue empty.
        self._empty_polls = 0 if started or has_failed else self._empty_polls + 1
        if worker.burst:
            step = await self._look_at_burst(started, claim, asked_at)
            if step is not BurstStep.GO_ON:
                return step is BurstStep.OVER
        # It has waited already. If it also waited for work, other workers could claim its jobs before it has reconciled
        # with a restarted Redis.
        if has_failed:
            return False
        if consumer.is_making_room or self._book.has_suspect():
            await self._wait_for_slot()
        elif started < free and not (claim is not None and claim.more_due):
            await self.wait_for_work(claim)
        return False

    async def _look_at_burst(self, started: int, claim: Claim | None, asked_at: float) -> BurstStep:
        try:
            return await self._burst.look(started, claim, asked_at, self.failing_since)
        except REDIS_ERRORS as error:
            await self.back_off(error)
            return BurstStep.CLAIM_AGAIN

    async def _let_slots_gather(self, free: int, batch: int) -> int:
        """Give quick handlers a turn of the loop to end, as long as that frees slots for a batch."""
        while free < batch:
            await asyncio.sleep(0)
            before, free = free, self.count_free_slots()
            if free <= before:
                break
        return free

    def count_free_slots(self) -> int:
        # A handler that has returned needs no slot while its outcome travels; waiting for the
        # acknowledgement first would leave Redis and this process idle in turns.
        executing = len(self._worker._running_tasks) - self._consumer.unacknowledged
        return self._worker.settings.worker_concurrency - executing

    async def poll(self, count: int) -> int:
        """Claim up to ``count`` jobs and start them; returns how many, without waiting for them."""
        worker = self._worker
        if count <= 0 or worker._shutdown_event.is_set():
            return 0
        idle_seconds = idle_delay_seconds(
            self._empty_polls,
            worker.settings.default_poll_delay_seconds,
            worker.settings.worker_idle_poll_max_seconds,
        )
        self._next_delay_seconds = worker._calculate_jittered_delay(idle_seconds)
        wait_ms = int((self._next_delay_seconds + _WAIT_MARGIN_SECONDS) * 1000)
        try:
            attempts = await self._consumer.claim(count, worker.queues, wait_ms=wait_ms)
        except (*REDIS_ERRORS, LeaseLost) as error:
            await self.back_off(error)
            return 0
        self.failing_since, self._failures = None, 0
        if self._was_woken and not attempts and worker.observer is not None:
            worker.observer.on_lost_race()
        self._was_woken = False
        return await self.start_claimed(attempts)

    async def start_claimed(self, attempts: Sequence[Attempt]) -> int:
        started = 0
        for attempt in attempts:
            # While those before it waited for a slot, Redis may have given the job to another worker.
            if not attempt.is_lost:
                started += await self.start(attempt.job, attempt.queue_name, attempt)
        return started

    async def start(self, job: Job, queue_name: str, attempt: Attempt | None) -> bool:
        """Start a claimed job in a slot of its own; a job that cannot be started goes back."""
        worker, semaphore = self._worker, self._worker._semaphore
        # The claim first, the slot second: a worker that loses a race never occupies a slot.
        await semaphore.acquire()
        if attempt is not None and attempt.is_lost:
            # A slot is free only when its outcome is stored, and Redis may have given the job away by then.
            semaphore.release()
            return False
        try:
            await worker._process_acquired_job(job, queue_name)
        # Overridden methods are foreign code.
        except Exception:
            logger.exception("job not started", extra=describe_job(job, worker) | {"queue": queue_name})
            semaphore.release()
            if attempt is not None:
                self._consumer.hand_back(attempt, NOT_STARTED)
            return False
        return True

    async def process(self, job: Job, queue_name: str) -> None:
        """Run a claimed job in a task. The caller holds a slot, which is freed when the job has ended."""
        worker, attempt = self._worker, self._book.find(job)
        try:
            if attempt is None:
                await worker.job_store.update_job_status(job.id, JobStatus.ACTIVE)
            loop = worker._loop or asyncio.get_running_loop()
            task = loop.create_task(worker._execute_job(job, queue_name))
        # A cancellation too: a claimed job that has no task returns to its queue.
        except BaseException:
            if attempt is None:
                await worker.job_store.release_job_lock(job.id)
            else:
                self._consumer.hand_back(attempt, NOT_STARTED)
            raise
        if attempt is not None:
            attempt.task = task
        worker._running_tasks.add(task)
        if self._clean_up.keywords["semaphore"] is not worker._semaphore:
            self._clean_up = functools.partial(worker._task_cleanup, semaphore=worker._semaphore)
        task.add_done_callback(self._clean_up)

    def clean_up(self, task: "asyncio.Future[Any]", semaphore: asyncio.Semaphore) -> None:
        """Free the slot of a task that has ended."""
        if task in self._worker._running_tasks:
            self._worker._running_tasks.discard(task)
        else:
            logger.warning("an unknown task has ended", extra={"worker_id": self._worker.worker_id})
        semaphore.release()
        self._consumer.slot_freed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("job task failed", exc_info=error)
        if error is not None or task.cancelled():
            # It ended without a report, cancelled before its first step for instance: its job goes back.
            for attempt in self._book.find_by_task(task):
                self._consumer.hand_back(attempt, INTERRUPTED)

    async def back_off(self, error: Exception) -> None:
        """Redis gave no answer: wait, longer with each failure."""
        self.failing_since = self.failing_since or monotonic()
        self._failures += 1
        logger.warning(
            "claim failed, trying again", extra={"worker_id": self._worker.worker_id, "error": str(error)}
        )
        longest_seconds = self._within_renewal(_LONGEST_RETRY_SECONDS)
        pause_seconds = idle_delay_seconds(self._failures, _FIRST_RETRY_SECONDS, longest_seconds)
        await self.pause(self._worker._calculate_jittered_delay(pause_seconds))

    async def _wait_for_slot(self) -> None:
        """Sleep until a handler has ended or the worker is to stop; now and then look regardless."""
        longest_seconds = self._within_renewal(self._worker.settings.worker_idle_poll_max_seconds)
        delay = self._worker._calculate_jittered_delay(longest_seconds)
        slot_freed = self._consumer.slot_freed
        # An event and a timer, not a pair of tasks: at full speed this is passed once per batch.
        timer = asyncio.get_running_loop().call_later(delay, slot_freed.set)
        try:
            await slot_freed.wait()
        finally:
            timer.cancel()
            slot_freed.clear()

    async def wait_for_work(self, claim: Claim | None) -> None:
        """Sleep until a job may have come: a wake-up, the next due time, or the next poll."""
        delay = self._next_delay_seconds
        if claim is not None and claim.next_due_ms is not None:
            until_due = max(0.001, (claim.next_due_ms - claim.now_ms) / 1000)
            delay = min(delay, until_due + (_SECONDS_BEHIND_OTHERS if self._missing_functions else 0))
        if claim is None or claim.code is not ClaimCode.ANSWERED:
            # A worker that may not claim must not take wake-ups from those that may.
            await self.pause(delay)
            return
        try:
            await self._first_of(self._wait_for_wake(delay), self._worker._shutdown_event.wait())
        except REDIS_ERRORS:
            # The next poll meets the same trouble and logs it.
            await self.pause(self._within_renewal(delay))

    async def _wait_for_wake(self, delay: float) -> None:
        self._was_woken = await self._worker.job_store.wait_for_wake(self._worker.queues, delay)

    async def pause(self, seconds: float) -> None:
        """Sleep; shutdown ends it."""
        await self._first_of(self._worker._shutdown_event.wait(), timeout_seconds=seconds)

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

        After a restart of Redis the fleet waits for each worker to reconcile, but no longer than that.
        """
        return min(seconds, self._worker.settings.lease_renewal_seconds / 2)
