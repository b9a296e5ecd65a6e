"""What this worker process has in hand: one Attempt per claimed job, from the claim to the stored outcome.

The book keeps an outcome for some seconds after Redis has acknowledged it. A restarted Redis may have forgotten the
last second of what it acknowledged, and then ``registration.py`` sends the outcome again, however long the restart
took.
"""

from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from rrq.broker.messages import ClaimedJob, Outcome
from rrq.job import Job
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    import asyncio

#: Longer than what an append-only file fsynced every second can lose.
RETENTION_SECONDS = 5.0

#: At full speed the last seconds are too many to keep. An outcome that is dropped early may run twice after a
#: restart that lost it, but is never lost.
MOST_RETAINED = 5_000
MOST_RETAINED_CHARACTERS = 4_000_000


def choose_timeout_seconds(job: Job, settings: RRQSettings) -> float:
    """Return how many seconds one attempt at a job may take; 0 is a real value."""
    if job.job_timeout_seconds is None:
        return settings.default_job_timeout_seconds
    return job.job_timeout_seconds


def choose_result_ttl_seconds(job: Job, settings: RRQSettings) -> float:
    """Return how many seconds Redis keeps the result of a job; 0 keeps it for ever."""
    if job.result_ttl_seconds is None:
        return settings.default_result_ttl_seconds
    return job.result_ttl_seconds


class Attempt:
    """One claimed job and how far this process has come with it."""

    __slots__ = (
        "claimed",
        "claimed_at",
        "ended_at",
        "error_type",
        "is_cancel_requested",
        "is_lost",
        "is_reported",
        "job",
        "queue_name",
        "started_at",
        "task",
        "token",
    )

    def __init__(self, job: Job, claimed: ClaimedJob, claimed_at: float) -> None:
        self.job = job
        self.claimed = claimed
        #: Monotonic time at which the claim was sent: at that moment at least the lease was this worker's.
        self.claimed_at = claimed_at
        self.token = claimed.token
        self.queue_name = claimed.queue_name
        #: Redis has given the job to another attempt; whatever this one reports changes nothing.
        self.is_lost = False
        self.is_cancel_requested = False
        self.is_reported = False
        #: Monotonic times at which the handler was called and at which its outcome was known.
        self.started_at = self.ended_at = 0.0
        #: What its handler raised, named as a traceback does; '' for an error of RRQ itself.
        self.error_type = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def may_go_back(self) -> bool:
        """Whether a cancellation now means that the job is handed back."""
        return not (self.is_lost or self.is_reported or self.is_cancel_requested)


class AttemptBook:
    """All attempts of one worker process."""

    def __init__(self) -> None:
        # Keyed by the identity of the job object: after a reap the same job id may be in hand
        # twice, once as a lost attempt that is still ending and once as a new one.
        self._by_job: dict[int, Attempt] = {}
        # Per acknowledged outcome: when, how large, what.
        self._reported: deque[tuple[float, int, tuple[ClaimedJob, Outcome]]] = deque()
        self._reported_characters = 0
        #: Monotonic time by which every job in hand must have ended.
        self.latest_deadline = 0.0

    def __len__(self) -> int:
        return len(self._by_job)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._by_job.values()))

    def add(self, attempt: Attempt, timeout_seconds: float) -> None:
        """Take a claimed job in hand, which may run for so long from now."""
        self._by_job[id(attempt.job)] = attempt
        deadline = monotonic() + timeout_seconds
        self.latest_deadline = max(self.latest_deadline, deadline)

    def find(self, job: Job) -> Attempt | None:
        return self._by_job.get(id(job))

    def find_by_id(self, job_id: str) -> list[Attempt]:
        """Return the attempts at one job, lost ones included."""
        return [attempt for attempt in self if attempt.job.id == job_id]

    def find_by_task(self, task: "asyncio.Future[None]") -> list[Attempt]:
        return [attempt for attempt in self if attempt.task is task]

    def owned(self) -> list[Attempt]:
        """Return the attempts that are still this worker's as far as it knows."""
        return [attempt for attempt in self._by_job.values() if not attempt.is_lost]

    def count_unreported_since(self, moment: float) -> int:
        """Return how many attempts were claimed before a monotonic time and have nothing to report yet."""
        return sum(
            attempt.claimed_at < moment and not (attempt.is_lost or attempt.is_reported)
            for attempt in self._by_job.values()
        )

    def has_suspect(self) -> bool:
        """Whether a job is in hand that must run alone."""
        return len(self._by_job) == 1 and next(iter(self._by_job.values())).claimed.is_suspect

    def lose(self, attempt: Attempt) -> None:
        """Note that Redis has given the job to another attempt, and cancel what runs here."""
        attempt.is_lost = True
        if attempt.task is None:
            self.drop(attempt)
        else:
            attempt.task.cancel()

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt that leaves nothing to report."""
        self._by_job.pop(id(attempt.job), None)
        if not self._by_job:
            self.latest_deadline = 0.0

    def keep_reported(self, batch: "list[tuple[ClaimedJob, Outcome]]") -> None:
        """Remember outcomes that were just acknowledged, and forget the oldest."""
        now = monotonic()
        for entry in batch:
            outcome = entry[1]
            characters = len(outcome.text) + len(outcome.traceback)
            self._reported.append((now, characters, entry))
            self._reported_characters += characters
        # One by one, because a single batch may hold hundreds of large results, and be the last for days.
        while (
            self._reported[0][0] < now - RETENTION_SECONDS
            or len(self._reported) > MOST_RETAINED
            or self._reported_characters > MOST_RETAINED_CHARACTERS
        ) and len(self._reported) > 1:
            self._reported_characters -= self._reported.popleft()[1]

    def recently_reported(self) -> "list[tuple[ClaimedJob, Outcome]]":
        """Return what was acknowledged last, within a few seconds.

        Seconds before the last acknowledgement, not before now: what Redis forgets lies before its outage, which may
        last any time. Outcomes that Redis still knows are answered "already applied".
        """
        if not self._reported:
            return []
        oldest = self._reported[-1][0] - RETENTION_SECONDS
        return [entry for at, _, entry in self._reported if at >= oldest]
