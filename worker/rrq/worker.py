"""RRQWorker: fetch, run, report; one event loop, one process.

The loop here only decides when to claim and how many. Who owns what is kept by ``engine/ownership.py``,
what the end of a job means by ``engine/outcomes.py``, waiting by ``engine/waiting.py``, the worker's own end by
``engine/draining.py``, proof of life by ``heartbeat.py``, cron by ``engine/cron_scheduler.py``. Several processes per pod are the
business of ``pod/``.
"""

import asyncio
import functools
import logging
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.cron_table import cron_group
from rrq.broker.messages import BeatReply, Claim, ClaimCode
from rrq.broker.server_risks import describe_risks
from rrq.client import RRQClient
from rrq.constants import DEFAULT_WORKER_ID_PREFIX
from rrq.engine.attempts import Attempt
from rrq.engine.cron_scheduler import CronScheduler
from rrq.engine.draining import Draining
from rrq.engine.execution import Deadlines, HandlerThreads
from rrq.engine.lease import build_health_record
from rrq.engine.outcomes import INTERRUPTED, JobOutcomes
from rrq.engine.ownership import Ownership
from rrq.engine.waiting import Pacing
from rrq.exc import BurstFailed, LeaseLost
from rrq.hooks import HookManager
from rrq.job import Job, JobStatus
from rrq.registry import JobRegistry
from rrq.runtime.backoff import idle_delay_seconds
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.tracing import JobTraces

__all__ = ["RRQWorker"]

logger = logging.getLogger(__name__)

NOT_STARTED = "Job could not be started. Re-queued."

# While Redis prepares one batch, this process runs another: a claim for all slots at once would make
# them wait for each other in turns. Below a certain size a batch is not worth its round trip.
_BATCHES = 2
_SMALL_BATCH = 16
# A cut connection is mended at once; a Redis that stays away is asked once a second.
_FIRST_TROUBLE_SECONDS = 0.05
_TROUBLE_SECONDS = 1.0
# The event loop shows that it turns this often.
_TURN_SECONDS = 1.0
# A waiting worker is counted as waiting a little longer than it blocks, because the answer to its
# claim has to reach it first.
_WAIT_MARGIN_SECONDS = 0.5


