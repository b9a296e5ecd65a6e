"""Which figures a claim and the end of an attempt give. What is counted is listed in ``metrics.py``."""

from rrq.broker.messages import Claim, ClaimCode, Outcome, OutcomeKind, Verdict
from rrq.engine.attempts import Attempt
from rrq.registry import JobRegistry
from rrq.runtime.metrics import UNREGISTERED, Meter


def measure_claim(meter: Meter, claim: Claim) -> None:
    """Count an answered claim and how long its jobs have waited."""
    if claim.code is not ClaimCode.ANSWERED and not claim.jobs:
        meter.count("rrq_claims_total", "refused")
        return
    meter.count("rrq_claims_total", "jobs" if claim.jobs else "empty")
    meter.observe(len(claim.jobs), "rrq_claim_size_jobs")
    for job in claim.jobs:
        # Both by the clock of Redis; a job deferred by a float may be due a moment from now.
        waited_ms = max(0.0, claim.now_ms - float(job.due_score) - job.head_start_ms)
        meter.observe(waited_ms / 1000, "rrq_queue_wait_seconds", job.queue_name)


def measure_end(
    meter: Meter, registry: JobRegistry, attempt: Attempt, outcome: Outcome, verdict: Verdict
) -> None:
    """Count an attempt whose outcome Redis has answered, by what became of it."""
    function = attempt.job.function_name
    if registry.get_handler(function) is None:
        function = UNREGISTERED
    if verdict is Verdict.FENCED:
        meter.count("rrq_jobs_total", function, "fenced")
        meter.count("rrq_fenced_results_total")
        return
    kind = OutcomeKind.CANCELLED if verdict is Verdict.CANCELLED_INSTEAD else outcome.kind
    meter.count("rrq_jobs_total", function, kind.value)
    if attempt.started_at and attempt.ended_at:
        meter.observe(attempt.ended_at - attempt.started_at, "rrq_job_duration_seconds", function)
    if kind is OutcomeKind.RETRY:
        meter.count("rrq_job_retries_total", function)
