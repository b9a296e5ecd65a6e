"""What the operator keeps of the objects in the cluster: small values instead of whole manifests. Pure.

A thousand pools have many pods; of each only what a decision may ask for is kept. The cluster cache holds these values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rrq_operator.decide.manifests import (
    CONTAINER,
    COST_ANNOTATION,
    DIGEST_ANNOTATION,
    POOL_LABEL,
    RUN_LABEL,
    SECRET_ANNOTATION,
    SECRET_DIGEST_ANNOTATION,
    digest_spec,
)

Raw = Mapping[str, Any]
PoolKey = tuple[str, str]
"""Namespace and name of a pool."""

_LACKS_FUNCTIONS = "it ran all other jobs, but the image has no handler for some; its log and `rrq check` name their functions"
#: Waiting for any of these does not end by itself soon; a person has to do something.
_STUCK_REASONS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
}


@dataclass(frozen=True)
class Ending:
    """The end of a worker container, as the kubelet reports it."""

    finished_at: float
    exit_code: int
    reason: str
    is_last: bool = False
    """No container has followed it yet: the kubelet waits, ten seconds or longer, before it starts another."""


@dataclass(frozen=True)
class PodObject:
    """One pod of a pool. In local mode a replica is one, with little more than its name."""

    uid: str
    name: str
    created_at: float
    ready_at: float | None
    """None while it is not ready."""
    deletion_cost: int = 0
    has_started: bool = True
    """The worker's container runs or ever ran."""
    pool: PoolKey = ("", "")
    owner_kind: str = ""
    is_terminating: bool = False
    has_ended: bool = False
    """Succeeded or failed for good by its phase, which others than the kubelet set as well, for lost nodes."""
    has_worker_ended: bool = False
    """The kubelet says that the worker's container has ended and does not say that it runs again."""
    is_cut_off: bool = False
    """Its containers were fine in the last report of its node, which reports no more."""
    was_disrupted: bool = False
    """Preempted, deleted or evicted: none of its jobs has crashed."""
    was_evicted: bool = False
    """By its kubelet, for memory or disk that perhaps the jobs in it have used up."""
    trouble: str = ""
    """Why it cannot start, in the words of the kubelet; empty when nothing is wrong."""
    trouble_reason: str = ""
    ending: Ending | None = None


@dataclass(frozen=True)
class DeploymentObject:
    pool: PoolKey
    name: str
    uid: str
    owner_uid: str
    version: int
    """Grows with every change, which tells an older state from a newer one."""
    requested: int
    present: int
    ready: int
    is_rolling_out: bool
    digest: str
    """Of the manifest that was applied last, from its annotation."""
    live_digest: str
    """Of the spec as it is now, without replicas: changes when another client changes the Deployment."""
    failure: str
    scaled_by: str
    """Who wrote the number of replicas last."""
    is_observed: bool = True
    """Whether its controller has taken note of the spec as it is now."""
    secret_shown: str = ""
    """What its pod template shows of the Redis Secret."""
    secret_digest: str = ""
    """The digest of the value that the Secret had then, where the template shows something else."""


@dataclass(frozen=True)
class JobObject:
    pool: PoolKey
    name: str
    uid: str
    owner_uid: str
    run: int
    created_at: float
    is_finished: bool
    has_succeeded: bool
    finished_at: float | None
    message: str
    has_ttl: bool
    lacks_functions: bool = False


@dataclass(frozen=True)
class BudgetObject:
    pool: PoolKey
    name: str
    owner_uid: str
    digest: str
    live_digest: str


