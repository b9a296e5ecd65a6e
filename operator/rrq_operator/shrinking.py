"""Which pods leave a pool that becomes smaller, and when they may. Pure.

In two phases, so that no running job is cut: pods chosen to go are flagged in Redis, which refuses them further
jobs; once such a pod is seen flagged *and* idle in one observation, nothing can start in it any more, and only
then does the pool ask for one replica less. Kubernetes is told by the deletion cost which pods are meant.

Kubernetes prefers pods that are not ready to those with the lowest cost, and a flagged pod may turn not ready at
any moment (it says so to its probe). So while a pod is flagged and still runs jobs, nothing is lowered.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Candidate:
    """A pod of the pool that is not on its way out already."""

    uid: str
    name: str
    is_ready: bool
    created_at: float
    busy: int
    is_draining: bool
    """Whether every worker of it was seen flagged, in the same moment as ``busy`` was counted."""
    has_workers: bool
    deletion_cost: int = 0
    is_settled: bool = True
    """Whether all its workers are in sight, as far as we know: none of them vanished lately."""
    was_released: bool = False
    """Whether a flag was taken away lately: it may believe for a while yet that it drains, and turn not ready."""


@dataclass(frozen=True)
class ShrinkPlan:
    """What to do now, in this order: flags, costs, replicas; or Kubernetes may choose other pods."""

    drain: tuple[str, ...] = ()
    """Pod uids to flag, or to keep flagged."""
    release: tuple[str, ...] = ()
    """Pod uids whose flag is taken away: the work came back."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """Deletion cost by pod name, where it has to change."""
    replicas: int | None = None
    """What to ask for now; None leaves it."""
    waiting_for: int = 0
    """Pods that are to leave and have not gone quiet yet."""


#: The lowest that Kubernetes knows, so that no pod of somebody who uses costs themselves is below it.
VICTIM_COST = -(2**31)


def plan_shrinking(
    candidates: Sequence[Candidate],
    requested: int,
    target: int,
    flagged: Collection[str],
    *,
    is_rolling_out: bool,
) -> ShrinkPlan:
    """Return the next step from ``requested`` towards ``target`` replicas.

    ``flagged``: pods that we ourselves flagged in the round before, so that the flag is fresh. A flag that is only
    seen, of an earlier leader perhaps, may end between this observation and what is done about it.
    """
    # Pods beyond what is asked for are leaving already; they stay flagged, also when the pool grows meanwhile.
    kept = min(target, requested)
    victims = sorted(candidates, key=lambda pod: _order(pod, flagged))[
        : _count_victims(len(candidates), requested, kept, is_rolling_out=is_rolling_out)
    ]
    # The idle leave first: together with a long job they would all have to wait for its end.
    drained = [
        pod for pod in victims if not pod.busy or not pod.is_ready or _is_flagged(pod, flagged)
    ] or victims
    quiet = [pod for pod in drained if _has_gone_quiet(pod, flagged)]
    quiet_uids = {pod.uid for pod in quiet}
    drained_uids = {pod.uid for pod in drained}
    staying = [pod for pod in candidates if pod.uid not in quiet_uids]
    may_lower = (
        # In a roll-out replicas are spread over two ReplicaSets, and costs are compared only within one.
        not is_rolling_out
        and all(_stays_ready(pod, flagged) and pod.uid not in drained_uids for pod in staying)
    ) or (kept == 0 and not staying)  # all go, so that nobody can choose wrongly
    # Never fewer than the pods that must not go. Those that were asked for and never came are given up first.
    lowered = max(kept, len(staying))
    return ShrinkPlan(
        drain=tuple(pod.uid for pod in drained),
        release=tuple(
            pod.uid for pod in candidates if pod.uid not in drained_uids and _is_flagged(pod, flagged)
        ),
        costs={
            # Also where a flag ended before its pod could leave: by its old cost it would go with its jobs.
            **{pod.name: 0 for pod in staying if pod.deletion_cost == VICTIM_COST},
            **{pod.name: VICTIM_COST for pod in quiet if may_lower and pod.deletion_cost != VICTIM_COST},
        },
        replicas=lowered if may_lower and lowered < requested else None,
        waiting_for=len(victims) - len(quiet),
    )


def _count_victims(present: int, requested: int, kept: int, *, is_rolling_out: bool) -> int:
    if is_rolling_out and kept > 0:
        # What is beyond that are the extra pods of the roll-out, which the Deployment takes away itself.
        present = min(present, requested)
    return max(0, present - kept)


def _order(pod: Candidate, flagged: Collection[str]) -> tuple[bool, bool, int, float]:
    """Kubernetes takes pods that are not ready first, so those go first; then who is on the way out already."""
    return pod.is_ready, not _is_flagged(pod, flagged), pod.busy, -pod.created_at


def _is_flagged(pod: Candidate, flagged: Collection[str]) -> bool:
    return pod.is_draining or pod.uid in flagged


def _has_gone_quiet(pod: Candidate, flagged: Collection[str]) -> bool:
    # Where no worker is there yet, whoever comes finds the flag.
    is_refused_jobs = pod.is_draining or not pod.has_workers
    return pod.uid in flagged and is_refused_jobs and pod.busy == 0 and pod.is_settled


def _stays_ready(pod: Candidate, flagged: Collection[str]) -> bool:
    return pod.is_ready and not pod.was_released and not _is_flagged(pod, flagged)
