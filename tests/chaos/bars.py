"""What the times of a run are held against."""

from __future__ import annotations

from dataclasses import dataclass

from reruns import RENEWALS_PER_LEASE, REPORT_SECONDS

# Of a grace period and what comes after it: so long an orphan may try to end its jobs before it is ended.
DRAIN_SECONDS = 12.0
# For a sweep to be noticed as due, to come and to be done; what is left of a short lease is too little for that.
LEAST_SWEEP_SECONDS = 2.0


@dataclass(frozen=True)
class Bars:
    """What is promised with the default lease of 15 s.

    `report_seconds` is how long an outcome may be on its way to Redis when nothing is in its way.
    """

    child_due_again_seconds: float = 1.0
    supervisor_due_again_seconds: float = 20.0
    pod_due_again_seconds: float = 20.0
    backlog_seconds: float = 30.0
    report_seconds: float = REPORT_SECONDS
    #: Where producers wait until a job is safe, and Redis may forget none that it acknowledged.
    durable_parts: frozenset[str] = frozenset()


def build_bars(lease_seconds: float, room: float = 1.0, durable_parts: frozenset[str] = frozenset()) -> Bars:
    """Return the bars of a run.

    `room` stretches what takes longer on a machine that has other things to do. The time that a lease or a grace period
    takes by itself is the same everywhere, and counts get no room.
    """
    renewal_seconds = lease_seconds / RENEWALS_PER_LEASE
    return Bars(
        child_due_again_seconds=room,
        supervisor_due_again_seconds=DRAIN_SECONDS + (renewal_seconds + 3.0) * room,
        pod_due_again_seconds=lease_seconds + max(LEAST_SWEEP_SECONDS, renewal_seconds) * room,
        backlog_seconds=30.0 * room,
        report_seconds=REPORT_SECONDS * room,
        durable_parts=durable_parts,
    )