def pool_key_of(raw: Raw) -> PoolKey:
    metadata = raw["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(POOL_LABEL, "")


def parse_pod(raw: Raw) -> PodObject:
    metadata, status, spec = raw["metadata"], raw.get("status") or {}, raw.get("spec") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    is_ready = conditions.get("Ready", {}).get("status") == "True"
    phase = status.get("phase", "Pending")
    trouble_reason, trouble = _find_trouble(
        conditions, (*(status.get("initContainerStatuses") or ()), *containers)
    )
    owners = metadata.get("ownerReferences") or ()
    return PodObject(
        uid=metadata["uid"],
        name=metadata["name"],
        created_at=parse_time(metadata["creationTimestamp"]),
        ready_at=parse_time(conditions["Ready"]["lastTransitionTime"]) if is_ready else None,
        deletion_cost=_parse_number(_annotations_of(raw).get(COST_ANNOTATION)),
        # A pod stays Pending until all its containers have started, also when the worker was the first.
        has_started=phase != "Pending" or _has_worker_started(containers),
        pool=pool_key_of(raw),
        owner_kind=owners[0]["kind"] if owners else "",
        is_terminating="deletionTimestamp" in metadata,
        has_ended=phase in ("Succeeded", "Failed"),
        has_worker_ended=any(
            container.get("name") == CONTAINER and "terminated" in (container.get("state") or {})
            for container in containers
        ),
        # The kubelet says the containers are ready, the node controller says the pod is not.
        is_cut_off=bool(containers)
        and not is_ready
        and conditions.get("ContainersReady", {}).get("status") == "True"
        and not spec.get("readinessGates"),
        was_disrupted="deletionTimestamp" in metadata
        or conditions.get("DisruptionTarget", {}).get("status") == "True"
        or status.get("reason") in ("Evicted", "NodeLost", "Preempting"),
        # A node that drains or shuts down, and preemption, have other reasons.
        was_evicted=status.get("reason") == "Evicted",
        trouble=trouble,
        trouble_reason=trouble_reason,
        ending=_find_ending(containers),
    )


def parse_deployment(raw: Raw) -> DeploymentObject:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    requested = spec.get("replicas", 1)
    is_observed = status.get("observedGeneration", 0) >= metadata["generation"]
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    failures = [
        entry.get("message", "")
        for entry in status.get("conditions") or ()
        if (entry["type"], entry["status"]) in (("ReplicaFailure", "True"), ("Progressing", "False"))
    ]
    return DeploymentObject(
        pool=pool_key_of(raw),
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid_of(raw),
        version=int(metadata["resourceVersion"]),
        requested=requested,
        present=total,
        ready=status.get("readyReplicas", 0),
        is_rolling_out=not is_observed or total > updated,
        digest=_annotations_of(raw).get(DIGEST_ANNOTATION, ""),
        live_digest=digest_spec(spec),
        failure=failures[0] if failures else "",
        scaled_by=_find_scaler(metadata.get("managedFields") or ()),
        is_observed=is_observed,
        secret_shown=_annotations_of(spec.get("template") or {}).get(SECRET_ANNOTATION, ""),
        secret_digest=_annotations_of(raw).get(SECRET_DIGEST_ANNOTATION, ""),
    )


def parse_job(raw: Raw) -> JobObject:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    ended = {
        entry["type"]: entry
        for entry in status.get("conditions") or ()
        if entry["status"] == "True" and entry["type"] in ("Complete", "Failed")
    }
    last = ended.get("Complete") or ended.get("Failed")
    lacks_functions = ended.get("Failed", {}).get("reason") == "PodFailurePolicy"
    message = last.get("message", "") if last else ""
    return JobObject(
        pool=pool_key_of(raw),
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid_of(raw),
        run=_parse_number((metadata.get("labels") or {}).get(RUN_LABEL)),
        created_at=parse_time(metadata["creationTimestamp"]),
        is_finished=last is not None,
        has_succeeded="Complete" in ended,
        finished_at=parse_time(last["lastTransitionTime"]) if last else None,
        message=_LACKS_FUNCTIONS if lacks_functions else message,
        has_ttl="ttlSecondsAfterFinished" in spec,
        lacks_functions=lacks_functions,
    )


def parse_budget(raw: Raw) -> BudgetObject:
    metadata = raw["metadata"]
    return BudgetObject(
        pool=pool_key_of(raw),
        name=metadata["name"],
        owner_uid=owner_uid_of(raw),
        digest=_annotations_of(raw).get(DIGEST_ANNOTATION, ""),
        live_digest=digest_spec(raw["spec"]),
    )


def _annotations_of(raw: Raw) -> Raw:
    return (raw.get("metadata") or {}).get("annotations") or {}


def owner_uid_of(raw: Raw) -> str:
    """Return the uid of the object that controls this one, or nothing."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """Return the time as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _find_trouble(conditions: Mapping[str, Raw], containers: Iterable[Raw]) -> tuple[str, str]:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return scheduled.get("reason", "Unschedulable"), scheduled.get("message", "the pod finds no node")
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK_REASONS:
            return waiting["reason"], waiting.get("message") or waiting["reason"]
    return "", ""


def _find_ending(containers: Iterable[Raw]) -> Ending | None:
    """Return the latest end of the worker's container. A sidecar may come and go: no job is in it."""
    ends = [
        Ending(
            parse_time(end["finishedAt"]),
            end.get("exitCode", 0),
            end.get("reason", ""),
            ((container.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff",
        )
        for container in containers
        if container.get("name") == CONTAINER
        for state in (container.get("state") or {}, container.get("lastState") or {})
        if (end := state.get("terminated")) and end.get("finishedAt")
    ]
    return max(ends, key=lambda end: end.finished_at, default=None)


def _has_worker_started(containers: Iterable[Raw]) -> bool:
    return any(
        "running" in state
        or "terminated" in state
        or bool(container.get("lastState") or container.get("restartCount"))
        for container in containers
        if container.get("name") == CONTAINER
        for state in (container.get("state") or {},)
    )


def _find_scaler(managed_fields: Iterable[Raw]) -> str:
    return next(
        (
            entry.get("manager", "")
            for entry in managed_fields
            if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        ),
        "",
    )


def _parse_number(text: str | None) -> int:
    """Return a whole number that any client may have written; 0 for anything else."""
    try:
        return int(text or 0)
    except ValueError:
        return 0
