"""Who may lead, decided from what one candidate saw and its own clock. Pure; control/election.py acts on it.

Times of different machines are never compared. A candidate notes by its own clock when it first saw the Lease as it is
now, and takes it over only when it stayed like that for the whole duration. The leader counts from the moment it *sent*
the last renewal that was confirmed, and stops earlier than that duration. The Lease cannot have changed before that
renewal was sent, so the leader has stopped before another candidate may start.

A candidate writes its name only over a version that it has watched for that long. It therefore creates a missing Lease
without a holder: two reads that find none do not prove that there was no Lease, and no leader, in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

#: Of a duration that another client wrote; a Lease with an hour in it must not stop the operator for an hour.
LONGEST_HONOURED_SECONDS = 60
#: The duration that a leader writes when it releases the Lease, as Kubernetes' own components do.
RELEASED_DURATION_SECONDS = 1
#: The field is an int32; a larger number would be refused for ever.
MOST_TRANSITIONS = 2**31 - 1


@dataclass(frozen=True)
class Timing:
    """The defaults find a new leader within 8 s of a kill: 1 to see the last renewal, 5 to wait, 2 to retry."""

    lease_seconds: int = 5
    renew_interval_seconds: float = 1.0
    renew_deadline_seconds: float = 3.5
    """From sending the last confirmed renewal to the moment the leader stops acting by itself."""
    call_timeout_seconds: float = 1.0
    retry_seconds: float = 0.5
    work_stop_seconds: float = 1.0
    """For the work to end once it is cancelled."""

    def __post_init__(self) -> None:
        if not self.renew_interval_seconds + self.call_timeout_seconds < self.renew_deadline_seconds:
            raise ValueError(
                f"A renewal every {self.renew_interval_seconds} s that may take {self.call_timeout_seconds} s does "
                f"not fit before the deadline of {self.renew_deadline_seconds} s: one lost call would end the "
                "leadership. Raise renew_deadline_seconds."
            )
        if not self.renew_deadline_seconds + self.work_stop_seconds < self.lease_seconds:
            raise ValueError(
                f"A leader that stops {self.renew_deadline_seconds} s after its last renewal and needs up to "
                f"{self.work_stop_seconds} s for it may meet its successor, who starts after {self.lease_seconds} s. "
                "Raise lease_seconds."
            )
        if self.lease_seconds > LONGEST_HONOURED_SECONDS:
            raise ValueError(
                f"A lease of {self.lease_seconds} s is longer than the {LONGEST_HONOURED_SECONDS} s that other "
                "candidates wait for. Lower lease_seconds."
            )


@dataclass(frozen=True)
class LeaseRecord:
    """What we read and write of a Lease."""

    version: str
    """The resourceVersion: a write names the one it was decided on, and fails if that is no longer the latest."""
    holder: str = ""
    duration_seconds: int | None = None
    acquired_at: datetime | None = None
    renewed_at: datetime | None = None
    transitions: int = 0


class ElectionError(Exception):
    """Something about the Lease went wrong."""


class LeaseTaken(ElectionError):
    """A write did not happen: the Lease has changed since the write was decided."""


class LeaseUnreachable(ElectionError):
    """Whether a read or write happened is unknown."""


class WorkDoesNotStop(ElectionError):
    """The work of a leader runs on after its leadership; only the end of the process stops it."""


class LeaseStore(Protocol):
    """One Lease. Each call fails with `LeaseUnreachable`, and a write with `LeaseTaken`."""

    async def read(self) -> LeaseRecord | None: ...

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Write it if there is none, and return what is there now."""
        ...

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """Write it if `record.version` is the latest, and return what is there now."""
        ...


@dataclass(frozen=True)
class Sighting:
    """The Lease as last seen, and since when it has been like that for us."""

    record: LeaseRecord | None
    """None: there was no Lease."""
    since_seconds: float
    """By our own clock, when the answer had come: the change itself was earlier, never later."""


@dataclass(frozen=True)
class Memory:
    """All that one candidate knows."""

    identity: str
    sighting: Sighting | None = None
    is_current: bool = False
    """Whether the Lease is still as in ``sighting``, as far as is known: true right after a read or write."""
    held_until_seconds: float | None = None
    """By our own clock; None for a candidate that does not lead."""


