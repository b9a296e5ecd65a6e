"""Which pods leave a pool that becomes smaller, and when they may. Pure; how many is decided in ``scaling.py``.

In two phases, so that no running job is cut: pods chosen to leave are flagged in Redis, which refuses them further
jobs; once such a pod is seen flagged *and* idle in one observation, it has gone quiet: nothing can start in it any
more. Only then does the pool ask for one replica less. Each pod leaves as soon as it is quiet, however long the
others take.

The deletion cost tells Kubernetes which pods are meant. Before it compares costs, it takes pods that never started,
then pods that are not ready. A pod that never started holds no job, so Kubernetes may take any of those. While a pod
that did start is not ready and not quiet, only pods that never started leave. Pods that crash again and again
would be such for ever, so where all that are not ready are idle, all of them are flagged until the pool is smaller.
A pod that starts in the moment of the choice gets SIGTERM and drains.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rrq_operator.decide.objects import PodObject

#: The lowest that Kubernetes knows, so that no cost that a user has set is below it.
VICTIM_COST = -(2**31)


@dataclass(frozen=True)
class Candidate:
    """A pod of the pool that is not on its way out already, and what its workers do."""

    pod: PodObject
    busy: int
    is_draining: bool
    """Whether every worker of it was seen flagged, in the same moment as ``busy`` was counted."""
    has_workers: bool
    is_settled: bool = True
    """Whether all its workers are in sight, as far as we know: none of them vanished lately."""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def is_ready(self) -> bool:
        return self.pod.ready_at is not None

    @property
    def has_started(self) -> bool:
        """Whether a worker ran in it, now or before. Without that it holds no job."""
        # A worker in Redis proves it where the kubelet has not reported yet.
        return self.pod.has_started or self.has_workers


@dataclass(frozen=True)
class ShrinkInput:
    """What is known when pods are chosen to leave."""

    candidates: Sequence[Candidate]
    requested: int
    target: int
    flagged: Collection[str] = ()
    """Pods that we ourselves flagged in the round before, so that the flag is fresh. A flag that is only seen, of an
    earlier leader perhaps, may end between this observation and what is done about it."""
    given_up: Collection[str] = ()
    """Pods that were flagged when less was asked for, lately. Kubernetes may be taking them also when more is asked for
    again: who does it goes by what was asked for before, and our watch is late, too."""
    is_rolling_out: bool = False
    is_observed: bool = True
    """Whether Kubernetes has taken note of the last change. Until then a Deployment that was merely scaled looks like
    one in a roll-out."""

    @property
    def kept(self) -> int:
        return min(self.target, self.requested)

    def is_flagged(self, one: Candidate) -> bool:
        return one.is_draining or one.uid in self.flagged


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


def plan_shrinking(given: ShrinkInput) -> ShrinkPlan:
    """Return the next step from the requested size towards the target."""
    victims, others_to_flag = _choose_victims(given)
    to_flag = [*victims, *others_to_flag]
    victim_uids, flagged_uids = _uids(victims), _uids(to_flag)
    quiet = [one for one in to_flag if _has_gone_quiet(one, given.flagged)]
    quiet_uids = _uids(quiet)
    staying = [one for one in given.candidates if one.uid not in quiet_uids]
    # In a roll-out replicas are spread over two ReplicaSets, and costs are compared only within one. When all go, Kubernetes
    # cannot choose wrongly.
    may_lower = not given.is_rolling_out or (given.kept == 0 and not staying)
    could_take_another = any(one.has_started and not one.is_ready for one in staying)
    leaving = [one for one in quiet if not one.has_started] if could_take_another else quiet
    # Never fewer than the pods that must not go. Those that were asked for and never came are given up first.
    lowered = max(given.kept, len(given.candidates) - len(leaving))
    marked = [one for one in leaving if may_lower and one.uid in victim_uids]
    return ShrinkPlan(
        drain=tuple(one.uid for one in to_flag),
        release=tuple(
            one.uid for one in given.candidates if one.uid not in flagged_uids and given.is_flagged(one)
        ),
        costs=_find_costs(staying, marked, given.given_up),
        replicas=lowered if may_lower and lowered < given.requested else None,
        waiting_for=len(victim_uids - quiet_uids),
    )


def is_same_choice(pods: Iterable[PodObject], others: Iterable[PodObject]) -> bool:
    """Tell whether Kubernetes would choose among both alike: the same pods, with the same claim to stay."""
    return _claims(pods) == _claims(others)


def _claims(pods: Iterable[PodObject]) -> set[tuple[str, bool, bool]]:
    return {
        (pod.uid, pod.has_started, pod.ready_at is not None)
        for pod in pods
        if not (pod.is_terminating or pod.has_ended)
    }


def _choose_victims(given: ShrinkInput) -> tuple[list[Candidate], list[Candidate]]:
    """Return the pods that are to leave, and those that stay but have to be flagged as well."""
    present = len(given.candidates)
    has_surplus = present > given.requested
    if given.is_rolling_out and given.kept > 0:
        # What is beyond that are the extra pods of the roll-out, which the Deployment takes away itself.
        present = min(present, given.requested)
    ordered = sorted(given.candidates, key=lambda one: _order(one, given))
    surplus = ordered[: max(0, present - given.kept)]
    # Kubernetes is about to take pods that were given up before, and may be at it already. Until they are gone no pod
    # is released, also when the pool grows meanwhile: it could be one of them.
    takes_pods = has_surplus and not (given.is_rolling_out and given.is_observed)
    victims = [
        *surplus,
        *(
            one
            for one in ordered[len(surplus) :]
            if given.is_flagged(one) and (takes_pods or one.uid in given.given_up)
        ),
    ]
    unready = [one for one in given.candidates if one.has_started and not one.is_ready]
    may_be_mistaken = (
        given.kept < given.requested
        and not given.is_rolling_out
        and any(one.has_started for one in surplus)
        and all(one.busy == 0 and one.is_settled for one in unready)
    )
    if not may_be_mistaken:
        return victims, []
    # Those stay, but Kubernetes may take them for victims.
    return victims, [one for one in unready if one.uid not in _uids(victims)]


def _order(one: Candidate, given: ShrinkInput) -> tuple[bool, bool, bool, bool, int, float]:
    """Kubernetes takes pods that never started first, then those that are not ready, so they go in that order.

    Then the idle, who need not wait: a long job in a flagged pod keeps no idle pod in its place. Among equals, a pod
    that was chosen before stays chosen.
    """
    return (
        one.has_started,
        one.is_ready,
        one.busy > 0,
        not given.is_flagged(one),
        one.busy,
        -one.pod.created_at,
    )


def _has_gone_quiet(one: Candidate, flagged: Collection[str]) -> bool:
    if not one.has_started:
        return one.uid in flagged
    # Where no worker is there yet, the first one finds the flag.
    is_refused_jobs = one.is_draining or not one.has_workers
    return one.uid in flagged and is_refused_jobs and one.busy == 0 and one.is_settled


def _find_costs(
    staying: Iterable[Candidate], marked: Iterable[Candidate], given_up: Collection[str]
) -> dict[str, int]:
    """Return the deletion costs that have to change, by pod name."""
    # Also where a flag ended before its pod could leave: by its old cost it would go with its jobs. Not where Kubernetes
    # may be choosing now: another would go in its place.
    restored = {
        one.pod.name: 0 for one in staying if one.pod.deletion_cost == VICTIM_COST and one.uid not in given_up
    }
    return restored | {one.pod.name: VICTIM_COST for one in marked if one.pod.deletion_cost != VICTIM_COST}


def _uids(candidates: Iterable[Candidate]) -> set[str]:
    return {one.uid for one in candidates}
