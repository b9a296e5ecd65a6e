"""JobBench: runs an application inside a test, with a private Redis, a worker and a clock.

The scripts and the engine are those of production; the test decides when they run. ``rrq.testing`` describes the use
and the limits.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, Self, get_args

from rrq.app import App
from rrq.broker.messages import DeathCertificate
from rrq.client import RRQClient
from rrq.embedded import EmbeddedRedis
from rrq.engine.cron_scheduler import fire_due
from rrq.engine.reaper import Reaper
from rrq.exc import RRQError, SettingsError
from rrq.pod.restarts import Death, End, describe_cause
from rrq.settings import RRQSettings
from rrq.testing.bench_store import BenchStore
from rrq.testing.bench_worker import BenchWorker, JobRun
from rrq.testing.clock import Clock, decide_step_seconds

__all__ = ["BenchError", "CutScript", "JobBench"]

#: The scripts whose answer can be lost.
CutScript = Literal["claim_jobs", "enqueue_jobs", "finish_jobs"]


class BenchError(RRQError):
    """A call of a bench that makes no sense; not an outcome of any job."""


class JobBench:
    """Runs the jobs of an application inside a test; an async context manager.

    Takes an ``App`` or settings with a registry. The block starts a private server and, with an App, redirects its
    enqueues there. Jobs run one at a time in the order in which they are due (those of the same millisecond by their
    ids), unless ``concurrency`` says otherwise: a job that waits for the result of another needs 2. The worker serves
    all queues unless ``queues`` names some.
    """

    def __init__(
        self, application: App | RRQSettings, *, concurrency: int = 1, queues: Sequence[str] | None = None
    ) -> None:
        self._app = application if isinstance(application, App) else None
        self._given = application.settings if isinstance(application, App) else application
        if self._given.job_registry is None:
            raise SettingsError(
                "The settings of this bench have no job_registry, so there is nothing to run. "
                "Give it an App, or settings with a JobRegistry."
            )
        self._registry = self._given.job_registry
        self._concurrency = concurrency
        self._queues = queues
        self._clock = Clock()
        self._lost_replies: Counter[str] = Counter()
        # Written before each answer, which outlives a restart; waiting for the disk would only cost time.
        self._server = EmbeddedRedis(extra_args=("--appendonly", "yes", "--appendfsync", "no"))
        self._ending = contextlib.AsyncExitStack()
        self._worker: BenchWorker | None = None
        self._known_queues: set[str] = set()
        self._kills: set[asyncio.Task[int]] = set()
        self._is_running = False
        #: Every attempt that has ended so far.
        self.runs: list[JobRun] = []

    async def __aenter__(self) -> Self:
        async with self._ending:
            await asyncio.to_thread(self._server.start)
            self._ending.callback(self._server.stop)
            # First: a graceful end takes Redis a tenth of a second, and there is nothing to keep.
            self._ending.callback(self._server.kill)
            self.settings = self._build_settings()
            self.store = self._open_store()
            self._ending.push_async_callback(self.store.aclose)
            #: A producer; an App on the bench enqueues with it.
            self.client = RRQClient(self.settings, job_store=self.store)
            self._ending.push_async_callback(self.client.close)
            if self._app is not None:
                self._ending.enter_context(self._app.bind(self.client))
            # Copies: an entry stores its next tick, which here is one by the clock of the bench.
            self._cron_jobs = [
                entry.model_copy(update={"next_run_time": None}) for entry in self.settings.cron_jobs
            ]
            await self._fire_cron()
            await self.store.publish_limits("bench", self.settings.limits)
            if self.settings.on_startup is not None:
                await self.settings.on_startup()
            if self.settings.on_shutdown is not None:
                self._ending.push_async_callback(self.settings.on_shutdown)
            self._ending.push_async_callback(self._stop_worker)
            self._ending = self._ending.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ending.aclose()

    def _build_settings(self) -> RRQSettings:
        return self._given.model_copy(
            update={
                "redis_dsn": self._server.dsn,
                "redis_sentinel_hosts": [],
                "redis_sentinel_service": None,
                "durability": "server",
                # There is no other worker that has the function: a test that forgot to register it fails at once.
                "unknown_function_patience_seconds": 0.0,
                "worker_concurrency": self._concurrency,
                # As many as the application has: a function that is stuck in its thread must not block the next job.
                "worker_sync_handler_threads": self._given.sync_handler_threads,
            }
        )

    def _open_store(self) -> BenchStore:
        return BenchStore(self.settings, self._clock, self._lost_replies)

    async def run_due(self, *, most: int = 1_000) -> list[JobRun]:
        """Run all that is due, follow-ups included, and return every attempt that ended.

        Jobs that are due later, such as retries, wait for ``travel``. Raises BenchError after ``most`` attempts, because a
        job that enqueues itself would go on for ever.
        """
        if self._is_running:
            raise BenchError(
                "run_due is under way already: await the first one, or start one bench per test."
            )
        self._is_running = True
        before = len(self.runs)

        def is_too_much() -> bool:
            return len(self.runs) - before > most

        try:
            await self._fire_cron()
            while True:
                worker = self._get_worker()
                await worker.run_due(self._queues, is_too_much)
                if is_too_much():
                    raise BenchError(
                        f"More than {most} jobs were due in one run_due. Does a job enqueue itself? "
                        "If there really are so many, pass a larger 'most'."
                    )
                if not worker.is_killed:
                    return self.runs[before:]
                # Its jobs are due again once the kill is complete.
                await self._wait_for_kills()
        finally:
            self._is_running = False

    def _get_worker(self) -> BenchWorker:
        if self._worker is None:
            self._worker = BenchWorker(
                self.settings, self._registry, self._open_store(), self._note, self._known_queues
            )
        return self._worker

    async def _stop_worker(self) -> None:
        await self._wait_for_kills()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    def _note(self, run: JobRun) -> None:
        self.runs.append(run)

    async def now(self) -> datetime:
        """Return the time of the bench, in UTC."""
        return await self.store.read_time()

    async def travel(self, by: float | timedelta) -> None:
        """Move the clock of Redis forward by so many seconds.

        Deferred jobs, retries and duplicates of unique jobs become due; results, locks and dead letters expire; leases
        of dead workers end and their jobs are requeued; cron entries fire, every tick on the way. No job is run.
        """
        left_seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if left_seconds < 0:
            raise BenchError(f"travel moves the clock forward, and {left_seconds:g} s would move it back.")
        while left_seconds > 0:
            step_seconds = decide_step_seconds(
                left_seconds, self.settings.worker_lease_seconds, await self._to_next_tick_seconds()
            )
            await self._step(step_seconds)
            left_seconds -= step_seconds

    async def _step(self, seconds: float) -> None:
        worker = self._get_worker()
        self._clock.offset_us += round(seconds * 1_000_000)
        await self.store.shorten_expiries(seconds, [self.store.keys.worker_key(worker.worker_id)])
        # As a fleet does: a living worker renews in time, and reaps the others.
        await worker.beat()
        await Reaper(self.store).run_once()
        await self._fire_cron()

    async def _fire_cron(self) -> None:
        if self._cron_jobs:
            await fire_due(self.client, self._cron_jobs, await self.now())

    async def _to_next_tick_seconds(self) -> float | None:
        ticks = [entry.next_run_time for entry in self._cron_jobs if entry.next_run_time is not None]
        return (min(ticks) - await self.now()).total_seconds() if ticks else None

    async def kill_worker(self, *, with_its_pod: bool = False) -> int:
        """Do to the worker what kill -9 does, in the middle of its jobs; returns how many it had in hand.

        The supervisor of the pod notices at once: the jobs are due again, uncounted, and run alone from now on. A job
        that has ended ``worker_crash_limit`` workers that way is dead-lettered. ``with_its_pod`` kills the supervisor as
        well, as a lost node does: the jobs are due again when the lease has ended, so ``travel`` that far.
        May be called by a test beside ``run_due`` or inside a handler, which then ends here. A new worker runs the jobs
        that are due.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return 0
        # A task of its own, because the caller may be a handler that is killed.
        kill = asyncio.create_task(self._kill(worker, is_noticed=not with_its_pod))
        self._kills.add(kill)
        kill.add_done_callback(self._kills.discard)
        return await asyncio.shield(kill)

    async def _kill(self, worker: BenchWorker, *, is_noticed: bool) -> int:
        in_hand = await worker.kill()
        if is_noticed:
            identity = worker.registration.identity
            cause = describe_cause(
                Death(End.CRASHED, "SIGKILL", None),
                worker_id=identity.worker_id,
                rss_bytes=None,
                at=datetime.now(UTC).isoformat(),
            )
            await self.store.reap_workers(DeathCertificate(identity, cause))
        return in_hand

    async def _wait_for_kills(self) -> None:
        if self._kills:
            await asyncio.wait(self._kills)

    def cut_reply(self, script: CutScript, times: int = 1) -> None:
        """Lose the next answer to a script: it runs, and its caller loses the connection to Redis instead.

        For ``enqueue_jobs``, ``enqueue`` raises RedisUnavailable although the job is queued. A worker recovers by itself
        from the loss of the other two.
        """
        if script not in get_args(CutScript):
            raise BenchError(
                f"The answer to {script!r} cannot be cut. Name one of {', '.join(get_args(CutScript))}."
            )
        self._lost_replies[script] += times

    async def restart_redis(self) -> None:
        """Stop the server and start it again with its data; every connection is lost."""
        await asyncio.to_thread(self._server.restart)
        # A producer that has nothing under way learns of it by its next call; here it starts from a new socket.
        await self.store.connection.aclose()
