"""Decides when a burst is over: every job that was due has been run, and no dead worker has one in hand."""

from enum import Enum, auto
from time import monotonic

from rrq.broker.messages import Claim, ClaimCode
from rrq.engine.executor import Executor
from rrq.engine.host import Host
from rrq.exc import BurstFailed, FunctionsMissing


class BurstStep(Enum):
    GO_ON = auto()
    CLAIM_AGAIN = auto()
    """At once: a job that was handed back before the last look is in its queue now."""
    OVER = auto()


class Burst:
    """Follows what the claims of a burst bring."""

    def __init__(self, worker: Host, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        #: Everything that was due has been run.
        self.is_over = False
        self._idle_since: float | None = None
        self._had_no_orphans = False

    async def look(
        self, started: int, claim: Claim | None, asked_at: float, failing_since: float | None
    ) -> BurstStep:
        """Say how to go on after a poll. Raises a Redis error, and BurstFailed.

        ``asked_at``: the queues were empty then, and may have filled since in a process that stood still.
        ``failing_since``: an empty queue is not the same as one that cannot be read.
        """
        had_no_orphans, self._had_no_orphans = self._had_no_orphans, False
        if started:
            self._idle_since = None
            return BurstStep.GO_ON
        if self._worker._running_tasks - self._executor.ignored_tasks:
            return BurstStep.GO_ON
        if failing_since is not None:
            self._check_patience(failing_since)
            return BurstStep.GO_ON
        if not self._has_lingered(claim, asked_at):
            return BurstStep.GO_ON
        if had_no_orphans:
            self._check_no_function_was_missing()
            self.is_over = True
            return BurstStep.OVER
        # With none left, one more claim at once: what came back before the look is in its queue now.
        self._had_no_orphans = await self._is_without_orphans()
        return BurstStep.CLAIM_AGAIN if self._had_no_orphans else BurstStep.GO_ON

    def _check_patience(self, failing_since: float) -> None:
        patience_seconds = self._worker.settings.worker_burst_redis_patience_seconds
        if monotonic() - failing_since > patience_seconds:
            raise BurstFailed(
                f"Redis gave no answer for {patience_seconds:g} s, so it is unknown whether the "
                "queues are empty. Check redis_dsn and run the burst again."
            )

    def _has_lingered(self, claim: Claim | None, asked_at: float) -> bool:
        if claim is not None and (
            claim.code is not ClaimCode.ANSWERED or claim.more_due or claim.jobs or claim.make_room_for
        ):
            return False
        self._idle_since = self._idle_since or asked_at
        return asked_at - self._idle_since >= self._worker.settings.worker_burst_linger_seconds

    async def _is_without_orphans(self) -> bool:
        """Whether no worker whose lease has ended has jobs of these queues in hand; a reap gives them back."""
        seen = await self._worker.job_store.observe(self._worker.queues, most_workers=0)
        return not (seen.has_more_orphans or any(queue.orphaned for queue in seen.queues.values()))

    def _check_no_function_was_missing(self) -> None:
        """Raise FunctionsMissing where a burst leaves jobs behind that it could not run."""
        missing = self._executor.failures.missing_functions
        if missing:
            names = ", ".join(map(repr, sorted(missing)))
            raise FunctionsMissing(
                f"This burst ran all other jobs, but it has no handler for {names}. It put off the jobs of these "
                "functions. Register them, or correct the names where the jobs are enqueued, and run the burst again."
            )
