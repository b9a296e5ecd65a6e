"""What a pool says of itself: conditions with stable reasons, and figures. Pure.

``kubectl get`` and ``kubectl describe`` should tell the whole story without any log. What is unknown is left out,
never shown as zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rrq.messages import QueueObservation
from rrq_operator.bursts import RunDecision
from rrq_operator.manifests import build_selector
from rrq_operator.scaling import Reason
from rrq_operator.sizing import SizingStep
from rrq_operator.spec import Pool
from rrq_operator.views import DeploymentView, JobView, PodView, format_time

Status = dict[str, Any]

READY = "Ready"
QUEUE_REACHABLE = "QueueReachable"
SCALING_ACTIVE = "ScalingActive"
SCALING_LIMITED = "ScalingLimited"
DRAINING = "Draining"
#: The objects of a deleted pool of the same name are still there; that passes by itself.
REPLACING_REASON = "ReplacingPredecessor"
#: Part of ordinary life: in the conditions, but no event and not the reason of the pool.
QUIET_REASONS = ("Growing", "RollingOut", "Creating", REPLACING_REASON)


@dataclass(frozen=True)
class Fault:
    """Something that keeps a pool from being as it should be, for a person to read."""

    reason: str
    message: str


@dataclass(frozen=True)
class Condition:
    type: str
    status: bool | None
    """None is Unknown."""
    reason: str
    message: str

    @property
    def is_bad(self) -> bool:
        """Whether a person should look: something that should be so is not."""
        return self.type in (READY, QUEUE_REACHABLE, SCALING_ACTIVE) and self.status is False


@dataclass(frozen=True)
class Picture:
    """A pool at one moment, with everything that was found out about it."""

    pool: Pool
    queues: Mapping[str, QueueObservation] | None
    """None when Redis could not be read."""
    queue_fault: Fault | None
    child_fault: Fault | None
    """An object of the pool that could not be written."""
    scale_fault: Fault | None
    """Somebody else sets the number of replicas."""
    pods: Sequence[PodView]
    now: float
    is_on_hold: bool = False
    """Paused in Redis: none of its jobs may start."""


def build_deployment_status(
    picture: Picture, step: SizingStep, deployment: DeploymentView | None, startup_seconds: float | None
) -> tuple[Status, list[Condition]]:
    """Return the status of a pool with replicas, and its conditions."""
    present = 0 if deployment is None else deployment.present
    ready = 0 if deployment is None else deployment.ready
    decision = step.decision
    conditions = [
        _ready(picture, deployment, step.replicas),
        _queue_reachable(picture),
        _scaling_active(picture, step),
        Condition(
            SCALING_LIMITED,
            decision.is_limited,
            "AtMaximum" if decision.is_limited else "WithinLimits",
            f"the work asks for {decision.wanted} replicas"
            if decision.is_limited
            else "the work asks for no more than is allowed",
        ),
        _draining(step),
    ]
    status = _base(picture, conditions) | {
        "replicas": present,
        "readyReplicas": ready,
        "desiredReplicas": decision.replicas,
        "reason": _short_reason(conditions, decision.reason),
        "selector": build_selector(picture.pool),
        "lastDecision": {
            "reason": decision.reason.value,
            "words": decision.words,
            "replicas": decision.replicas,
        },
    }
    if step.workload is not None:
        status["busy"] = step.workload.busy
    if startup_seconds is not None:
        status["startupSeconds"] = round(startup_seconds, 1)
    return status, conditions


def build_job_status(
    picture: Picture,
    decision: RunDecision,
    jobs: Iterable[JobView],
    runs: int,
    last_schedule_at: float | None,
) -> tuple[Status, list[Condition]]:
    """Return the status of a burst pool, and its conditions."""
    ordered = sorted(jobs, key=lambda job: job.run)
    active = next((job for job in ordered if not job.is_finished), None)
    finished = [job for job in ordered if job.is_finished]
    last = finished[-1] if finished else None
    conditions = [
        _job_ready(picture, active, last),
        _queue_reachable(picture),
        Condition(
            SCALING_ACTIVE,
            picture.queue_fault is None and decision.reason not in (Reason.PAUSED, Reason.ON_HOLD),
            decision.reason,
            decision.words,
        ),
    ]
    job: Status = {"runs": max([runs, *(job.run for job in ordered)])}
    if active is not None:
        job |= {"active": active.name, "lastStartTime": format_time(active.created_at)}
    if last is not None and last.finished_at is not None:
        job |= {
            "lastFinishTime": format_time(last.finished_at),
            "lastResult": "Succeeded" if last.has_succeeded else "Failed",
        }
    if last_schedule_at is not None:
        job["lastScheduleTime"] = format_time(last_schedule_at)
    if decision.next_schedule_at is not None:
        job["nextScheduleTime"] = format_time(decision.next_schedule_at)
    status = _base(picture, conditions) | {
        "replicas": int(active is not None),
        "readyReplicas": sum(pod.ready_at is not None for pod in picture.pods),
        "desiredReplicas": int(active is not None or decision.start is not None),
        "reason": _short_reason(conditions, decision.reason),
        "selector": build_selector(picture.pool),
        "job": job,
        "lastDecision": {"reason": decision.reason, "words": decision.words},
    }
    return status, conditions


def build_invalid_status(generation: int, message: str) -> tuple[Status, list[Condition]]:
    """Return the status of a pool whose spec got past the schema and still cannot be used."""
    conditions = [
        Condition(READY, False, "InvalidSpec", message),
        Condition(SCALING_ACTIVE, False, "InvalidSpec", "nothing is changed until the spec is corrected"),
    ]
    return {"observedGeneration": generation, "reason": "InvalidSpec"}, conditions


def date_conditions(
    conditions: Iterable[Condition], before: Sequence[Mapping[str, Any]], generation: int, now: float
) -> list[Status]:
    """Return conditions as the API has them; the time of one that did not turn stays."""
    known = {entry["type"]: entry for entry in before}
    dated = []
    for condition in conditions:
        value = "Unknown" if condition.status is None else str(condition.status)
        last = known.get(condition.type)
        has_turned = last is None or last.get("status") != value
        dated.append(
            {
                "type": condition.type,
                "status": value,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": format_time(now)
                if has_turned or last is None
                else last["lastTransitionTime"],
            }
        )
    return dated


def parse_conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions of a status as it was written."""
    values = {"True": True, "False": False}
    return tuple(
        Condition(
            entry["type"], values.get(entry["status"]), entry.get("reason", ""), entry.get("message", "")
        )
        for entry in status.get("conditions") or ()
    )


