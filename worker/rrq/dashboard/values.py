"""Values between the store and the JSON of the page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rrq.broker.keys import Keys
from rrq.broker.messages import QueueObservation, WorkerObservation
from rrq.flow import FlowState, MinuteStats
from rrq.jobs.stored_job import StoredJob

#: What the server sends to the page.
Json = dict[str, Any]
LONGEST_LINE: Final = 300


@dataclass(frozen=True)
class DashboardSnapshot:
    """Queues, workers and counters at one moment, by the clock of Redis."""

    now_ms: int
    queues: dict[str, QueueObservation]
    workers: dict[str, WorkerObservation]
    counters: dict[str, int]
    dead_letters: int
    flow: FlowState
    minutes: tuple[MinuteStats, ...]
    """The last hour, the oldest minute first; the newest is not over yet."""

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)


@dataclass(frozen=True)
class JobQuery:
    """Which jobs a list shows."""

    source: str
    queue: str = ""
    text: str = ""
    status: str = ""
    offset: int = 0


@dataclass(frozen=True)
class ListedJob:
    job_id: str
    job: StoredJob | None
    due_at_ms: float | None = None
    worker_id: str | None = None
    scope: str | None = None
    """The scope of the limit or pause that blocks the job."""


@dataclass(frozen=True)
class JobPage:
    jobs: list[ListedJob] = field(default_factory=list)
    total: int = 0
    """All entries of the list, matching or not."""
    looked_at: int = 0
    """Entries that were read to fill this page."""
    next_offset: int | None = None


def matches(query: JobQuery, keys: Keys, job_id: str, job: StoredJob | None) -> bool:
    """Return whether a job matches; an expired job matches a query without conditions."""
    queue = keys.queue_name(job.queue_name) if job is not None and job.queue_name else ""
    if query.status and (job is None or job.status != query.status):
        return False
    # The list of one queue has no jobs of others, whatever their fields say.
    if query.queue and query.source != "queued" and queue != keys.queue_name(query.queue):
        return False
    fields = (job.function_name, job.described_error, queue) if job is not None else ()
    return any(query.text.lower() in (value or "").lower() for value in (job_id, *fields))


@dataclass(frozen=True)
class WorkerFacts:
    """One worker; None where its kind does not report a value."""

    worker_id: str
    kind: str
    status: str
    pod_uid: str
    busy: int
    capacity: int
    is_draining: bool
    queues: tuple[str, ...]
    lease_seconds: float | None
    ended: int | None
    registered_ms: int | None
    running: tuple[tuple[str, float], ...]
    """Ids of the running jobs and when each was started, in Unix seconds."""


@dataclass(frozen=True)
class WorkerPage:
    workers: list[WorkerFacts]
    jobs: Mapping[str, StoredJob]
    """The running jobs that are still stored, by id."""


@dataclass(frozen=True)
class FoundJob:
    job: StoredJob
    is_dead_letter: bool


def to_ms(moment: datetime | None) -> int | None:
    """Return milliseconds since 1970; None for an unknown moment."""
    return None if moment is None else int(moment.timestamp() * 1000)


def first_line(text: str | None) -> str | None:
    """Return the first line of a text, cut to the width of a list."""
    lines = (text or "").strip().splitlines()
    return lines[0][:LONGEST_LINE] if lines else None
