"""What a pool says of itself: conditions with stable reasons, and figures; and which changes of it matter. Pure.

``kubectl get`` and ``kubectl describe`` should tell the whole story without any log. What is unknown is left out,
never shown as zero. ``control/reporting.py`` writes the status and its events.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rrq.broker.messages import QueueObservation
from rrq_operator.api.pool_status import (
    LONGEST_MESSAGE,
    LONGEST_REASON,
    Condition,
    LastDecision,
    PoolStatus,
    RunsStatus,
)
from rrq_operator.api.spec import Pool
from rrq_operator.decide.bursts import RunDecision, RunReason
from rrq_operator.decide.manifests import build_selector
from rrq_operator.decide.objects import DeploymentObject, JobObject, PodObject
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.sizing import SizingStep

READY = "Ready"
QUEUE_REACHABLE = "QueueReachable"
SCALING_ACTIVE = "ScalingActive"
SCALING_LIMITED = "ScalingLimited"
DRAINING = "Draining"
#: These follow the work: at a load just around a limit they change every second.
_RESTLESS = (SCALING_LIMITED, DRAINING)
#: The objects of a deleted pool of the same name are still there; that passes by itself.
REPLACING_REASON = "ReplacingPredecessor"
#: An object with the right name exists and belongs to something else.
NAME_TAKEN_REASON = "NameTaken"
#: The spec got past the schema and still cannot be used.
INVALID_SPEC_REASON = "InvalidSpec"
#: Part of ordinary life: in the conditions, but no event and not the reason of the pool.
_ORDINARY_REASONS = ("Growing", "RollingOut", "Creating", REPLACING_REASON)
#: Another condition tells of it, or a person wants it so.
_NO_NEWS = (*_ORDINARY_REASONS, Reason.FROZEN, Reason.PAUSED, Reason.QUEUE_UNREADABLE)
#: Everything but figures, which may wait for the next time that figures are written. What is wrong is a condition as
#: well; the rest of `reason` and `last_decision` is the reason of the last decision.
_URGENT_FIELDS = sorted(
    PoolStatus.model_fields.keys()
    - {"due", "blocked", "orphaned", "due_soon", "later", "busy", "oldest_due_time", "startup_seconds"}
    - {"last_decision", "reason", "conditions"}
)


_NONE = PoolStatus()


@dataclass(frozen=True)
class Fault:
    """Something that keeps a pool from being as it should be, for a person to read."""

    reason: str
    message: str


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool at one moment, with everything that was found out about it."""

    pool: Pool
    queues: Mapping[str, QueueObservation] | None
    """None when Redis could not be read."""
    queue_fault: Fault | None
    object_fault: Fault | None
    """An object of the pool that could not be written."""
    scale_fault: Fault | None
    """Another writer sets the number of replicas."""
    pods: Sequence[PodObject]
    now: float
    is_paused: bool = False
    """Paused in Redis: none of its jobs may start."""
    written: PoolStatus = _NONE
    """The status that the API server has: the time of a condition whose status is the same there stays."""
    latest: PoolStatus = _NONE
    """The status of the round before: the time of a decision that is the same stays."""


def build_replica_status(
    snapshot: PoolSnapshot,
    step: SizingStep,
    deployment: DeploymentObject | None,
    startup_seconds: float | None,
) -> PoolStatus:
    """Return the status of a pool with replicas."""
    decision = step.decision
    dated = _ConditionBuilder(snapshot.written, snapshot.pool.generation, snapshot.now)
    conditions = [
        dated.build(READY, *_judge_replicas(snapshot, deployment, step.replicas)),
        dated.build(QUEUE_REACHABLE, *_judge_queues(snapshot)),
        dated.build(SCALING_ACTIVE, *_judge_scaling(snapshot, step)),
        dated.build(
            SCALING_LIMITED,
            decision.is_limited,
            "AtMaximum" if decision.is_limited else "WithinLimits",
            f"the work asks for {decision.wanted} replicas"
            if decision.is_limited
            else "the work asks for no more than is allowed",
        ),
        dated.build(DRAINING, *_judge_draining(step)),
    ]
    return _build_base(snapshot, conditions, decision.reason).model_copy(
        update={
            "replicas": 0 if deployment is None else deployment.present,
            "ready_replicas": 0 if deployment is None else deployment.ready,
            "desired_replicas": decision.replicas,
            "busy": None if step.workload is None else step.workload.busy,
            "startup_seconds": None if startup_seconds is None else round(startup_seconds, 1),
            "last_decision": _date_decision(snapshot, decision.reason, decision.words, decision.replicas),
        }
    )


