"""The worker as its parts see it.

Applications replace attributes of a worker, such as its store, so that its parts read them at each use. The methods
are those that applications of RRQ 0.7 override: a part calls them here, and never past the worker.
"""

import asyncio
import signal
from typing import Any, ClassVar, Protocol

from rrq.client import RRQClient
from rrq.cron import CronJob
from rrq.engine.observer import Observer
from rrq.exc import RetryJob
from rrq.hooks import HookManager
from rrq.job import Job
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore


class Host(Protocol):
    SIGNALS: ClassVar[tuple[signal.Signals, ...]]
    settings: RRQSettings
    job_registry: JobRegistry
    job_store: JobStore
    client: RRQClient
    worker_id: str
    queues: list[str]
    burst: bool
    cron_jobs: list[CronJob]
    #: As monitors of RRQ 0.7 know it.
    status: str
    _hooks: HookManager
    observer: Observer | None
    _loop: asyncio.AbstractEventLoop | None
    _semaphore: asyncio.Semaphore
    _running_tasks: set[asyncio.Task[None]]
    _shutdown_event: asyncio.Event

    def _request_shutdown(self) -> None: ...
    def _calculate_jittered_delay(self, base_delay: float, jitter_factor: float = 0.5) -> float: ...

    async def _poll_for_jobs(self, count: int) -> int: ...
    async def _try_acquire_job(self, job_id: str, queue_name: str) -> Job | None: ...
    async def _process_acquired_job(self, job: Job, queue_name: str) -> None: ...
    async def _execute_job(self, job: Job, queue_name: str) -> None: ...
    def _task_cleanup(self, task: "asyncio.Future[Any]", semaphore: asyncio.Semaphore) -> None: ...

    async def _handle_job_success(self, job: Job, result: Any) -> None: ...
    async def _process_retry_job(self, job: Job, exc: RetryJob, queue_name: str) -> None: ...
    async def _process_other_failure(self, job: Job, exc: Exception, queue_name: str) -> None: ...
    async def _handle_job_timeout(self, job: Job, queue_name: str, error_message: str) -> None: ...
    async def _handle_fatal_job_error(self, job: Job, queue_name: str, error_message: str) -> None: ...
    async def _handle_job_cancellation_on_shutdown(self, job: Job, queue_name: str) -> None: ...
    async def _move_to_dlq(self, job: Job, queue_name: str, error_message: str, trace: str = "") -> None: ...
    def _calculate_backoff_ms(self, job: Job) -> int: ...

    async def _maybe_enqueue_cron_jobs(self) -> None: ...
