"""The worker of a bench: claims, runs and reports as every worker does, but only when the bench calls it.

It has no loop and no thread, and the bench renews its lease. The parts of the engine and the scripts are those of
production.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import ClaimCode, Outcome, OutcomeKind, Verdict
from rrq.client import RRQClient
from rrq.engine.attempts import Attempt
from rrq.engine.observer import Observer
from rrq.exc import LeaseLost
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.testing.bench_store import BenchStore
from rrq.worker import RRQWorker

logger = logging.getLogger(__name__)

# How often a worker with jobs in hand sends a heartbeat, which brings cancellations, and claims more.
_LOOK_SECONDS = 0.05
# A killed worker waits this long for jobs that ignore their cancellation.
_KILL_SECONDS = 1.0


class RunOutcome(StrEnum):
    """How one attempt at a job ended."""

    DONE = "done"
    RETRY = "retry"
    """Failed, or asked for it, and is due again later."""
    DEAD = "dead"
    """Failed for good and dead-lettered."""
    CANCELLED = "cancelled"
    BACK = "back"
    """Handed back uncounted by a worker that stopped."""
    FENCED = "fenced"
    """Too late: Redis had given the job to another attempt, and this outcome changed nothing."""
    KILLED = "killed"
    """The test killed its worker; this attempt reported nothing."""


@dataclass(frozen=True)
class JobRun:
    """One attempt at a job that ended while a bench ran."""

    job_id: str
    function_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    attempt: int
    """1 for the first; an attempt that was handed back or killed does not count."""
    outcome: RunOutcome
    result: Any = None
    """As JSON gives it back; None unless done."""
    error: str | None = None
    """Why it is not done, as it is stored with the job."""
    traceback: str = ""


class _NoLease:
    """The lease of a bench worker: ``beat`` renews it when the bench says so, and no thread does."""

    is_running = True

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class _RunObserver(Observer):
    """Lists the attempts that ended."""

    def __init__(self, on_run: Callable[[JobRun], None], get_queue_name: Callable[[str], str]) -> None:
        self._on_run = on_run
        self._get_queue_name = get_queue_name

    def on_end(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> None:
        self._on_run(_describe_end(attempt, outcome, verdict, self._get_queue_name(attempt.queue_name)))


class BenchWorker(RRQWorker):
    """Runs what is due in the event loop of the test, and can be killed there."""

    def __init__(
        self,
        settings: RRQSettings,
        registry: JobRegistry,
        store: BenchStore,
        on_run: Callable[[JobRun], None],
        known_queues: set[str],
    ) -> None:
        super().__init__(settings, registry)
        # Shared by all workers of a bench: a queue whose jobs are all blocked by a limit has no key, and is served too.
        self._known_queues = known_queues
        self.bench_store = store
        self.job_store = store
        self.client = RRQClient(settings, job_store=store)
        self.is_killed = False
        self._on_run = on_run
        self.observer = _RunObserver(on_run, store.keys.queue_name)
        self.registration.lease = _NoLease()

    async def run_due(self, queues: Sequence[str] | None, is_enough: Callable[[], bool]) -> None:
        """Claim and run until nothing is due or it is enough; all queues there are, unless some are named."""
        while not self.is_killed and not is_enough():
            started = await self._claim_some(queues)
            if self._running_tasks:
                done, _ = await asyncio.wait(
                    self._running_tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self.beat()
            elif not started and not self._has_to_look_again():
                return

    async def _claim_some(self, queues: Sequence[str] | None) -> int:
        free = self._poller.count_free_slots()
        if free <= 0 or self.book.has_suspect():
            return 0
        try:
            self._known_queues.update(await self.bench_store.read_queue_names())
        except REDIS_ERRORS as error:
            await self._poller.back_off(error)
            return 0
        self.queues = list(sorted(self._known_queues) if queues is None else queues)
        self.queues = self.queues or [self.settings.default_queue_name]
        return await self._poll_for_jobs(free)

    def _has_to_look_again(self) -> bool:
        claim = self.consumer.last_claim
        if self._poller.failing_since is not None or claim is None:
            return True
        return claim.code is ClaimCode.ANSWERED and (claim.more_due or bool(claim.make_room_for))

    async def beat(self) -> None:
        """Send a heartbeat and act on its answer; if Redis gives none, the next one is sent as usual."""
        registration = self.registration
        try:
            async with registration.lock:
                await registration.agree()
            beat = registration.build_beat()
            renewal = await self.job_store.renew_leases([beat])
            registration.hear(beat.worker.worker_id, beat.health, renewal.replies[0])
        except (*REDIS_ERRORS, LeaseLost) as error:
            logger.debug("heartbeat failed, trying again", extra={"error": str(error)})

    async def kill(self) -> int:
        """End at once, as far as Redis can tell: nothing is reported any more. Returns the jobs in hand."""
        self.is_killed = True
        self.bench_store.bench_wire.is_dead = True
        in_hand = [attempt for attempt in self.book.owned() if not attempt.is_reported]
        for attempt in in_hand:
            # What a handler that ignores its end still does is not reported.
            attempt.is_lost = attempt.is_reported = True
            queue = self.job_store.keys.queue_name(attempt.queue_name)
            self._on_run(_describe(attempt, RunOutcome.KILLED, queue))
        await self.consumer.stop(flush_seconds=0)
        for task in self._running_tasks:
            task.cancel()
        if self._running_tasks:
            await asyncio.wait(self._running_tasks, timeout=_KILL_SECONDS)
        await self._leave()
        return len(in_hand)

    async def stop(self) -> None:
        """End in order; what still runs is cancelled and handed back."""
        self._drain.cut_short(0.0)
        await self._wind_down()
        await self._leave()

    async def _leave(self) -> None:
        await self._hooks.close()
        await self.client.close()
        await self.job_store.aclose()


def _describe_end(attempt: Attempt, outcome: Outcome, verdict: Verdict, queue: str) -> JobRun:
    if verdict is Verdict.FENCED:
        return _describe(attempt, RunOutcome.FENCED, queue)
    if verdict is Verdict.CANCELLED_INSTEAD:
        return _describe(attempt, RunOutcome.CANCELLED, queue)
    if outcome.kind is OutcomeKind.DONE:
        return _describe(attempt, RunOutcome.DONE, queue, result=json.loads(outcome.text))
    ending = RunOutcome(outcome.kind.value)
    return _describe(attempt, ending, queue, error=outcome.text, traceback=outcome.traceback)


def _describe(attempt: Attempt, ending: RunOutcome, queue: str, **more: Any) -> JobRun:
    job = attempt.job
    return JobRun(
        job.id,
        job.function_name,
        tuple(job.job_args),
        dict(job.job_kwargs),
        queue,
        job.current_retries + 1,
        ending,
        **more,
    )
