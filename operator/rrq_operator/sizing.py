"""One step of sizing a pool: what was seen in Redis and of its pods, turned into what to do. Pure.

Shared by the cluster and by local mode, which differ only in what a pod is. How many replicas is decided in
``scaling.py``, which of them leave in ``shrinking.py``; here their inputs are put together.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rrq.messages import Observation, WorkerObservation
from rrq_operator.scaling import (
    LONGEST_SILENCE_SECONDS,
    ScalingDecision,
    ScalingMemory,
    Workload,
    build_policy,
    decide_replicas,
)
from rrq_operator.shrinking import Candidate, ShrinkPlan, plan_shrinking
from rrq_operator.spec import PoolSpec

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
#: From asking for less until the pods that go are seen to be told so. Mostly milliseconds; seconds on a busy machine.
LONGEST_TAKING_SECONDS = 5.0


@dataclass(frozen=True)
class PodState:
    """One pod of a pool that is not on its way out."""

    uid: str
    name: str
    created_at: float
    ready_at: float | None
    """None while it is not ready."""
    deletion_cost: int = 0
    has_started: bool = True
    """Whether the container of its worker runs or ever ran, as far as Kubernetes knows."""


@dataclass(frozen=True)
class PoolScene:
    """Everything that is known about a pool at one moment."""

    seen: Observation | None
    """None when the queues could not be read."""
    pods: Sequence[PodState]
    requested: int
    is_rolling_out: bool = False
    is_observed: bool = True
    """Whether Kubernetes has taken note of what was asked for last."""
    is_on_hold: bool = False
    """Whether the pool is paused in Redis."""


@dataclass(frozen=True)
class Waiting:
    """The jobs in the queues of a pool, by whether its workers may start them."""

    may_start: int
    held: int
    due_soon: int
    orphaned: int = 0
    """In hand of workers whose lease has ended: they may start when a sweep has given them back."""


def count_waiting(
    seen: Observation, queues: Sequence[str], *, is_on_hold: bool, horizon_seconds: float = 0.0
) -> Waiting:
    """Add up these queues, all of which were read."""
    found = [(name, seen.queues[name]) for name in queues]
    due = sum(queue.due for _, queue in found)
    if is_on_hold:
        return Waiting(may_start=0, held=due, due_soon=0)
    held = sum(min(queue.due, queue.held) for _, queue in found)
    orphaned = sum(queue.orphaned for name, queue in found if f"queue:{name}" not in seen.paused)
    # What comes due in a queue that is paused will only be held as well. Pools that share a queue are told what is due
    # within the longest of their horizons: a pool that starts faster has until then.
    soon = sum(
        queue.due_soon
        for name, queue in found
        if f"queue:{name}" not in seen.paused
        and (queue.next_due_ms is None or queue.next_due_ms <= seen.now_ms + horizon_seconds * 1000)
    )
    return Waiting(may_start=due - held, held=held, due_soon=soon, orphaned=orphaned)


@dataclass(frozen=True)
class SizingMemory:
    """What a step has to know of those before it."""

    scaling: ScalingMemory = field(default_factory=ScalingMemory)
    workers: Mapping[str, WorkerObservation] = field(default_factory=dict)
    """Own workers in the observation before, by id."""
    seen_at_ms: int | None = None
    stepped_at: float | None = None
    flagged: frozenset[str] = frozenset()
    """Pods that were flagged to drain in the step before; filled in by whoever has really done it."""
    given_up: Mapping[str, float] = field(default_factory=dict)
    """Pods that were flagged when less was asked for, with the time of it; filled in by whoever has asked."""
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


@dataclass(frozen=True)
class SizingStep:
    """What to do, and what it rests on."""

    decision: ScalingDecision
    plan: ShrinkPlan
    workload: Workload | None
    replicas: int
    """What to ask for now: the decision where it grows or cannot be planned, else what the plan allows."""


def decide_size(
    spec: PoolSpec, queues: Sequence[str], scene: PoolScene, memory: SizingMemory, now_seconds: float
) -> tuple[SizingStep, SizingMemory]:
    """Return the next step of a pool that serves ``queues`` (short names), and what to remember."""
    workers = workers_of(scene.seen, {pod.uid for pod in scene.pods})
    memory = remember_startups(forget_after_silence(memory, now_seconds), scene.pods)
    memory = remember_unsettled(memory, scene, workers, now_seconds)
    given_up = {uid: at for uid, at in memory.given_up.items() if now_seconds - at < LONGEST_TAKING_SECONDS}
    memory = replace(memory, given_up=given_up)
    workload = measure_workload(queues, scene, workers, memory)
    decision, scaling = decide_replicas(
        build_policy(spec), workload, scene.requested, memory.scaling, now_seconds
    )
    # While nobody can be seen, nobody is flagged and nobody called back. Where only a queue cannot be read, the workers
    # are in sight, and a pool above maxReplicas drains first as ever.
    plan = ShrinkPlan()
    is_planned = workload is not None or (scene.seen is not None and decision.replicas < scene.requested)
    if is_planned:
        plan = plan_shrinking(
            [build_candidate(pod, workers.get(pod.uid, ()), memory) for pod in scene.pods],
            scene.requested,
            decision.replicas,
            memory.flagged,
            given_up=memory.given_up,
            is_rolling_out=scene.is_rolling_out,
            is_observed=scene.is_observed,
        )
    if is_planned and plan.replicas is None and 0 < decision.replicas < scene.requested:
        decision = _tell_of_roll_out(decision, scene)
    memory = replace(
        memory,
        scaling=scaling,
        workers={worker.worker_id: worker for group in workers.values() for worker in group},
        seen_at_ms=None if scene.seen is None else scene.seen.now_ms,
        stepped_at=now_seconds,
        # Flags are not renewed without a plan, and end by themselves.
        flagged=memory.flagged if is_planned else frozenset(),
    )
    # Without anybody in sight a decision is only less where maxReplicas demands it, and Kubernetes chooses the pods.
    unplanned = decision.replicas if scene.seen is None else max(decision.replicas, scene.requested)
    return SizingStep(
        decision, plan, workload, replicas=unplanned if plan.replicas is None else plan.replicas
    ), memory


def _tell_of_roll_out(decision: ScalingDecision, scene: PoolScene) -> ScalingDecision:
    """Say why nothing is given back in a roll-out, not even pods that never started: they may be of either ReplicaSet."""
    # What is not observed yet looks like a roll-out, and passes in a moment.
    if not (scene.is_rolling_out and scene.is_observed):
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
    queues: Sequence[str],
    scene: PoolScene,
    workers: Mapping[str, Sequence[WorkerObservation]],
    memory: SizingMemory,
) -> Workload | None:
    """Add up the queues and workers of a pool; None when any of its queues could not be read."""
    seen = scene.seen
    if seen is None or any(name not in seen.queues for name in queues):
        return None
    own = [worker for group in workers.values() for worker in group]
    # Only who was there before and may still claim tells how fast a replica is.
    steady = [
        worker
        for worker in own
        if not worker.is_draining
        and worker.worker_id in memory.workers
        and worker.incarnation == memory.workers[worker.worker_id].incarnation
    ]
    waiting = count_waiting(seen, queues, is_on_hold=scene.is_on_hold, horizon_seconds=memory.horizon_seconds)
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
        held=waiting.held,
        is_on_hold=scene.is_on_hold,
    )


def build_candidate(pod: PodState, workers: Sequence[WorkerObservation], memory: SizingMemory) -> Candidate:
    return Candidate(
        uid=pod.uid,
        name=pod.name,
        is_ready=pod.ready_at is not None,
        created_at=pod.created_at,
        busy=sum(worker.busy for worker in workers),
        is_draining=bool(workers) and all(worker.is_draining for worker in workers),
        has_workers=bool(workers),
        deletion_cost=pod.deletion_cost,
        is_settled=pod.uid not in memory.unsettled,
        # A worker in Redis proves it where the kubelet has not reported yet.
        has_started=pod.has_started or bool(workers),
    )


def forget_after_silence(memory: SizingMemory, now_seconds: float) -> SizingMemory:
    """Drop what may have changed while nobody was looking: flags may have ended, workers come and gone."""
    if memory.stepped_at is None or now_seconds <= memory.stepped_at + LONGEST_SILENCE_SECONDS:
        return memory
    return replace(memory, flagged=frozenset(), workers={}, seen_at_ms=None, stepped_at=None)


def remember_unsettled(
    memory: SizingMemory,
    scene: PoolScene,
    workers: Mapping[str, Sequence[WorkerObservation]],
    now_seconds: float,
) -> SizingMemory:
    """Note pods that lost a worker from sight: it may be dead, or it runs jobs and Redis forgot it in a restart.

    Whoever has just begun to look cannot tell, so that no pod is relied upon at first.
    """
    uids = {pod.uid for pod in scene.pods}
    if scene.seen is None or memory.stepped_at is None:
        lost = uids
    else:
        seen_ids = {worker.worker_id for group in workers.values() for worker in group}
        lost = uids & {one.pod_uid for one in memory.workers.values() if one.worker_id not in seen_ids}
        if lost:
            # Redis may have restarted, and with the others forgot workers that had come since the last look.
            lost |= {uid for uid in uids if uid not in workers}
    noted = {**memory.unsettled, **dict.fromkeys(lost, now_seconds)}
    return replace(
        memory,
        unsettled={
            uid: at for uid, at in noted.items() if uid in uids and at + SETTLING_SECONDS > now_seconds
        },
    )


def remember_startups(memory: SizingMemory, pods: Sequence[PodState]) -> SizingMemory:
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
