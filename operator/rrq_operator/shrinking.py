"""Which pods leave a pool that becomes smaller, and when they may. Pure.

In two phases, so that no running job is cut: pods chosen to go are flagged in Redis, which refuses them further
jobs; once such a pod is seen flagged *and* idle in one observation, nothing can start in it any more, and only
then does the pool ask for one replica less. Kubernetes is told by the deletion cost which pods are meant.
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


@dataclass(frozen=True)
class ShrinkPlan:
    """What to do now. Costs are written before replicas are lowered, or Kubernetes may choose other pods."""

    drain: tuple[str, ...] = ()
    """Pod uids to flag, or to keep flagged."""
    release: tuple[str, ...] = ()
    """Pod uids whose flag is taken away: the work came back."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """Deletion cost by pod name, where it has to change."""
    replicas: int | None = None
    """What to ask for now; None leaves it."""
    waiting_for: int = 0
    """Pods that are flagged and still run jobs."""


#: Below every pod of somebody who uses costs themselves.
VICTIM_COST = -1_000_000


def plan_shrinking(
    candidates: Sequence[Candidate],
    requested: int,
    target: int,
    flagged: Collection[str],
    *,
    is_rolling_out: bool,
) -> ShrinkPlan:
    """Return the next step from ``requested`` towards ``target`` replicas.

    ``flagged``: pods that we flagged in an earlier round, for pods whose workers are not there yet to be seen.
    """
    surplus = requested - target
    if surplus <= 0:
        return _release_all(candidates, flagged)
    # Pods that were asked for and never came (a full quota, say) are given up first.
    missing = max(0, requested - len(candidates))
    victims = sorted(candidates, key=_order)[: max(0, surplus - missing)]
    victim_uids = {pod.uid for pod in victims}
    gone_quiet = [pod for pod in victims if _has_gone_quiet(pod, flagged)]
    released = _release_all([pod for pod in candidates if pod.uid not in victim_uids], flagged)
    may_lower = _may_lower(candidates, gone_quiet, target, is_rolling_out=is_rolling_out)
    lowered = requested - min(missing, surplus) - len(gone_quiet) if may_lower else requested
    costs = {pod.name: VICTIM_COST for pod in gone_quiet if may_lower and pod.deletion_cost != VICTIM_COST}
    return ShrinkPlan(
        drain=tuple(pod.uid for pod in victims),
        release=released.release,
        costs={**released.costs, **costs},
        replicas=lowered if lowered < requested else None,
        waiting_for=len(victims) - len(gone_quiet),
    )


def _order(pod: Candidate) -> tuple[bool, bool, int, float]:
    """Kubernetes takes pods that are not ready first, so those go first; then who is on the way out already."""
    return pod.is_ready, not pod.is_draining, pod.busy, -pod.created_at


def _has_gone_quiet(pod: Candidate, flagged: Collection[str]) -> bool:
    if pod.has_workers:
        return pod.is_draining and pod.busy == 0
    # Nobody is there yet, and whoever comes finds the flag.
    return pod.uid in flagged


def _may_lower(
    candidates: Sequence[Candidate], gone_quiet: Sequence[Candidate], target: int, *, is_rolling_out: bool
) -> bool:
    quiet_uids = {pod.uid for pod in gone_quiet}
    if target == 0 and len(gone_quiet) == len(candidates):
        return True  # all go, so that nobody can choose wrongly
    # In a roll-out replicas are spread over two ReplicaSets, and costs are compared only within one.
    if is_rolling_out:
        return False
    return all(pod.is_ready or pod.uid in quiet_uids for pod in candidates)


def _release_all(candidates: Sequence[Candidate], flagged: Collection[str]) -> ShrinkPlan:
    return ShrinkPlan(
        release=tuple(pod.uid for pod in candidates if pod.is_draining or pod.uid in flagged),
        costs={pod.name: 0 for pod in candidates if pod.deletion_cost == VICTIM_COST},
    )
