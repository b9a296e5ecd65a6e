"""Which pods leave a pool that becomes smaller, and when they may. Pure.

In two phases, so that no running job is cut: pods chosen to go are flagged in Redis, which refuses them further
jobs; once such a pod is seen flagged *and* idle in one observation, it has gone quiet: nothing can start in it any
more. Only then does the pool ask for one replica less. Each pod leaves as soon as it is quiet, however long the
others take.

Kubernetes is told by the deletion cost which pods are meant. Before it compares costs, it takes pods that never
started, then pods that are not ready. A pod that never started holds no job, so Kubernetes may take any of those. While
a pod that did start is not ready and not quiet, only pods that never started are given back. Pods that crash again and
again would be such for ever, so where all that are not ready are idle, all of them are flagged until the pool is smaller.
A pod that starts in the moment of the choice gets SIGTERM and drains.
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
    has_started: bool = True
    """Whether a worker ran in it, now or before. Without that it holds no job."""


@dataclass(frozen=True)
class ShrinkPlan:
    """What to do now, in this order: flags, costs, replicas; or Kubernetes may choose other pods."""

    drain: tuple[str, ...] = ()
    """Pod uids to flag, or to keep flagged."""
    release: tuple[str, ...] = ()
    """Pod uids whose flag is taken away: the work came back, or another pod leaves sooner."""
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
    given_up: Collection[str] = (),
    is_rolling_out: bool,
    is_observed: bool = True,
) -> ShrinkPlan:
    """Return the next step from ``requested`` towards ``target`` replicas.

    ``flagged``: pods that we ourselves flagged in the round before, so that the flag is fresh. A flag that is only
    seen, of an earlier leader perhaps, may end between this observation and what is done about it.

    ``given_up``: pods that were flagged when less was asked for, lately. Kubernetes may be taking them also when more
    is asked for again: who does it goes by what was asked for before, and our watch is late, too.

    ``is_observed``: whether Kubernetes has taken note of the last change. Until then a Deployment that was merely
    scaled looks like one in a roll-out.
    """
    kept = min(target, requested)
    present = len(candidates)
    has_surplus = present > requested
    if is_rolling_out and kept > 0:
        # What is beyond that are the extra pods of the roll-out, which the Deployment takes away itself.
        present = min(present, requested)
    ordered = sorted(candidates, key=lambda pod: _order(pod, flagged))
    victims = ordered[: max(0, present - kept)]
    unready = [pod for pod in candidates if pod.has_started and not pod.is_ready]
    may_be_mistaken = (
        kept < requested
        and not is_rolling_out
        and any(pod.has_started for pod in victims)
        and all(pod.busy == 0 and pod.is_settled for pod in unready)
    )
    # Kubernetes is about to take pods that were given up before, and may be at it already. Until they are gone
    # nobody is called back, also when the pool grows meanwhile: it could be one of them.
    takes_pods = has_surplus and not (is_rolling_out and is_observed)
    victims += [
        pod
        for pod in ordered[len(victims) :]
        if _is_flagged(pod, flagged) and (takes_pods or pod.uid in given_up)
    ]
    victim_uids = {pod.uid for pod in victims}
    # Those stay, but Kubernetes may take them for victims.
    beside = [pod for pod in unready if pod.uid not in victim_uids] if may_be_mistaken else []
    held = [*victims, *beside]
    held_uids = {pod.uid for pod in held}
    quiet = [pod for pod in held if _has_gone_quiet(pod, flagged)]
    quiet_uids = {pod.uid for pod in quiet}
    staying = [pod for pod in candidates if pod.uid not in quiet_uids]
    # In a roll-out replicas are spread over two ReplicaSets, and costs are compared only within one. When all go, nobody
    # can choose wrongly.
    may_lower = not is_rolling_out or (kept == 0 and not staying)
    could_take_another = any(pod.has_started and not pod.is_ready for pod in staying)
    leaving = [pod for pod in quiet if not pod.has_started] if could_take_another else quiet
    # Never fewer than the pods that must not go. Those that were asked for and never came are given up first.
    lowered = max(kept, len(candidates) - len(leaving))
    return ShrinkPlan(
        drain=tuple(pod.uid for pod in held),
        release=tuple(
            pod.uid for pod in candidates if pod.uid not in held_uids and _is_flagged(pod, flagged)
        ),
        costs={
            # Also where a flag ended before its pod could leave: by its old cost it would go with its jobs. Not where
            # Kubernetes may be choosing now: another would go in its place.
            **{
                pod.name: 0 for pod in staying if pod.deletion_cost == VICTIM_COST and pod.uid not in given_up
            },
            **{
                pod.name: VICTIM_COST
                for pod in leaving
                if may_lower and pod.uid in victim_uids and pod.deletion_cost != VICTIM_COST
            },
        },
        replicas=lowered if may_lower and lowered < requested else None,
        waiting_for=len(victim_uids - quiet_uids),
    )


def _order(pod: Candidate, flagged: Collection[str]) -> tuple[bool, bool, bool, bool, int, float]:
    """Kubernetes takes pods that never started first, then those that are not ready, so they go in that order.

    Then the idle, who need not wait: a long job in a flagged pod keeps no idle pod in its place. Among equals, who
    was chosen before stays chosen.
    """
    return (
        pod.has_started,
        pod.is_ready,
        pod.busy > 0,
        not _is_flagged(pod, flagged),
        pod.busy,
        -pod.created_at,
    )


def _is_flagged(pod: Candidate, flagged: Collection[str]) -> bool:
    return pod.is_draining or pod.uid in flagged


def _has_gone_quiet(pod: Candidate, flagged: Collection[str]) -> bool:
    if not pod.has_started:
        return pod.uid in flagged
    # Where no worker is there yet, whoever comes finds the flag.
    is_refused_jobs = pod.is_draining or not pod.has_workers
    return pod.uid in flagged and is_refused_jobs and pod.busy == 0 and pod.is_settled
