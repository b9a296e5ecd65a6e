"""Decides what the probes of a pod answer: alive, ready, started. Pure.

Liveness is red only for what the supervisor cannot fix itself, because Kubernetes then restarts the whole pod. One hung
or crashing child, or a Redis that does not answer, is no reason for that.

A pod with a drain flag of the operator stays ready. Kubernetes removes pods that are not ready first, with the jobs that
they still run.
"""

from dataclasses import dataclass

from rrq.pod.restarts import NOT_CURABLE_AFTER

#: The supervisor checks its children several times a second; after this time without a check it hangs.
STALLED_AFTER_SECONDS = 10.0

#: Longer than it takes to replace a child.
NO_CHILD_UP_SECONDS = 30.0


@dataclass(frozen=True)
class PodState:
    """The state of a pod at one moment, in monotonic time."""

    at: float
    is_stopping: bool
    """A signal has asked the pod to end."""
    redis_answered_at: float | None
    redis_patience_seconds: float
    failures: tuple[int, ...]
    """For each place: starts in a row that failed."""
    registered: int
    """Children that are able to claim."""
    able_at: float
    """When at least one child was last able to claim."""
    has_started: bool
    """Every child has been able to claim once."""


@dataclass(frozen=True)
class Verdict:
    is_green: bool
    reason: str


def decide_liveness(state: PodState, now: float) -> Verdict:
    stalled_seconds = now - state.at
    if stalled_seconds > STALLED_AFTER_SECONDS:
        return Verdict(False, f"the supervisor has not checked its children for {stalled_seconds:.0f} s")
    if state.registered == 0 and state.failures and min(state.failures) >= NOT_CURABLE_AFTER:
        return Verdict(
            False,
            f"no worker process stays up: {min(state.failures)} starts in a row failed. "
            "The log of the pod says why each ended.",
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
    if idle_seconds > NO_CHILD_UP_SECONDS:
        return Verdict(False, f"no worker process has been able to claim for {idle_seconds:.0f} s")
    return Verdict(True, "ready")


def decide_startup(state: PodState) -> Verdict:
    if state.has_started:
        return Verdict(True, "started")
    return Verdict(False, f"{state.registered} of {len(state.failures)} worker processes are up so far")
