"""What the operator keeps of the objects in the cluster: small values instead of whole manifests. Pure.

A thousand pools have many pods; of each only what a decision may ask for is kept.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rrq_operator.manifests import (
    CONTAINER,
    COST_ANNOTATION,
    DIGEST_ANNOTATION,
    POOL_LABEL,
    RUN_LABEL,
    SECRET_ANNOTATION,
    SECRET_DIGEST_ANNOTATION,
)

Raw = Mapping[str, Any]
PoolKey = tuple[str, str]

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
class PodView:
    pool: PoolKey
    name: str
    uid: str
    created_at: float
    ready_at: float | None
    is_terminating: bool
    has_ended: bool
    """Succeeded or failed for good by its phase, which others than the kubelet set as well, for lost nodes."""
    has_worker_ended: bool
    """The kubelet says that the worker's container has ended and does not say that it runs again."""
    is_cut_off: bool
    """Its containers were fine when last heard of, but its node is no longer heard."""
    was_disrupted: bool
    """Preempted, deleted or evicted: none of its jobs has crashed."""
    deletion_cost: int
    trouble: str
    """Why it cannot start, in the words of the kubelet; empty when nothing is wrong."""
    trouble_reason: str
    ending: Ending | None
    owner_kind: str
    has_started: bool = True
    """The worker's container runs or ever ran."""
    was_evicted: bool = False
    """By its kubelet, for memory or disk that perhaps the jobs in it have used up."""


@dataclass(frozen=True)
class DeploymentView:
    pool: PoolKey
    name: str
    uid: str
    owner_uid: str
    version: int
    """Grows with every change, so that an older view can be told from a newer one."""
    requested: int
    present: int
    ready: int
    is_rolling_out: bool
    digest: str
    """Of the manifest that was applied last, from its annotation."""
    live_digest: str
    """Of the spec as it is now, without replicas: changes when somebody else changes the Deployment."""
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
class JobView:
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
class BudgetView:
    pool: PoolKey
    name: str
    owner_uid: str
    digest: str
    live_digest: str


def pool_key_of(raw: Raw) -> PoolKey:
    metadata = raw["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(POOL_LABEL, "")


def parse_pod(raw: Raw) -> PodView:
    metadata, status, spec = raw["metadata"], raw.get("status") or {}, raw.get("spec") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    is_ready = conditions.get("Ready", {}).get("status") == "True"
    phase = status.get("phase", "Pending")
    trouble_reason, trouble = _find_trouble(
        conditions, (*(status.get("initContainerStatuses") or ()), *containers)
    )
    owners = metadata.get("ownerReferences") or ()
    return PodView(
        pool=pool_key_of(raw),
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=parse_time(metadata["creationTimestamp"]),
        ready_at=parse_time(conditions["Ready"]["lastTransitionTime"]) if is_ready else None,
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
        deletion_cost=_parse_cost(_annotations_of(raw).get(COST_ANNOTATION)),
        trouble=trouble,
        trouble_reason=trouble_reason,
        ending=_find_ending(containers),
        owner_kind=owners[0]["kind"] if owners else "",
        # A pod stays Pending until all its containers have started, also when the worker was the first.
        has_started=phase != "Pending" or _has_worker_started(containers),
        # A node that drains or shuts down, and preemption, have other reasons.
        was_evicted=status.get("reason") == "Evicted",
    )


def parse_deployment(raw: Raw) -> DeploymentView:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    requested = spec.get("replicas", 1)
    is_observed = status.get("observedGeneration", 0) >= metadata["generation"]
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    failures = [
        entry.get("message", "")
        for entry in status.get("conditions") or ()
        if (entry["type"], entry["status"]) in (("ReplicaFailure", "True"), ("Progressing", "False"))
    ]
    return DeploymentView(
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


def parse_job(raw: Raw) -> JobView:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    ended = {
        entry["type"]: entry
        for entry in status.get("conditions") or ()
        if entry["status"] == "True" and entry["type"] in ("Complete", "Failed")
    }
    last = ended.get("Complete") or ended.get("Failed")
    lacks_functions = ended.get("Failed", {}).get("reason") == "PodFailurePolicy"
    message = last.get("message", "") if last else ""
    return JobView(
        pool=pool_key_of(raw),
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid_of(raw),
        run=_parse_cost((metadata.get("labels") or {}).get(RUN_LABEL)),
        created_at=parse_time(metadata["creationTimestamp"]),
        is_finished=last is not None,
        has_succeeded="Complete" in ended,
        finished_at=parse_time(last["lastTransitionTime"]) if last else None,
        message=_LACKS_FUNCTIONS if lacks_functions else message,
        has_ttl="ttlSecondsAfterFinished" in spec,
        lacks_functions=lacks_functions,
    )


def parse_budget(raw: Raw) -> BudgetView:
    metadata = raw["metadata"]
    return BudgetView(
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


def digest_spec(spec: Raw) -> str:
    """Return a digest of a spec without what others may rightly change: the number of replicas."""
    kept = {name: value for name, value in spec.items() if name != "replicas"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


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


def _parse_cost(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