def build_burst_status(
    snapshot: PoolSnapshot,
    decision: RunDecision,
    jobs: Iterable[JobObject],
    runs: int,
    last_schedule_at: float | None,
) -> PoolStatus:
    """Return the status of a burst pool."""
    ordered = sorted(jobs, key=lambda job: job.run)
    active = next((job for job in ordered if not job.is_finished), None)
    last = next((job for job in reversed(ordered) if job.is_finished), None)
    follows_queues = snapshot.queue_fault is None and decision.reason not in (Reason.FROZEN, Reason.PAUSED)
    dated = _ConditionBuilder(snapshot.written, snapshot.pool.generation, snapshot.now)
    conditions = [
        dated.build(READY, *_judge_runs(snapshot, active, last)),
        dated.build(QUEUE_REACHABLE, *_judge_queues(snapshot)),
        dated.build(SCALING_ACTIVE, follows_queues, decision.reason, decision.words),
    ]
    has_result = last is not None and last.finished_at is not None
    return _build_base(snapshot, conditions, decision.reason).model_copy(
        update={
            "replicas": int(active is not None),
            "ready_replicas": sum(pod.ready_at is not None for pod in snapshot.pods),
            "desired_replicas": int(active is not None or decision.start is not None),
            "job": RunsStatus(
                runs=max([runs, *(job.run for job in ordered)]),
                active=None if active is None else active.name,
                last_start_time=_date_or_none(None if active is None else active.created_at),
                last_finish_time=_date_or_none(last.finished_at if last is not None else None),
                last_result=("Succeeded" if last.has_succeeded else "Failed")
                if last is not None and has_result
                else None,
                last_schedule_time=_date_or_none(last_schedule_at),
                next_schedule_time=_date_or_none(decision.next_schedule_at),
            ),
            "last_decision": _date_decision(snapshot, decision.reason, decision.words, None),
        }
    )


