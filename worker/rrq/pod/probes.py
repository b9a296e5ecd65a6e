"""What the cluster is told about a pod: alive, ready, started. Pure.

Liveness is red only for what the supervisor cannot cure itself, because the cluster's answer is to kill the
whole pod. One hung or crashing child, or a Redis that is away, is no reason for that.

A pod that the operator keeps from claiming stays ready. Not ready, it would be the first that Kubernetes takes
away, with the jobs it still runs.
"""

from dataclasses import dataclass

from rrq.pod.restarts import NOT_CURABLE_AFTER

#: The supervisor looks after its children several times a second; after this long it has stopped doing so.
STALLED_AFTER_SECONDS = 10.0


#: A child that is replaced is back long before.
NOBODY_UP_SECONDS = 30.0


@dataclass(frozen=True)
class PodState:
    """How a pod stands at one moment, in monotonic time."""

    at: float
    is_stopping: bool
    """A signal told the pod to end."""
    redis_answered_at: float | None
    redis_patience_seconds: float
    failures: tuple[int, ...]
    """Per child: starts in a row that came to nothing."""
    registered: int
    """Children that are able to claim."""
    able_at: float
    """When there last was one."""
    has_started: bool
    """Every child has been able to claim once."""


@dataclass(frozen=True)
class Verdict:
    is_green: bool
    reason: str


def decide_liveness(state: PodState, now: float) -> Verdict:
    stalled_seconds = now - state.at
    if stalled_seconds > STALLED_AFTER_SECONDS:
        return Verdict(False, f"the supervisor has not turned for {stalled_seconds:.0f} s")
    if state.registered == 0 and state.failures and min(state.failures) >= NOT_CURABLE_AFTER:
        return Verdict(
            False,
            f"no worker process stays up: {min(state.failures)} starts in a row failed. "
            "The log of the pod tells why each ended.",
        )
    return Verdict(True, "alive")


def decide_readiness(state: PodState, now: float) -> Verdict:
    if state.is_stopping:
        return Verdict(False, "the pod is stopping")
    if not state.has_started:
        return decide_startup(state)
    if state.redis_answered_at is None:
        return Verdict(False, "Redis has not answered yet")
    silent_seconds = now - state.redis_answered_at
    if silent_seconds > state.redis_patience_seconds:
        return Verdict(False, f"Redis has not answered for {silent_seconds:.0f} s")
    idle_seconds = now - state.able_at
    if idle_seconds > NOBODY_UP_SECONDS:
        return Verdict(False, f"no worker process has been able to claim for {idle_seconds:.0f} s")
    return Verdict(True, "ready")


def decide_startup(state: PodState) -> Verdict:
    if state.has_started:
        return Verdict(True, "started")
    return Verdict(False, f"{state.registered} of {len(state.failures)} worker processes are up so far")
