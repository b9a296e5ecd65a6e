"""RRQWorker: claims jobs, runs them and stores their outcomes; one event loop, one process.

The worker puts its parts together and starts and stops them. The parts are in ``engine/``: what is in hand
(``attempts.py``), calls to Redis (``consumer.py``, ``registration.py``), when to claim (``polling.py``), running a job
(``executor.py``, ``failures.py``) and the end (``drain.py``). Several processes in a pod are the business of ``pod/``.
"""

import asyncio
import logging
import random
import signal
from typing import TYPE_CHECKING, Any, ClassVar

from rrq.broker.connection import REDIS_ERRORS
from rrq.client import RRQClient
from rrq.engine.attempts import AttemptBook
from rrq.engine.burst import Burst
from rrq.engine.consumer import Consumer
from rrq.engine.cron_scheduler import CronScheduler
from rrq.engine.drain import Drain
from rrq.engine.executor import Executor
from rrq.engine.loop_monitor import LoopMonitor
from rrq.engine.polling import Poller
from rrq.engine.registration import Registration, build_worker_id
from rrq.engine.startup import Startup
from rrq.exc import RetryJob
from rrq.hooks import HookManager
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.runtime.backoff import jittered_delay_seconds
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rrq.engine.observer import Observer

__all__ = ["RRQWorker"]

logger = logging.getLogger(__name__)