class RRQWorker(JobOutcomes, CronScheduler, Pacing, Draining):
    """Runs the jobs of some queues, up to ``worker_concurrency`` at once.

    Building one opens no connection and needs no event loop. Methods with a leading underscore that
    RRQ 0.7 had are kept under their names and call each other through ``self``.
    """

    def __init__(
        self,
        settings: RRQSettings,
        job_registry: JobRegistry,
        queues: list[str] | None = None,
        worker_id: str | None = None,
        burst: bool = False,
    ) -> None:
        if isinstance(queues, str):
            # A text is a sequence of letters, and each would be served as a queue.
            raise ValueError(f"queues is a list of names, not text. Write queues=[{queues!r}].")  # noqa: TRY004
        self.settings = settings
        self.job_registry = job_registry
        self.queues = queues if queues is not None else [settings.default_queue_name]
        if not self.queues:
            raise ValueError("A worker needs at least one queue; the list given is empty.")
        self.job_store = JobStore(settings)
        self.client = RRQClient(settings, job_store=self.job_store)
        self._has_own_name = worker_id is None
        self.worker_id = worker_id or _new_worker_id()
        self.burst = burst
        self.cron_jobs = list(settings.cron_jobs)
        self.status = "initializing"
        self._semaphore = asyncio.Semaphore(settings.worker_concurrency)
        # Made once and not per job; it is made anew when an application replaces the semaphore.
        self._cleanup = functools.partial(self._task_cleanup, semaphore=self._semaphore)
        #: In burst mode: everything that was due has been run.
        self.is_burst_over = False
        self._running_tasks: set[asyncio.Task[None]] = set()
        # Those whose job has been ended without them; nobody waits for them any more.
        self._ignored_tasks: set[asyncio.Task[None]] = set()
        self._shutdown_event = asyncio.Event()
        self._drain_changed = asyncio.Event()
        self._drain_until: float | None = None
        self._patience_ends_at = inf
        #: Called once a second from the event loop.
        self.on_turn: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._health_check_task: asyncio.Task[None] | None = None
        self._cron_task: asyncio.Task[None] | None = None
        self._checkup_task: asyncio.Task[None] | None = None
        self._beat_hook_task: asyncio.Future[None] | None = None
        self._given_up: asyncio.Future[None] | None = None
        self._random = random.Random()
        self._deadlines = Deadlines(on_ignored=self._give_up_task)
        self._threads = HandlerThreads(settings.sync_handler_threads)
        self._hooks = HookManager(settings)
        self._ownership = Ownership(self, self._random.uniform)
        self._slot_freed = asyncio.Event()
        self._traces = JobTraces()
        self._missing_functions: set[str] = set()
        self._empty_polls = 0
        self._next_delay = settings.default_poll_delay_seconds
        self._was_woken = False
        self._idle_since: float | None = None
        self._had_no_orphans = False
        self._failing_since: float | None = None
        self._failures = 0

    @property
    def active_jobs(self) -> int:
        return len(self._running_tasks)

    @property
    def ownership(self) -> Ownership:
        """What this worker holds, and under which lease."""
        return self._ownership

    # Lifecycle

    async def run(self) -> None:
        """Work until a signal, ``_request_shutdown`` or, in burst mode, the end of due jobs."""
        self.status = "running"
        self._loop = asyncio.get_running_loop()
        self._setup_signal_handlers()
        logger.info("worker started", extra={"worker_id": self.worker_id, "queues": self.queues})
        try:
            await self._call_startup_hook()
            await self._hooks.trigger_event("on_worker_started", self.worker_id, self.queues)
            await self._run_loop()
        except asyncio.CancelledError:
            logger.info("worker was cancelled", extra={"worker_id": self.worker_id})
        finally:
            await self._stop()

    async def _stop(self) -> None:
        # A failing hook of the application must not keep the worker from ending in order.
        try:
            await self._call_shutdown_hook()
        except Exception:
            logger.exception("shutdown hook failed", extra={"worker_id": self.worker_id})
        # Not before the hook: a signal that comes while it runs would end the process in its middle.
        self._remove_signal_handlers()
        await self._hooks.trigger_event("on_worker_stopped", self.worker_id)
        await self._hooks.close()
        await self._close_resources()
        self.status = "stopped"
        logger.info("worker stopped", extra={"worker_id": self.worker_id})

    async def _call_startup_hook(self) -> None:
        if self.settings.on_startup is not None:
            await self.settings.on_startup()

    async def _call_shutdown_hook(self) -> None:
        if self.settings.on_shutdown is not None:
            await self.settings.on_shutdown()

    async def _run_loop(self) -> None:
        """Claim and run until shutdown, then drain. May be called again afterwards."""
        self._loop = asyncio.get_running_loop()
        self._health_check_task = self._loop.create_task(self._heartbeat_loop())
        self._checkup_task = self._loop.create_task(self._look_around())
        if self.cron_jobs:
            self._cron_task = self._loop.create_task(self._cron_loop())
        shutdown_watch = self._loop.create_task(self._shutdown_event.wait())
        shutdown_watch.add_done_callback(lambda _: self._slot_freed.set())
        try:
            while not self._shutdown_event.is_set():
                # The loop survives whatever a round raises; foreign code may be overridden in.
                try:
                    if await self._run_round():
                        break
                except BurstFailed:
                    raise
                except Exception:
                    logger.exception("worker round failed", extra={"worker_id": self.worker_id})
                    await self._pause(self._calculate_jittered_delay(_TROUBLE_SECONDS))
        finally:
            shutdown_watch.cancel()
            await self._wind_down()

    async def _look_around(self) -> None:
        calls = [self._warn_about_redis(), self._publish_limits()]
        if not self.cron_jobs:
            calls.append(self._withdraw_cron_table())
        await asyncio.gather(*calls)

    async def _publish_limits(self) -> None:
        """Have the limits of this application hold for the fleet; what it no longer declares is withdrawn."""
        while True:
            try:
                await self.job_store.publish_limits(self._source_of_limits(), self.settings.limits)
                return
            except REDIS_ERRORS as error:
                logger.info("limits not published yet", extra={"error": str(error)})
                await asyncio.sleep(self._calculate_jittered_delay(_TROUBLE_SECONDS))

    async def restore_limits(self) -> None:
        """Declare the limits again to a Redis that has lost them all."""
        if self.settings.limits:
            await self.job_store.publish_limits(
                self._source_of_limits(), self.settings.limits, only_if_lost=True
            )

    def _source_of_limits(self) -> str:
        return cron_group(map(self.job_store.keys.queue_name, self.queues))

    async def _warn_about_redis(self) -> None:
        try:
            facts = await self.job_store.read_server_facts()
        except REDIS_ERRORS as error:
            logger.info("server settings not read", extra={"error": str(error)})
            return
        for risk in describe_risks(facts):
            logger.warning("%s", risk, extra={"worker_id": self.worker_id})

    async def _wind_down(self) -> None:
        await self._drain_tasks()
        await self._release_claims()
        for task in (self._health_check_task, self._cron_task, self._checkup_task):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._health_check_task = self._cron_task = self._checkup_task = None

    async def _run_round(self) -> bool:
        """Poll once, or wait for a free slot; True when a burst is done."""
        had_no_orphans, self._had_no_orphans = self._had_no_orphans, False
        free = self._free_slots()
        if free <= 0 or not self._ownership.may_claim:
            self.status = "idle (concurrency limit)"
            await self._wait_for_slot()
            try:
                await self._ownership.agree_if_needed()
            except (*REDIS_ERRORS, LeaseLost) as error:
                await self._weather(error)
            return False
        self.status = "polling"
        batch = max(_SMALL_BATCH, self.settings.worker_concurrency // _BATCHES)
        free = min(batch, await self._let_slots_gather(free, batch))
        self._ownership.last_claim = None
        asked_at = monotonic()
        started = await self._poll_for_jobs(free)
        claim = self._ownership.last_claim
        has_failed = self._failing_since is not None
        # A claim without an answer found no queue empty.
        self._empty_polls = 0 if started or has_failed else self._empty_polls + 1
        if started:
            self._idle_since = None
        elif (
            self.burst
            and not self._running_tasks - self._ignored_tasks
            and self._is_burst_over(claim, asked_at)
        ):
            if had_no_orphans:
                self._check_no_function_was_missing()
                self.is_burst_over = True
                return True
            # With none left, one more claim at once: what came back before the look is in its queue now.
            self._had_no_orphans = await self._is_without_orphans()
            if self._had_no_orphans:
                return False
        # After trouble it has waited already. Waiting for work on top of that, others would be let in before this
        # worker has told a restarted Redis what it holds.
        if has_failed:
            return False
        if self._ownership.is_making_room or not self._ownership.may_claim:
            await self._wait_for_slot()
        elif started < free and not (claim is not None and claim.more_due):
            await self._wait_for_work(claim)
        return False

    async def _let_slots_gather(self, free: int, batch: int) -> int:
        """Give quick handlers a turn of the loop to end, as long as that frees slots for a batch."""
        while free < batch:
            await asyncio.sleep(0)
            before, free = free, self._free_slots()
            if free <= before:
                break
        return free

    def _free_slots(self) -> int:
        # A handler that has returned needs no slot while its outcome travels; waiting for the
        # acknowledgement first would leave Redis and this process idle in turns.
        executing = len(self._running_tasks) - self._ownership.reporter.unacknowledged
        return self.settings.worker_concurrency - executing

    def _is_burst_over(self, claim: Claim | None, asked_at: float) -> bool:
        """Tell an empty queue from an unreachable one, which is not done.

        ``asked_at``: the queues were empty then, and may have filled since in a process that stood still.
        """
        if self._failing_since is not None:
            patience_seconds = self.settings.worker_burst_redis_patience_seconds
            if monotonic() - self._failing_since > patience_seconds:
                raise BurstFailed(
                    f"Redis gave no answer for {patience_seconds:g} s, so it is unknown whether the "
                    "queues are empty. Check redis_dsn and run the burst again."
                )
            return False
        if claim is not None and (
            claim.code is not ClaimCode.ANSWERED or claim.more_due or claim.jobs or claim.make_room_for
        ):
            return False
        self._idle_since = self._idle_since or asked_at
        return asked_at - self._idle_since >= self.settings.worker_burst_linger_seconds

    async def _is_without_orphans(self) -> bool:
        """Whether no worker whose lease has ended still holds jobs of these queues: a sweep gives them back, maybe to us."""
        try:
            seen = await self.job_store.observe(self.queues, most_workers=0)
        except REDIS_ERRORS as error:
            await self._weather(error)
            return False
        return not (seen.has_more_orphans or any(queue.orphaned for queue in seen.queues.values()))

    # Claiming

    async def _poll_for_jobs(self, count: int) -> int:
        """Claim up to ``count`` jobs and start them; returns how many, without waiting for them."""
        if count <= 0 or self._shutdown_event.is_set():
            return 0
        idle_seconds = idle_delay_seconds(
            self._empty_polls,
            self.settings.default_poll_delay_seconds,
            self.settings.worker_idle_poll_max_seconds,
        )
        self._next_delay = self._calculate_jittered_delay(idle_seconds)
        wait_ms = int((self._next_delay + _WAIT_MARGIN_SECONDS) * 1000)
        try:
            attempts = await self._ownership.claim(count, self.queues, wait_ms=wait_ms)
        except (*REDIS_ERRORS, LeaseLost) as error:
            await self._weather(error)
            return 0
        self._failing_since, self._failures = None, 0
        if self._was_woken and not attempts:
            self._ownership.meter.count("rrq_lost_races_total")
        self._was_woken = False
        return await self._start_claimed(attempts)

    async def _start_claimed(self, attempts: Sequence[Attempt]) -> int:
        started = 0
        for attempt in attempts:
            # Those before it may have waited for a slot, and the jobs have been given to somebody else meanwhile.
            if not attempt.is_lost:
                started += await self._start(attempt.job, attempt.queue_name, attempt)
        return started

    async def _weather(self, error: Exception) -> None:
        """Redis is in trouble: wait a little, for as long as it takes."""
        self._failing_since = self._failing_since or monotonic()
        self._failures += 1
        logger.warning("claim failed, trying again", extra={"worker_id": self.worker_id, "error": str(error)})
        longest_seconds = self._within_renewal(_TROUBLE_SECONDS)
        pause_seconds = idle_delay_seconds(self._failures, _FIRST_TROUBLE_SECONDS, longest_seconds)
        await self._pause(self._calculate_jittered_delay(pause_seconds))

    async def _start(self, job: Job, queue_name: str, attempt: Attempt | None) -> bool:
        """Start a claimed job in a slot of its own; what cannot be started goes back."""
        # The lock first, the slot second: whoever loses a race never occupies a slot.
        await self._semaphore.acquire()
        if attempt is not None and attempt.is_lost:
            # A slot that waits for its outcome to be stored may be free only after the job was given to somebody else.
            self._semaphore.release()
            return False
        try:
            await self._process_acquired_job(job, queue_name)
        # Overridden methods are foreign code.
        except Exception:
            logger.exception("job not started", extra=self._fields(job) | {"queue": queue_name})
            self._semaphore.release()
            attempt = self._ownership.book.find(job)
            if attempt is not None:
                self._ownership.give_up(attempt, NOT_STARTED)
            return False
        return True

    async def _try_acquire_job(self, job_id: str, queue_name: str) -> Job | None:
        """Claim one named job; None when somebody else has it or it is not queued there."""
        attempts = await self._ownership.claim(1, [queue_name], job_ids=[job_id])
        return attempts[0].job if attempts else None

    async def _process_acquired_job(self, job: Job, queue_name: str) -> None:
        """Start a claimed job. The caller holds a slot, which is freed when the job has ended."""
        attempt = self._ownership.book.find(job)
        try:
            if attempt is None:
                await self.job_store.update_job_status(job.id, JobStatus.ACTIVE)
            loop = self._loop or asyncio.get_running_loop()
            task = loop.create_task(self._execute_job(job, queue_name))
        except BaseException:
            if attempt is None:
                await self.job_store.release_job_lock(job.id)
            else:
                self._ownership.give_up(attempt, NOT_STARTED)
            raise
        if attempt is not None:
            attempt.task = task
        self._running_tasks.add(task)
        if self._cleanup.keywords["semaphore"] is not self._semaphore:
            self._cleanup = functools.partial(self._task_cleanup, semaphore=self._semaphore)
        task.add_done_callback(self._cleanup)

    async def _try_process_job(self, job_id: str, queue_name: str) -> bool:
        """Claim and start one named job; False when it could not be had or started."""
        job = await self._try_acquire_job(job_id, queue_name)
        return job is not None and await self._start(job, queue_name, self._ownership.book.find(job))

    def _task_cleanup(self, task: "asyncio.Future[Any]", semaphore: asyncio.Semaphore) -> None:
        if task in self._running_tasks:
            self._running_tasks.discard(task)
            self._ignored_tasks.discard(task)
        else:
            logger.warning("an unknown task has ended", extra={"worker_id": self.worker_id})
        semaphore.release()
        self._slot_freed.set()
        if task.cancelled():
            self._see_to_abandoned(task)
        elif (error := task.exception()) is not None:
            logger.error("job task failed", exc_info=error)
            self._see_to_abandoned(task)

    def _see_to_abandoned(self, task: "asyncio.Future[Any]") -> None:
        """A task ended without reporting, cancelled before its first step say: give its job back."""
        for attempt in self._ownership.book:
            if attempt.task is task:
                self._ownership.give_up(attempt, INTERRUPTED)

    def _give_up_task(self, task: asyncio.Task[Any]) -> None:
        """A handler ignored its timeout: end its job without it. Its slot stays taken."""
        for attempt in self._ownership.book:
            if attempt.task is task:
                self._ignored_tasks.add(task)
                message = "Job ran past its timeout and its handler ignored the cancellation."
                self._given_up = asyncio.ensure_future(
                    self._handle_job_timeout(attempt.job, attempt.queue_name, message)
                )

    # The end

    async def close(self) -> None:
        """Close the connections."""
        await self._ownership.stop_renewing()
        await self.client.close()
        await self.job_store.aclose()

    async def _close_resources(self) -> None:
        try:
            await self.job_store.aclose()
        except REDIS_ERRORS:
            logger.exception("connections not closed in order")

    # Heartbeat

    async def _heartbeat_loop(self) -> None:
        """Show that the event loop turns; the lease itself is renewed from a thread."""
        self._ownership.on_beat = self._after_beat
        due_at = monotonic()
        while True:
            now = self._ownership.last_turn = monotonic()
            self._ownership.meter.observe(max(0.0, now - due_at), "rrq_loop_lag_seconds")
            if self.on_turn is not None:
                self.on_turn()
            due_at = monotonic() + _TURN_SECONDS
            await asyncio.sleep(_TURN_SECONDS)

    def _after_beat(self, health: Mapping[str, object], reply: BeatReply) -> None:
        if self._hooks.has_hooks:
            self._beat_hook_task = asyncio.ensure_future(
                self._hooks.trigger_event("on_worker_heartbeat", self.worker_id, dict(health))
            )

    def describe_health(self) -> dict[str, object]:
        """Return the health record; also called from the thread that renews the lease."""
        return build_health_record(
            self.worker_id, self.status, self.active_jobs, self.settings.worker_concurrency, self.queues
        )

    def rename(self) -> bool:
        """Choose another id after a clash; False when the id was given by the application."""
        if self._has_own_name:
            self.worker_id = _new_worker_id()
        return self._has_own_name


def _new_worker_id() -> str:
    return f"{DEFAULT_WORKER_ID_PREFIX}{os.getpid()}_{secrets.token_hex(3)}"