@dataclass(frozen=True)
class Look:
    """Read the Lease first."""


@dataclass(frozen=True)
class Create:
    """Create the missing Lease, without a holder."""


@dataclass(frozen=True)
class Acquire:
    """Write our name, on condition that the Lease is still as it was seen."""

    seen: LeaseRecord


@dataclass(frozen=True)
class Renew:
    """Write a new time beside our name, on the same condition."""

    seen: LeaseRecord


@dataclass(frozen=True)
class Wait:
    """Another candidate may be leading for this long, if nothing changes."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """Stop leading now."""

    reason: str


Decision = Look | Create | Acquire | Renew | Wait | Lost


def observe(earlier: Sighting | None, record: LeaseRecord | None, now_seconds: float) -> Sighting:
    """Return what is known after an answer that came at ``now_seconds``.

    A change shows in the version, not in the content: a leader whose wall clock stands still renews all the same.
    """
    if earlier is not None and _version_of(earlier.record) == _version_of(record):
        return Sighting(record, earlier.since_seconds)
    return Sighting(record, now_seconds)


def decide(memory: Memory, now_seconds: float, timing: Timing) -> Decision:
    """Return the next step of a candidate or leader."""
    is_leading = memory.held_until_seconds is not None
    if memory.held_until_seconds is not None and now_seconds >= memory.held_until_seconds:
        return Lost("the lease could not be renewed in time")
    if memory.sighting is None or not memory.is_current:
        return Look()
    record = memory.sighting.record
    if record is None:
        return Create()
    if record.holder == memory.identity:
        # Ours, also when the answer to our write was lost: no other candidate can have taken it since.
        return Renew(record)
    if is_leading:
        # Deleted and created again, or emptied by hand: while our term lasts, no other name has been in it.
        return Lost(f"the lease is held by {record.holder!r}") if record.holder else Acquire(record)
    remaining_seconds = memory.sighting.since_seconds + _honoured_seconds(record, timing) - now_seconds
    return Acquire(record) if remaining_seconds <= 0 else Wait(remaining_seconds)


def build_vacant(timing: Timing) -> LeaseRecord:
    """Return a Lease without a holder, which no candidate may take before an unknown leader has stopped."""
    return LeaseRecord(version="", duration_seconds=timing.lease_seconds)


def build_held(seen: LeaseRecord, identity: str, wall_time: datetime, timing: Timing) -> LeaseRecord:
    """Return the Lease as its holder writes it over what was ``seen``."""
    renewed_at = _choose_renew_time(wall_time, seen)
    is_renewal = seen.holder == identity
    return LeaseRecord(
        version=seen.version,
        holder=identity,
        duration_seconds=timing.lease_seconds,
        acquired_at=seen.acquired_at if is_renewal else renewed_at,
        renewed_at=renewed_at,
        transitions=seen.transitions if is_renewal else min(seen.transitions + 1, MOST_TRANSITIONS),
    )


def build_released(seen: LeaseRecord, wall_time: datetime) -> LeaseRecord:
    """Return the Lease as its holder releases it for the next candidate."""
    return LeaseRecord(
        version=seen.version,
        duration_seconds=RELEASED_DURATION_SECONDS,
        acquired_at=seen.acquired_at,
        renewed_at=_choose_renew_time(wall_time, seen),
        transitions=seen.transitions,
    )


def _honoured_seconds(record: LeaseRecord, timing: Timing) -> float:
    if not record.holder and record.duration_seconds == RELEASED_DURATION_SECONDS:
        return 0.0
    if record.duration_seconds is None or record.duration_seconds <= 0:
        return timing.lease_seconds
    return min(record.duration_seconds, LONGEST_HONOURED_SECONDS)


def _choose_renew_time(wall_time: datetime, seen: LeaseRecord) -> datetime:
    """Return the time to write: the given one, or a microsecond later where that would not do.

    An update that changes nothing is answered as done and gives no new version, so the time must differ from the
    one there. And Python writes a whole second without its fraction, which the API server refuses to read.
    """
    renewed_at = wall_time
    while renewed_at.microsecond == 0 or renewed_at == seen.renewed_at:
        renewed_at += timedelta(microseconds=1)
    return renewed_at


def _version_of(record: LeaseRecord | None) -> str | None:
    return record.version if record is not None else None
