"""What the engine of a worker lets others know while it works, and the figures that are made of it.

A worker that nothing observes skips these calls. The process of a pod reports to its supervisor through them
(``pod/child.py``), and the test kit lists the attempts that ended.
"""

from rrq.broker.messages import Claim, ClaimCode, Outcome, OutcomeKind, Verdict
from rrq.engine.attempts import Attempt
from rrq.registry import JobRegistry
from rrq.runtime.metrics import UNREGISTERED, Meter

__all__ = ["Figures", "Observer"]


class Observer:
    """Base of observers. Override the methods of interest; the others do nothing."""

    def on_claim(self, claim: Claim, latest_deadline: float) -> None:
        """Redis has answered a claim, and none of its jobs has started yet.

        ``latest_deadline`` is the monotonic time by which all jobs in hand must have ended.
        """

    def on_failed_claim(self) -> None:
        """Redis gave no answer to a claim."""

    def on_lost_race(self) -> None:
        """A wake-up brought no job, because another worker was faster."""

    def on_end(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> None:
        """Redis has answered to the outcome of an attempt."""

    def on_turn(self, lag_seconds: float) -> None:
        """The event loop turned, so many seconds late. Called about once a second."""


class Figures(Observer):
    """Counts for a meter what is listed in ``runtime/metrics.py``."""

    def __init__(self, meter: Meter, registry: JobRegistry) -> None:
        self.meter = meter
        self._registry = registry

    def on_claim(self, claim: Claim, latest_deadline: float) -> None:
        if claim.code is not ClaimCode.ANSWERED and not claim.jobs:
            self.meter.count("rrq_claims_total", "refused")
            return
        self.meter.count("rrq_claims_total", "jobs" if claim.jobs else "empty")
        self.meter.observe(len(claim.jobs), "rrq_claim_size_jobs")
        for job in claim.jobs:
            # Both by the clock of Redis; a job deferred by a float may be due up to a millisecond from now.
            waited_ms = max(0.0, claim.now_ms - float(job.due_score) - job.head_start_ms)
            self.meter.observe(waited_ms / 1000, "rrq_queue_wait_seconds", job.queue_name)

    def on_failed_claim(self) -> None:
        self.meter.count("rrq_claims_total", "failed")

    def on_lost_race(self) -> None:
        self.meter.count("rrq_lost_races_total")

    def on_end(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> None:
        function = attempt.job.function_name
        if self._registry.get_handler(function) is None:
            function = UNREGISTERED
        if verdict is Verdict.FENCED:
            self.meter.count("rrq_jobs_total", function, "fenced")
            self.meter.count("rrq_fenced_results_total")
            return
        kind = OutcomeKind.CANCELLED if verdict is Verdict.CANCELLED_INSTEAD else outcome.kind
        self.meter.count("rrq_jobs_total", function, kind.value)
        if attempt.started_at and attempt.ended_at:
            self.meter.observe(attempt.ended_at - attempt.started_at, "rrq_job_duration_seconds", function)
        if kind is OutcomeKind.RETRY:
            self.meter.count("rrq_job_retries_total", function)

    def on_turn(self, lag_seconds: float) -> None:
        self.meter.observe(lag_seconds, "rrq_loop_lag_seconds")
