"""One step of sizing a pool: what was seen in Redis and of its pods, turned into what to do. Pure.

Shared by the cluster and by local mode, which differ only in what a pod is. How many replicas is decided in
``scaling.py``, which of them leave in ``shrinking.py``; here their inputs are put together.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rrq.messages import Observation, WorkerObservation
from rrq_operator.scaling import ScalingDecision, ScalingMemory, Workload, build_policy, decide_replicas
from rrq_operator.shrinking import Candidate, ShrinkPlan, plan_shrinking
from rrq_operator.spec import PoolSpec

#: Before a first pod has been seen to start. Too long only means that it is there early.
FIRST_STARTUP_SECONDS = 15.0
#: How much later than measured a pod may be without a job having to wait for it.
_STARTUP_MARGIN = 1.5
_STARTUP_WEIGHT = 0.3
_LONGEST_STARTUP_SECONDS = 600.0


@dataclass(frozen=True)
class PodState:
    """One pod of a pool that is not on its way out."""

    uid: str
    name: str
    created_at: float
    ready_at: float | None
    """None while it is not ready."""
    deletion_cost: int = 0


@dataclass(frozen=True)
class PoolScene:
    """Everything that is known about a pool at one moment."""

    seen: Observation | None
    """None when the queues could not be read."""
    pods: Sequence[PodState]
    requested: int
    is_rolling_out: bool = False


@dataclass(frozen=True)
class SizingMemory:
    """What a step has to know of those before it."""

    scaling: ScalingMemory = field(default_factory=ScalingMemory)
    ended: Mapping[str, int] = field(default_factory=dict)
    seen_at_ms: int | None = None
    flagged: frozenset[str] = frozenset()
    """Pods that were flagged to drain; filled in by whoever has really done it."""
    startup_seconds: float | None = None
    started: frozenset[str] = frozenset()
    """Pods whose start-up is in ``startup_seconds`` already."""

    @property
    def horizon_seconds(self) -> float:
        """How far ahead work has to be seen for its pod to be there in time."""
        seconds = FIRST_STARTUP_SECONDS if self.startup_seconds is None else self.startup_seconds
        return min(_LONGEST_STARTUP_SECONDS, seconds * _STARTUP_MARGIN)


@dataclass(frozen=True)
class SizingStep:
    """What to do, and what it rests on."""

    decision: ScalingDecision
    plan: ShrinkPlan
    workload: Workload | None
    replicas: int
    """What to ask for now: the decision where it grows, what the plan allows where it shrinks."""


def decide_size(
    spec: PoolSpec, queues: Sequence[str], scene: PoolScene, memory: SizingMemory, now_seconds: float
) -> tuple[SizingStep, SizingMemory]:
    """Return the next step of a pool that serves ``queues`` (short names), and what to remember."""
    memory = remember_startups(memory, scene.pods)
    workers = workers_of(scene.seen, {pod.uid for pod in scene.pods})
    workload = measure_workload(queues, scene, workers, memory)
    decision, scaling = decide_replicas(
        build_policy(spec), workload, scene.requested, memory.scaling, now_seconds
    )
    candidates = [build_candidate(pod, workers.get(pod.uid, ())) for pod in scene.pods]
    # While nobody can be seen, nobody is sent away and nobody called back.
    plan = (
        ShrinkPlan()
        if workload is None
        else plan_shrinking(
            candidates,
            scene.requested,
            decision.replicas,
            memory.flagged,
            is_rolling_out=scene.is_rolling_out,
        )
    )
    growing = max(decision.replicas, scene.requested)
    memory = replace(memory, scaling=scaling)
    if scene.seen is not None:
        memory = replace(
            memory,
            ended={worker.worker_id: worker.ended for group in workers.values() for worker in group},
            seen_at_ms=scene.seen.now_ms,
        )
    return SizingStep(
        decision, plan, workload, replicas=growing if plan.replicas is None else plan.replicas
    ), memory


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
    elapsed_ms = 0 if memory.seen_at_ms is None else seen.now_ms - memory.seen_at_ms
    return Workload(
        due=sum(seen.queues[name].due for name in queues),
        due_soon=sum(seen.queues[name].due_soon for name in queues),
        busy=sum(worker.busy for worker in own),
        soon_seconds=memory.horizon_seconds,
        finished=sum(
            max(0, worker.ended - memory.ended.get(worker.worker_id, worker.ended)) for worker in own
        ),
        elapsed_seconds=max(0, elapsed_ms) / 1000,
        working_replicas=len(workers),
    )


def build_candidate(pod: PodState, workers: Sequence[WorkerObservation]) -> Candidate:
    return Candidate(
        uid=pod.uid,
        name=pod.name,
        is_ready=pod.ready_at is not None,
        created_at=pod.created_at,
        busy=sum(worker.busy for worker in workers),
        is_draining=bool(workers) and all(worker.is_draining for worker in workers),
        has_workers=bool(workers),
        deletion_cost=pod.deletion_cost,
    )


def remember_startups(memory: SizingMemory, pods: Sequence[PodState]) -> SizingMemory:
    """Measure how long pods take from being asked for to being ready, each pod once."""
    seconds, started = memory.startup_seconds, set(memory.started)
    for pod in pods:
        if pod.ready_at is None or pod.uid in started:
            continue
        started.add(pod.uid)
        took = max(0.0, pod.ready_at - pod.created_at)
        seconds = took if seconds is None else seconds + _STARTUP_WEIGHT * (took - seconds)
    return replace(
        memory,
        startup_seconds=seconds,
        # Pods that are gone need no remembering.
        started=frozenset(started & {pod.uid for pod in pods}),
    )