def build_status_manifest(status: PoolStatus) -> dict[str, Any]:
    """Return a status as it goes to the API server, without what is unknown."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def build_invalid_status(generation: int, message: str, written: PoolStatus, now: float) -> PoolStatus:
    """Return the status of a pool whose spec got past the schema and still cannot be used."""
    dated = _ConditionBuilder(written, generation, now)
    unchanged = "nothing is changed until the spec is corrected"
    return PoolStatus(
        observed_generation=generation,
        reason=INVALID_SPEC_REASON,
        conditions=[
            dated.build(READY, False, INVALID_SPEC_REASON, message),
            dated.build(SCALING_ACTIVE, False, INVALID_SPEC_REASON, unchanged),
        ],
    )


@dataclass(frozen=True)
class _ConditionBuilder:
    """Makes the conditions of a status; the time of one that has the status it had in ``written`` stays."""

    written: PoolStatus
    generation: int
    now: float

    def build(self, kind: str, status: bool | None, reason: str, message: str) -> Condition:
        """``status`` None is Unknown. What others wrote may be longer than a condition holds, or empty."""
        value: Literal["True", "False", "Unknown"] = (
            "Unknown" if status is None else "True" if status else "False"
        )
        before = next((entry for entry in self.written.conditions or () if entry.type == kind), None)
        since = _date(self.now) if before is None or before.status != value else before.last_transition_time
        return Condition(
            type=kind,
            status=value,
            reason=reason[:LONGEST_REASON] or "Unknown",
            message=message[:LONGEST_MESSAGE],
            last_transition_time=since,
            observed_generation=self.generation,
        )


def _build_base(snapshot: PoolSnapshot, conditions: list[Condition], reason: str) -> PoolStatus:
    """Return what the status of every pool has."""
    bad = next(
        (entry for entry in conditions if is_bad(entry) and entry.reason not in _ORDINARY_REASONS), None
    )
    base = PoolStatus(
        observed_generation=snapshot.pool.generation,
        queues=",".join(snapshot.pool.spec.queues),
        # For a column: what is wrong, else why the pool has its size.
        reason=str(reason) if bad is None else bad.reason,
        selector=build_selector(snapshot.pool),
        conditions=conditions,
    )
    if snapshot.queues is None:
        return base
    queues = snapshot.queues.values()
    ages = [queue.oldest_due_age_seconds for queue in queues if queue.oldest_due_age_seconds is not None]
    return base.model_copy(
        update={
            "due": sum(queue.due for queue in queues),
            "blocked": sum(queue.due if snapshot.is_paused else queue.blocked for queue in queues),
            "orphaned": sum(queue.orphaned for queue in queues),
            "due_soon": sum(queue.due_soon for queue in queues),
            "later": sum(queue.later for queue in queues),
            # A time and not an age: it stays the same while the same job waits, and kubectl shows its age.
            # Not before 1970, whatever the clock of a tenant's Redis shows.
            "oldest_due_time": _date_or_none(max(0.0, snapshot.now - max(ages)) if ages else None),
        }
    )


def _date_decision(snapshot: PoolSnapshot, reason: str, words: str, replicas: int | None) -> LastDecision:
    """Return the decision with the time when it was first made."""
    before = snapshot.latest.last_decision
    is_same = before is not None and (before.reason, before.replicas) == (str(reason), replicas)
    since = before.time if before is not None and is_same and before.time else _date(snapshot.now)
    return LastDecision(time=since, reason=str(reason), words=words, replicas=replicas)


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _date_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else _date(seconds)


Judgement = tuple[bool | None, str, str]


def _judge_replicas(snapshot: PoolSnapshot, deployment: DeploymentObject | None, wanted: int) -> Judgement:
    fault = snapshot.object_fault or _find_pod_fault(snapshot.pods, deployment) or snapshot.queue_fault
    if fault is not None:
        return False, fault.reason, fault.message
    if deployment is None:
        return False, "Creating", "the Deployment is being created"
    if deployment.is_rolling_out:
        return False, "RollingOut", "pods are being replaced by those of the new spec"
    if deployment.ready < wanted:
        return False, "Growing", f"{deployment.ready} of {wanted} replicas are ready"
    if wanted == 0:
        return True, "AtZero", "no replica is needed"
    return True, "AsDesired", f"{deployment.ready} replicas are ready"


def _judge_runs(snapshot: PoolSnapshot, active: JobObject | None, last: JobObject | None) -> Judgement:
    fault = snapshot.object_fault or _find_pod_fault(snapshot.pods, None) or snapshot.queue_fault
    if fault is not None:
        return False, fault.reason, fault.message
    if active is not None:
        return True, RunReason.RUNNING, f"run {active.run} is under way"
    if last is not None and not last.has_succeeded:
        return False, "RunFailed", f"run {last.run} failed: {last.message}"
    return True, RunReason.WAITING, "ready to run"


def _find_pod_fault(pods: Sequence[PodObject], deployment: DeploymentObject | None) -> Fault | None:
    for pod in pods:
        if pod.trouble_reason and not pod.is_terminating:
            return Fault(pod.trouble_reason, f"pod {pod.name}: {pod.trouble}")
    if deployment is not None and deployment.failure:
        return Fault("ReplicaFailure", deployment.failure)
    return None


def _judge_queues(snapshot: PoolSnapshot) -> Judgement:
    fault = snapshot.queue_fault
    if fault is not None:
        return False, fault.reason, fault.message
    if snapshot.queues is None:
        return None, "NotYetRead", "the queues have not been read yet"
    return True, "Reachable", "the queues are read"


def _judge_scaling(snapshot: PoolSnapshot, step: SizingStep) -> Judgement:
    if snapshot.scale_fault is not None:
        return False, snapshot.scale_fault.reason, snapshot.scale_fault.message
    decision = step.decision
    is_active = decision.reason not in (Reason.FROZEN, Reason.PAUSED, Reason.QUEUE_UNREADABLE)
    return is_active, decision.reason, decision.words


def _judge_draining(step: SizingStep) -> Judgement:
    count = len(step.plan.drain)
    if not count:
        return False, "NotDraining", "no pod is about to leave"
    return (
        True,
        "WaitingForJobs" if step.plan.waiting_for else "PodsLeaving",
        f"{count} pods get no further jobs, {step.plan.waiting_for} of them still run some",
    )


def is_bad(condition: Condition) -> bool:
    """Tell whether a person should look: something that should be so is not."""
    return condition.type in (READY, QUEUE_REACHABLE, SCALING_ACTIVE) and condition.status == "False"


def is_urgent(written: PoolStatus, wanted: PoolStatus) -> bool:
    """Tell whether more than figures has changed: the status of a condition, a size, a fault."""
    before = {entry.type: entry for entry in written.conditions or ()}
    now = {entry.type: entry for entry in wanted.conditions or ()}
    if before.keys() != now.keys():
        return True
    for kind, entry in now.items():
        if entry.status != before[kind].status and kind not in _RESTLESS:
            return True
        if is_bad(entry) and entry.reason != before[kind].reason:
            return True
    return any(getattr(written, name) != getattr(wanted, name) for name in _URGENT_FIELDS)


def has_restless_change(written: PoolStatus, wanted: PoolStatus) -> bool:
    """Tell whether the status of a condition has changed that follows the work."""
    before = {entry.type: entry.status for entry in written.conditions or ()}
    return any(
        entry.type in _RESTLESS and entry.status != before.get(entry.type, entry.status)
        for entry in wanted.conditions or ()
    )


def find_news(told: Sequence[Condition], conditions: Sequence[Condition]) -> list[Condition]:
    """Return the conditions worth an event: turned bad, or good again after an event reported them as bad.

    One trouble often turns several conditions, and gets one event. ``told``: as of the last events.
    """
    before = {entry.type: entry for entry in told}
    known = {entry.reason for entry in told if is_bad(entry)}
    news = []
    for condition in conditions:
        if is_bad(condition):
            if condition.reason not in (*known, *_NO_NEWS):
                known.add(condition.reason)
                news.append(condition)
        elif condition.type in (READY, QUEUE_REACHABLE) and condition.status == "True":
            earlier = before.get(condition.type)
            if earlier is not None and is_bad(earlier) and earlier.reason not in _NO_NEWS:
                news.append(condition)
    return news


def remember_told(told: Sequence[Condition], conditions: Sequence[Condition]) -> list[Condition]:
    """Return what people know by now: reported trouble counts as reported until it is really over."""
    before = {entry.type: entry for entry in told if is_bad(entry)}
    return [
        before.get(entry.type, entry) if is_bad(entry) and entry.reason in _NO_NEWS else entry
        for entry in conditions
    ]