class RRQWorker:
    """Runs the jobs of some queues, up to ``worker_concurrency`` at once.

    Building one opens no connection and needs no event loop. Methods with a leading underscore that
    RRQ 0.7 had are kept under their names, and overriding one in a subclass takes effect.
    """

    SIGNALS: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGTERM)

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
            raise ValueError(  # noqa: TRY004  empty `queues` raise the same
                f"queues is a list of names, not text. Write queues=[{queues!r}]."
            )
        self.settings = settings
        self.job_registry = job_registry
        self.queues = queues if queues is not None else [settings.default_queue_name]
        if not self.queues:
            raise ValueError("A worker needs at least one queue; the list given is empty.")
        self.job_store = JobStore(settings)
        self.client = RRQClient(settings, job_store=self.job_store)
        self.worker_id = worker_id or build_worker_id()
        self.burst = burst
        self.cron_jobs = list(settings.cron_jobs)
        self.status = "initializing"
        self._hooks = HookManager(settings)
        #: Learns what this worker does; set by its supervisor.
        self.observer: Observer | None = None
        self._semaphore = asyncio.Semaphore(settings.worker_concurrency)
        self._running_tasks: set[asyncio.Task[None]] = set()
        self._shutdown_event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._health_check_task: asyncio.Task[None] | None = None
        self._cron_task: asyncio.Task[None] | None = None
        self._startup_task: asyncio.Task[None] | None = None
        self._compose(may_rename=worker_id is None)

    def _compose(self, *, may_rename: bool) -> None:
        self._loop_monitor = LoopMonitor(self)
        self._cron = CronScheduler(self)
        self._startup = Startup(self, self._cron)
        #: The jobs in hand.
        self.book = book = AttemptBook()
        self.registration = Registration(
            self, book, self._loop_monitor, self._startup.restore_limits, may_rename=may_rename
        )
        self.consumer = Consumer(self, book, self.registration)
        self._executor = Executor(self, book, self.registration, self.consumer)
        self._burst = Burst(self, self._executor)
        self._poller = Poller(
            self,
            book,
            self.registration,
            self.consumer,
            self._burst,
            self._executor.failures.missing_functions,
        )
        self._drain = Drain(self, book, self.registration, self.consumer, self._executor)

    @property
    def active_jobs(self) -> int:
        return len(self._running_tasks)

    @property
    def is_burst_over(self) -> bool:
        """In burst mode: everything that was due has been run."""
        return self._burst.is_over

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
        try:
            await self._call_shutdown_hook()
        # A failing hook of the application must not keep the worker from ending in order.
        except Exception:
            logger.exception("shutdown hook failed", extra={"worker_id": self.worker_id})
        # Not before the hook: a signal that comes while it runs would end the process in its middle.
        self._drain.ignore_signals()
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
        self._startup_task = self._loop.create_task(self._startup.run())
        if self.cron_jobs:
            self._cron_task = self._loop.create_task(self._cron_loop())
        try:
            await self._poller.run()
        finally:
            await self._wind_down()

    async def _wind_down(self) -> None:
        await self._drain_tasks()
        await self._drain.release_claims()
        for task in (self._health_check_task, self._cron_task, self._startup_task):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._health_check_task = self._cron_task = self._startup_task = None

    def drain(self) -> None:
        """Stop claiming and let the jobs in hand end within the grace period."""
        self._drain.begin()

    def retire(self) -> None:
        """Stop claiming and end when the jobs in hand have ended, however long they take."""
        self._drain.retire()

    async def close(self) -> None:
        """Close the connections."""
        await self.registration.lease.stop()
        await self.client.close()
        await self.job_store.aclose()

    async def _close_resources(self) -> None:
        try:
            await self.job_store.aclose()
        except REDIS_ERRORS:
            logger.exception("connections not closed in order")

    # Names of RRQ 0.7. The parts call each other through these methods, because applications override them.

    def _setup_signal_handlers(self) -> None:
        self._drain.handle_signals()

    def _request_shutdown(self) -> None:
        self._drain.request()

    async def _drain_tasks(self) -> None:
        await self._drain.finish_jobs()

    def _calculate_jittered_delay(self, base_delay: float, jitter_factor: float = 0.5) -> float:
        """Return a draw from ``base_delay`` ± ``jitter_factor``, independent of other workers."""
        return jittered_delay_seconds(base_delay, jitter_factor, random.uniform)

    async def _heartbeat_loop(self) -> None:
        """Show that the event loop turns; the lease itself is renewed from a thread."""
        await self._loop_monitor.run()

    async def _cron_loop(self) -> None:
        await self._cron.run()

    async def _maybe_enqueue_cron_jobs(self) -> None:
        await self._cron.fire_due()

    async def _poll_for_jobs(self, count: int) -> int:
        return await self._poller.poll(count)

    async def _try_acquire_job(self, job_id: str, queue_name: str) -> Job | None:
        """Claim one named job; None when another worker has it or it is not queued there."""
        attempts = await self.consumer.claim(1, [queue_name], job_ids=[job_id])
        return attempts[0].job if attempts else None

    async def _try_process_job(self, job_id: str, queue_name: str) -> bool:
        """Claim and start one named job; False when that is not possible."""
        job = await self._try_acquire_job(job_id, queue_name)
        return job is not None and await self._poller.start(job, queue_name, self.book.find(job))

    async def _process_acquired_job(self, job: Job, queue_name: str) -> None:
        await self._poller.process(job, queue_name)

    def _task_cleanup(self, task: "asyncio.Future[Any]", semaphore: asyncio.Semaphore) -> None:
        self._poller.clean_up(task, semaphore)

    async def _execute_job(self, job: Job, queue_name: str) -> None:
        await self._executor.execute(job, queue_name)

    async def _handle_job_success(self, job: Job, result: Any) -> None:
        await self._executor.succeed(job, result)

    async def _process_retry_job(self, job: Job, exc: RetryJob, queue_name: str) -> None:
        await self._executor.failures.retry_on_request(job, exc, queue_name)

    async def _process_other_failure(self, job: Job, exc: Exception, queue_name: str) -> None:
        await self._executor.failures.retry_after_error(job, exc, queue_name)

    async def _handle_job_timeout(self, job: Job, queue_name: str, error_message: str) -> None:
        await self._executor.failures.bury_after_timeout(job, queue_name, error_message)

    async def _handle_fatal_job_error(self, job: Job, queue_name: str, error_message: str) -> None:
        await self._executor.failures.bury_after_engine_error(job, queue_name, error_message)

    async def _move_to_dlq(self, job: Job, queue_name: str, error_message: str, trace: str = "") -> None:
        await self._executor.failures.bury(job, queue_name, error_message, trace)

    async def _handle_job_cancellation_on_shutdown(self, job: Job, queue_name: str) -> None:
        await self._executor.failures.hand_back(job, queue_name)

    def _calculate_backoff_ms(self, job: Job) -> int:
        """Return the wait before retry number ``job.current_retries``."""
        return self._executor.failures.calculate_backoff_ms(job)
