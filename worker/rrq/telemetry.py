"""The interface of tracers: what RRQ tells them about enqueues and attempts.

``configure()`` takes an object of a class derived from ``Telemetry``; ``rrq.integrations`` has those
for OpenTelemetry, Logfire and Datadog. ``tracing.py`` decides when spans begin and end.
"""

from collections.abc import Sequence
from datetime import datetime

from rrq.job import Job

__all__ = [
    "PREVIOUS_ATTEMPT",
    "EnqueueSpan",
    "JobSpan",
    "Telemetry",
    "configure",
    "disable",
    "get_telemetry",
    "queue_wait_seconds",
]

#: Beside the W3C headers in ``Job.trace_context``: the ``traceparent`` of the attempt before.
PREVIOUS_ATTEMPT = "rrq-previous"


class EnqueueSpan:
    """One call that enqueues jobs, current from its making to its end. This one records nothing."""

    def headers(self) -> dict[str, str] | None:
        """Return what the jobs of this call carry as their ``trace_context``."""
        return None

    def end(self, jobs: Sequence[Job], error: BaseException | None = None) -> None:
        """The call is over: these jobs were queued, or ``error`` is why none is known to be."""

    def discard(self) -> None:
        """Record nothing: the call had no effect, such as for a cron tick that another worker fired."""


class JobSpan:
    """One attempt at a job, current for its handler from the making to ``leave()``."""

    def headers_for_retry(self) -> dict[str, str] | None:
        """Return the ``trace_context`` that lets the next attempt find this one; None for no change."""
        return None

    def end(self, outcome: str, error: BaseException | None = None, message: str = "") -> None:
        """The attempt has ended; ``outcome`` is done, retry, dead, cancelled, back or lost.

        It is what the attempt reports; Redis may still refuse it when the job has been given to another
        one. ``error`` is what the handler raised, if it raised; ``message`` is why there is no result.
        May be called from another task than the one that runs the handler; the first call counts.
        """

    def leave(self) -> None:
        """The task of the attempt is over: the span is no longer current. Comes after ``end``."""


class Telemetry:
    """Makes the spans. This one is the default, which makes none that record anything."""

    #: Looked at once per enqueue and once per job; False skips everything else.
    enabled: bool = False

    def enqueue_span(self, function_name: str) -> EnqueueSpan:
        """A producer begins a call; the name is empty when it may be for several functions."""
        return EnqueueSpan()

    def job_span(self, job: Job, queue_name: str, worker_id: str) -> JobSpan:
        """A worker begins an attempt; called in the task that will run the handler."""
        return JobSpan()


_OFF = Telemetry()
#: The tracer of this process. Read anew at each use, because it may be switched at any time.
active: Telemetry = _OFF


def configure(telemetry: Telemetry) -> None:
    """Trace every enqueue and every attempt in this process with ``telemetry`` from now on."""
    global active
    active = telemetry


def disable() -> None:
    """Stop tracing. Attempts under way still end their spans."""
    configure(_OFF)


def get_telemetry() -> Telemetry:
    """Return the tracer of this process."""
    return active


def queue_wait_seconds(job: Job, now: datetime) -> float:
    """Return how long a job has been due. Never negative, as the clock here may be behind Redis's."""
    due = job.next_scheduled_run_time or job.enqueue_time
    return max(0.0, (now - due).total_seconds())