def _base(picture: Picture, conditions: Sequence[Condition]) -> Status:
    status: Status = {
        "observedGeneration": picture.pool.generation,
        "queues": ",".join(picture.pool.spec.queues),
    }
    queues = picture.queues
    if queues is None:
        return status
    status |= {
        "due": sum(queue.due for queue in queues.values()),
        "held": sum(queue.due if picture.is_on_hold else queue.held for queue in queues.values()),
        "orphaned": sum(queue.orphaned for queue in queues.values()),
        "dueSoon": sum(queue.due_soon for queue in queues.values()),
        "later": sum(queue.later for queue in queues.values()),
    }
    ages = [
        queue.oldest_due_age_seconds for queue in queues.values() if queue.oldest_due_age_seconds is not None
    ]
    if ages:
        # A time and not an age: it stays the same while the same job waits, and kubectl shows its age.
        # Not before 1970, whatever the clock of a tenant's Redis shows.
        status["oldestDueTime"] = format_time(max(0.0, picture.now - max(ages)))
    return status


def _ready(picture: Picture, deployment: DeploymentView | None, wanted: int) -> Condition:
    fault = picture.child_fault or _find_pod_fault(picture.pods, deployment)
    if fault is not None:
        return Condition(READY, False, fault.reason, fault.message)
    if picture.queue_fault is not None:
        return Condition(READY, False, picture.queue_fault.reason, picture.queue_fault.message)
    if deployment is None:
        return Condition(READY, False, "Creating", "the Deployment is being created")
    if deployment.is_rolling_out:
        return Condition(READY, False, "RollingOut", "pods are being replaced by those of the new spec")
    if deployment.ready < wanted:
        return Condition(READY, False, "Growing", f"{deployment.ready} of {wanted} replicas are ready")
    if wanted == 0:
        return Condition(READY, True, "AtZero", "no replica is needed")
    return Condition(READY, True, "AsDesired", f"{deployment.ready} replicas are ready")


def _job_ready(picture: Picture, active: JobView | None, last: JobView | None) -> Condition:
    fault = picture.child_fault or _find_pod_fault(picture.pods, None) or picture.queue_fault
    if fault is not None:
        return Condition(READY, False, fault.reason, fault.message)
    if active is None and last is not None and not last.has_succeeded:
        return Condition(READY, False, "RunFailed", f"run {last.run} failed: {last.message}")
    if active is not None:
        return Condition(READY, True, "Running", f"run {active.run} is under way")
    return Condition(READY, True, "Waiting", "ready to run")


def _find_pod_fault(pods: Sequence[PodView], deployment: DeploymentView | None) -> Fault | None:
    for pod in pods:
        if pod.trouble_reason and not pod.is_terminating:
            return Fault(pod.trouble_reason, f"pod {pod.name}: {pod.trouble}")
    if deployment is not None and deployment.failure:
        return Fault("ReplicaFailure", deployment.failure)
    return None


def _queue_reachable(picture: Picture) -> Condition:
    fault = picture.queue_fault
    if fault is not None:
        return Condition(QUEUE_REACHABLE, False, fault.reason, fault.message)
    if picture.queues is None:
        return Condition(QUEUE_REACHABLE, None, "NotYetRead", "the queues have not been read yet")
    return Condition(QUEUE_REACHABLE, True, "Reachable", "the queues are read")


def _scaling_active(picture: Picture, step: SizingStep) -> Condition:
    decision = step.decision
    if picture.scale_fault is not None:
        return Condition(SCALING_ACTIVE, False, picture.scale_fault.reason, picture.scale_fault.message)
    is_active = decision.reason not in (Reason.PAUSED, Reason.ON_HOLD, Reason.QUEUE_UNREADABLE)
    return Condition(SCALING_ACTIVE, is_active, decision.reason, decision.words)


def _draining(step: SizingStep) -> Condition:
    count = len(step.plan.drain)
    if not count:
        return Condition(DRAINING, False, "NotDraining", "no pod is about to leave")
    return Condition(
        DRAINING,
        True,
        "WaitingForJobs" if step.plan.waiting_for else "PodsLeaving",
        f"{count} pods get no further jobs, {step.plan.waiting_for} of them still run some",
    )


def _short_reason(conditions: Sequence[Condition], otherwise: str) -> str:
    """Return one word for a column: what is wrong, else why the pool has its size."""
    bad = next((entry for entry in conditions if entry.is_bad and entry.reason not in QUIET_REASONS), None)
    return str(otherwise if bad is None else bad.reason)
