"""Counts what was read: jobs per queue, dead letters per cause. Pure.

Each job is added by itself, so that counting a million of them takes no more memory than one.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from rrq.jobs.stored_job import StoredJob
from rrq.runtime.error_types import describe_error

_THROUGHPUT_WINDOW: Final = timedelta(hours=1)
_LONGEST_PATTERN: Final = 80
# What differs between two failures of the same kind: quoted values, addresses, ids, numbers.
_VARIABLE: Final = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{16,}\b|\d+", re.IGNORECASE
)


@dataclass
class QueueCounts:
    """What the stored jobs of one queue add up to."""

    statuses: Counter[str] = field(default_factory=Counter)
    waited_seconds: float = 0.0
    waited_jobs: int = 0
    completed_in_window: int = 0

    def add(self, job: StoredJob, now: datetime) -> None:
        self.statuses[job.status] += 1
        waited = job.wait_seconds()
        if waited is not None:
            self.waited_seconds += waited
            self.waited_jobs += 1
        ended_at = job.completed_at
        if job.status == "COMPLETED" and ended_at is not None and now - ended_at <= _THROUGHPUT_WINDOW:
            self.completed_in_window += 1

    @property
    def average_wait_seconds(self) -> float | None:
        return self.waited_seconds / self.waited_jobs if self.waited_jobs else None

    @property
    def completed_per_minute(self) -> float:
        """The mean of the last hour."""
        return self.completed_in_window / (_THROUGHPUT_WINDOW / timedelta(minutes=1))


@dataclass
class DeadLetterCounts:
    """What the dead letters of one list add up to."""

    jobs: int = 0
    retries: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    queues: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, job: StoredJob, queue_name: str) -> None:
        self.jobs += 1
        self.retries += job.retries
        self.queues[queue_name] += 1
        self.functions[job.function_name or "(unknown)"] += 1
        self.errors[error_pattern(job)] += 1
        failed_at = job.completed_at
        if failed_at is not None:
            self.oldest = failed_at if self.oldest is None else min(self.oldest, failed_at)
            self.newest = failed_at if self.newest is None else max(self.newest, failed_at)

    @property
    def average_retries(self) -> float | None:
        return self.retries / self.jobs if self.jobs else None


def error_pattern(job: StoredJob) -> str:
    """Return what errors of one kind have in common: the type, and the first line with what varies as ``#``."""
    lines = (job.last_error or "").strip().splitlines()
    message = _VARIABLE.sub("#", lines[0])[:_LONGEST_PATTERN] if lines else ""
    return describe_error(job.error_type, message) or "(no error text)"
