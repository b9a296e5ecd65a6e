"""One step of sizing a pool: what was seen in Redis and of its pods, turned into what to do. Pure.

The cluster and local mode share it, and so may a simulation: they differ only in what a pod is. How many replicas is
decided in ``scaling.py``, which of them leave in ``shrinking.py``; here their inputs are put together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rrq.broker.messages import Observation, WorkerObservation
from rrq_operator.api.spec import PoolSpec
from rrq_operator.decide.manifests import SCALE_MANAGER
from rrq_operator.decide.objects import DeploymentObject, PodObject
from rrq_operator.decide.scaling import (
    LONGEST_SILENCE_SECONDS,
    ScalingDecision,
    ScalingMemory,
    Workload,
    build_policy,
    decide_replicas,
)
from rrq_operator.decide.shrinking import Candidate, ShrinkInput, ShrinkPlan, plan_shrinking

#: Before a first pod has been seen to start. Too long only means that it is there early.
FIRST_STARTUP_SECONDS = 15.0
#: How much later than measured a pod may be without a job having to wait for it.
_STARTUP_MARGIN = 1.5
#: A job that comes near is noticed by the poll of every second, and Kubernetes tells of starts in whole seconds.
_NOTICE_SECONDS = 2.0
_STARTUP_WEIGHT = 0.3
#: A pod that took longer was ready before, and only became so again.
_LONGEST_STARTUP_SECONDS = 600.0
#: A lease and a renewal: a worker that was cut off is back in sight by then, or has lost its jobs.
SETTLING_SECONDS = 20.0
#: From asking for less until the watch shows which pods end. Mostly milliseconds; seconds on a busy machine.
LONGEST_TAKING_SECONDS = 5.0
#: How long another writer of the size is named.
_FOREIGN_SCALER_SECONDS = 60.0


@dataclass(frozen=True)
class SizingInput:
    """Everything that is known about a pool at one moment."""

    queues: Sequence[str]
    """Short names."""
    seen: Observation | None
    """None when Redis could not be read."""
    pods: Sequence[PodObject]
    """Those that are not on their way out."""
    requested: int
    now_seconds: float
    is_rolling_out: bool = False
    is_observed: bool = True
    """Whether Kubernetes has taken note of what was asked for last."""
    is_paused: bool = False
    """Whether the pool is paused in Redis."""


@dataclass(frozen=True)
class Waiting:
    """The jobs in the queues of a pool, by whether its workers may start them."""

    may_start: int
    blocked: int
    due_soon: int
    orphaned: int = 0
    """In hand of workers whose lease has ended: they may start when a sweep has given them back."""


def count_waiting(
    seen: Observation, queues: Sequence[str], *, is_paused: bool, horizon_seconds: float = 0.0
) -> Waiting:
    """Add up these queues, all of which were read."""
    found = [(name, seen.queues[name]) for name in queues]
    due = sum(queue.due for _, queue in found)
    if is_paused:
        return Waiting(may_start=0, blocked=due, due_soon=0)
    blocked = sum(min(queue.due, queue.blocked) for _, queue in found)
    orphaned = sum(queue.orphaned for name, queue in found if f"queue:{name}" not in seen.paused)
    # What comes due in a queue that is paused will only be blocked as well. Of pools that share a queue, each counts what is
    # due within the longest of their horizons: a pool that starts faster has until then.
    soon = sum(
        queue.due_soon
        for name, queue in found
        if f"queue:{name}" not in seen.paused
        and (queue.next_due_ms is None or queue.next_due_ms <= seen.now_ms + horizon_seconds * 1000)
    )
    return Waiting(may_start=due - blocked, blocked=blocked, due_soon=soon, orphaned=orphaned)


@dataclass(frozen=True)
class SizingMemory:
    """What a step has to know of those before it."""

    scaling: ScalingMemory = field(default_factory=ScalingMemory)
    workers: Mapping[str, WorkerObservation] = field(default_factory=dict)
    """Own workers in the observation before, by id."""
    seen_at_ms: int | None = None
    stepped_at: float | None = None
    flagged: frozenset[str] = frozenset()
    """Pods that were flagged to drain in the step before; the caller fills in what it has really done."""
    given_up: Mapping[str, float] = field(default_factory=dict)
    """Pods that were flagged when less was asked for, with the time of it; the caller fills it in when it asks."""
    unsettled: Mapping[str, float] = field(default_factory=dict)
    """Pods that a worker may have vanished from, with the time of it."""
    startup_seconds: float | None = None
    started: frozenset[str] = frozenset()
    """Pods whose start-up is in ``startup_seconds`` already."""

    @property
    def horizon_seconds(self) -> float:
        """How far ahead work has to be seen for its pod to be there in time."""
        seconds = FIRST_STARTUP_SECONDS if self.startup_seconds is None else self.startup_seconds
        return min(_LONGEST_STARTUP_SECONDS, seconds * _STARTUP_MARGIN + _NOTICE_SECONDS)


def recall_memory(startup_seconds: float | None, pods: Iterable[PodObject]) -> SizingMemory:
    """Return the memory of an operator that starts: what an earlier one measured, for a pool at zero has no pod."""
    if startup_seconds is None:
        return SizingMemory()
    return SizingMemory(
        startup_seconds=startup_seconds,
        started=frozenset(pod.uid for pod in pods if pod.ready_at is not None),
    )


class RequestedSize:
    """The size that a Deployment is asked for: what was written last, until the watch has caught up with it."""

    def __init__(self) -> None:
        #: A size, and the version of the Deployment that has it.
        self._asked: tuple[int, int] | None = None
        #: Another writer of the size, and when it wrote.
        self._foreign: tuple[str, float] | None = None

    def note(self, replicas: int, version: int) -> None:
        """Take in a size that was written, with the version of the Deployment that has it."""
        self._asked = (replicas, version)

    def find(self, deployment: DeploymentObject | None, now_seconds: float) -> int:
        if deployment is None:
            return 0 if self._asked is None else self._asked[0]
        if self._asked is not None:
            replicas, version = self._asked
            if deployment.version < version:
                return replicas
            # Ours, and yet another size: what was written here was overtaken by an outage, or by another leader's term.
            if replicas != deployment.requested and deployment.scaled_by != SCALE_MANAGER:
                self._foreign = (deployment.scaled_by, now_seconds)
        self._asked = (deployment.requested, deployment.version)
        return deployment.requested

    def find_foreign_scaler(self, now_seconds: float) -> str | None:
        """Return who else has set the size lately."""
        if self._foreign is None or now_seconds - self._foreign[1] > _FOREIGN_SCALER_SECONDS:
            return None
        return self._foreign[0] or "another client"


@dataclass(frozen=True)
class SizingStep:
    """What to do, and what it rests on."""

    decision: ScalingDecision
    plan: ShrinkPlan
    workload: Workload | None
    replicas: int
    """What to ask for now: the decision where it grows or cannot be planned, else what the plan allows."""


def decide_size(spec: PoolSpec, given: SizingInput, memory: SizingMemory) -> tuple[SizingStep, SizingMemory]:
    """Return the next step of a pool, and what to remember."""
    now_seconds = given.now_seconds
    workers = workers_of(given.seen, {pod.uid for pod in given.pods})
    memory = remember_startups(forget_after_silence(memory, now_seconds), given.pods)
    memory = remember_unsettled(memory, given, workers)
    given_up = {uid: at for uid, at in memory.given_up.items() if now_seconds - at < LONGEST_TAKING_SECONDS}
    memory = replace(memory, given_up=given_up)
    workload = measure_workload(given, workers, memory)
    decision, scaling = decide_replicas(
        build_policy(spec), workload, given.requested, memory.scaling, now_seconds
    )
    # While no worker can be seen, no pod is flagged and none released. Where only a queue cannot be read, the workers are in
    # sight, and a pool above maxReplicas drains first as ever.
    plan = ShrinkPlan()
    is_planned = workload is not None or (given.seen is not None and decision.replicas < given.requested)
    if is_planned:
        plan = plan_shrinking(
            ShrinkInput(
                [build_candidate(pod, workers.get(pod.uid, ()), memory) for pod in given.pods],
                given.requested,
                decision.replicas,
                memory.flagged,
                memory.given_up,
                is_rolling_out=given.is_rolling_out,
                is_observed=given.is_observed,
            )
        )
    if is_planned and plan.replicas is None and 0 < decision.replicas < given.requested:
        decision = _explain_roll_out(decision, given)
    memory = replace(
        memory,
        scaling=scaling,
        workers={worker.worker_id: worker for group in workers.values() for worker in group},
        seen_at_ms=None if given.seen is None else given.seen.now_ms,
        stepped_at=now_seconds,
        # Flags are not renewed without a plan, and end by themselves.
        flagged=memory.flagged if is_planned else frozenset(),
    )
    # Without any worker in sight a decision is only less where maxReplicas demands it, and Kubernetes chooses the pods.
    unplanned = decision.replicas if given.seen is None else max(decision.replicas, given.requested)
    replicas = unplanned if plan.replicas is None else plan.replicas
    return SizingStep(decision, plan, workload, replicas), memory


def _explain_roll_out(decision: ScalingDecision, given: SizingInput) -> ScalingDecision:
    """Say why a roll-out gives nothing back, not even pods that never started: they may be of either ReplicaSet."""
    # What Kubernetes has not observed yet looks like a roll-out, and passes soon.
    if not (given.is_rolling_out and given.is_observed):
        return decision
    return replace(decision, words=f"{decision.words}, when the roll-out is over")


def workers_of(
    seen: Observation | None, pod_uids: Collection[str]
) -> Mapping[str, tuple[WorkerObservation, ...]]:
    """Return the living workers of these pods, by pod."""
    found: dict[str, tuple[WorkerObservation, ...]] = {}
    for worker in seen.workers.values() if seen is not None else ():
        if worker.pod_uid in pod_uids:
            found[worker.pod_uid] = (*found.get(worker.pod_uid, ()), worker)
    return found


def measure_workload(
    given: SizingInput, workers: Mapping[str, Sequence[WorkerObservation]], memory: SizingMemory
) -> Workload | None:
    """Add up the queues and workers of a pool; None when any of its queues could not be read."""
    seen = given.seen
    if seen is None or any(name not in seen.queues for name in given.queues):
        return None
    own = [worker for group in workers.values() for worker in group]
    # Only a worker that was there before and may still claim tells how fast a replica is.
    steady = [
        worker
        for worker in own
        if not worker.is_draining
        and worker.worker_id in memory.workers
        and worker.incarnation == memory.workers[worker.worker_id].incarnation
    ]
    waiting = count_waiting(
        seen, given.queues, is_paused=given.is_paused, horizon_seconds=memory.horizon_seconds
    )
    elapsed_ms = 0 if memory.seen_at_ms is None else seen.now_ms - memory.seen_at_ms
    return Workload(
        due=waiting.may_start,
        due_soon=waiting.due_soon,
        orphaned=waiting.orphaned,
        busy=sum(worker.busy for worker in own),
        soon_seconds=memory.horizon_seconds,
        finished=sum(max(0, worker.ended - memory.workers[worker.worker_id].ended) for worker in steady),
        elapsed_seconds=max(0, elapsed_ms) / 1000,
        working_replicas=len({worker.pod_uid for worker in steady}),
        free_slots=sum(max(0, worker.capacity - worker.busy) for worker in own if not worker.is_draining),
        blocked=waiting.blocked,
        is_paused=given.is_paused,
    )


def build_candidate(pod: PodObject, workers: Sequence[WorkerObservation], memory: SizingMemory) -> Candidate:
    return Candidate(
        pod,
        busy=sum(worker.busy for worker in workers),
        is_draining=bool(workers) and all(worker.is_draining for worker in workers),
        has_workers=bool(workers),
        is_settled=pod.uid not in memory.unsettled,
    )


def forget_after_silence(memory: SizingMemory, now_seconds: float) -> SizingMemory:
    """Drop what may have changed in a gap between two rounds: flags may have ended, workers come and gone."""
    if memory.stepped_at is None or now_seconds <= memory.stepped_at + LONGEST_SILENCE_SECONDS:
        return memory
    return replace(memory, flagged=frozenset(), workers={}, seen_at_ms=None, stepped_at=None)


def remember_unsettled(
    memory: SizingMemory, given: SizingInput, workers: Mapping[str, Sequence[WorkerObservation]]
) -> SizingMemory:
    """Note pods that lost a worker from sight: it may be dead, or it runs jobs and Redis forgot it in a restart.

    An operator that has just begun to look cannot tell, so that no pod is relied upon at first.
    """
    uids = {pod.uid for pod in given.pods}
    if given.seen is None or memory.stepped_at is None:
        lost = uids
    else:
        seen_ids = {worker.worker_id for group in workers.values() for worker in group}
        lost = uids & {one.pod_uid for one in memory.workers.values() if one.worker_id not in seen_ids}
        if lost:
            # Redis may have restarted, and with the others forgot workers that had come since the last look.
            lost |= {uid for uid in uids if uid not in workers}
    noted = {**memory.unsettled, **dict.fromkeys(lost, given.now_seconds)}
    return replace(
        memory,
        unsettled={
            uid: at for uid, at in noted.items() if uid in uids and at + SETTLING_SECONDS > given.now_seconds
        },
    )


def remember_startups(memory: SizingMemory, pods: Sequence[PodObject]) -> SizingMemory:
    """Measure how long pods take from being asked for to being ready, each pod once."""
    seconds, started = memory.startup_seconds, set(memory.started)
    for pod in pods:
        if pod.ready_at is None or pod.uid in started:
            continue
        started.add(pod.uid)
        took = max(0.0, pod.ready_at - pod.created_at)
        if took > _LONGEST_STARTUP_SECONDS:
            continue
        seconds = took if seconds is None else seconds + _STARTUP_WEIGHT * (took - seconds)
    return replace(
        memory,
        startup_seconds=seconds,
        # Pods that are gone need no remembering.
        started=frozenset(started & {pod.uid for pod in pods}),
    )
