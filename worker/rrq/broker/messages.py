"""What the calls of the broker take and return: values only.

The header of the Lua file that returns a code explains it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple


@dataclass(frozen=True)
class WorkerIdentity:
    """The identity of a worker. The incarnation tells a restarted process from the one before it."""

    worker_id: str
    incarnation: str
    pod_uid: str = ""
    pool: str = ""
    """The RRQWorkerPool it belongs to, as ``namespace/name``."""


class EnqueueCode(IntEnum):
    """What became of a new job that was not queued as asked."""

    NOT_A_JOB = -1
    DISABLED = -2
    DUPLICATE = -3
    RUNNING = -4


class Enqueued(NamedTuple):
    """What became of a batch of new jobs."""

    now_us: int
    due_ms: list[int]
    """Per job; negative where it was not queued, see ``EnqueueCode``."""
    job_ids: list[str | None]
    """Per job; the id of the one that stands for it, where that is not the one asked for."""


class ClaimCode(IntEnum):
    LEASE_LOST = 0
    ANSWERED = 1
    DRAINING = 2
    TOO_EARLY = 3
    """Just after a restart of Redis: there may be jobs, but what was due by then waits."""
    PAUSED = 4


class ClaimedJob(NamedTuple):
    """One job as the claim script returns it; values that are only sent back stay bytes."""

    job_id: bytes
    token: str
    token_before: bytes
    queue_name: str
    queue_key: str
    due_score: bytes
    is_suspect: bool
    fields: list[bytes | None]
    #: By how much a priority makes the job look older than it is.
    head_start_ms: float = 0.0


class Claim(NamedTuple):
    """The answer to one claim."""

    code: ClaimCode
    now_ms: int
    next_due_ms: int | None
    more_due: bool
    #: Ids of suspects that this worker is to claim once it runs nothing else; it claims no other job before.
    make_room_for: list[str]
    missing: list[str]
    unreadable: list[str]
    jobs: list[ClaimedJob]


@dataclass(frozen=True)
class ClaimRequest:
    """What a worker wants to claim."""

    worker: WorkerIdentity
    token_base: str
    queues: Sequence[str]
    count: int
    wait_ms: int = 0
    job_ids: Sequence[str] = ()
    lock_ttl_ms: int = 0
    weights: Sequence[float] = ()
    """One per queue; empty to take the queues in order."""


class OutcomeKind(StrEnum):
    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    CANCELLED = "cancelled"
    BACK = "back"
    UNKNOWN_FUNCTION = "unknown_function"
    """Handed back for later, because this worker has no handler for the function."""


class Outcome(NamedTuple):
    """How one attempt ended; ``lua/finish_jobs.lua`` explains text, number and key."""

    job_id: str | bytes
    token: str
    kind: OutcomeKind
    text: str = ""
    number: int | float = 0
    key: str = ""
    traceback: str = ""
    error_type: str = ""


class Verdict(IntEnum):
    """What Redis made of a reported outcome."""

    UNREADABLE = -1
    FENCED = 0
    STORED = 1
    ALREADY_APPLIED = 2
    CANCELLED_INSTEAD = 3


class LeaseState(IntEnum):
    REAPED = 0
    ALIVE = 1
    TAKEN = 2


@dataclass(frozen=True)
class Beat:
    """What one worker reports in a heartbeat."""

    worker: WorkerIdentity
    capacity: int
    queues: Sequence[str]
    health: Mapping[str, Any]
    health_ttl_seconds: int
    is_registration: bool = False
    functions: Sequence[str] = ()
    """The functions that it has handlers for; sent when it registers."""


@dataclass(frozen=True)
class BeatReply:
    """What one worker gets in return."""

    state: LeaseState
    is_draining: bool
    active_count: int
    cancel_job_ids: tuple[str, ...]


@dataclass(frozen=True)
class Renewal:
    """The answer to the heartbeat of one or many workers."""

    now_ms: int
    next_lease_end_ms: int | None
    replies: tuple[BeatReply, ...]


@dataclass(frozen=True)
class DeathCertificate:
    """Proof that one incarnation has ended. ``cause`` is set only when it crashed."""

    worker: WorkerIdentity
    cause: Mapping[str, Any] | None = None
    is_explained: bool = True
    """Whether the reason is known; False where it is not, so that its jobs may be the cause."""


@dataclass(frozen=True)
class ReapReport:
    returned: int
    buried: int
    workers: int
    has_more: bool
    put_off_until_ms: int | None


@dataclass(frozen=True)
class Reconciliation:
    lease_lost: bool
    given_back: int
    set_up_again: int
    lost: frozenset[int]
    """Positions, in the list that was sent, of attempts that this worker no longer owns."""


class CancelCode(IntEnum):
    CANNOT_TELL = -2
    ENDED = -1
    NOT_FOUND = 0
    CANCELLED = 1
    TOLD = 2


@dataclass(frozen=True)
class QueueObservation:
    """The state of one queue. Ages and times are None where there is no such job."""

    due: int
    due_soon: int
    later: int
    oldest_due_age_seconds: float | None
    next_due_ms: int | None
    blocked: int = 0
    """Of those due, how many may not start now, because of a pause or a limit of the queue."""
    orphaned: int = 0
    """Jobs of workers whose lease has ended, which no other number counts: a sweep gives them back to the queue."""


@dataclass(frozen=True)
class WorkerObservation:
    worker_id: str
    pod_uid: str
    busy: int
    capacity: int
    is_draining: bool
    queues: tuple[str, ...]
    lease_ends_ms: int
    incarnation: str
    registered_ms: int | None = None
    """By the clock of Redis; None for a worker that registered before this was written."""
    ended: int = 0
    """Attempts that ended here since it registered, however they ended."""

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.worker_id, self.incarnation, self.pod_uid)


@dataclass(frozen=True)
class Observation:
    """Queues and living workers of one Redis at one moment of its clock."""

    now_ms: int
    queues: dict[str, QueueObservation]
    workers: dict[str, WorkerObservation] = field(default_factory=dict)
    is_controlled: bool = False
    """Whether there is a pause, a limit or a blocked job: then ``admit_jobs`` has something to do."""
    paused: frozenset[str] = frozenset()
    """What is paused: ``queue:<name>``, ``function:<name>``, ``pool:<namespace>/<name>``."""
    ended_leases: int = 0
    """Workers whose lease has ended: it is time to sweep."""
    has_more_orphans: bool = False
    """Whether there may be more orphaned jobs than were counted: one observation counts a limited number."""


@dataclass(frozen=True)
class Admission:
    """How many due jobs were blocked, and how many blocked jobs may start again."""

    blocked: int
    unblocked: int
    unfinished: Mapping[str, int] = field(default_factory=dict)
    """Queues with more due jobs than were looked at, and how many of the jobs looked at may start."""


class CronVerdict(IntEnum):
    FIRED = 1
    UNREADABLE = -1
    ALREADY_FIRED = -2
    AHEAD = -3
    LOCKED = -4
    DISABLED = -5
