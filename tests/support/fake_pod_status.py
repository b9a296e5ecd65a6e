"""What a kubelet would report of a pod, as the status to patch in. Pure: pods and times come in as values."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

HOST_ADDRESS = "192.0.2.10"


def build_running(pod: dict[str, Any], now: datetime, *, ready: bool = True) -> dict[str, Any]:
    """Every container runs; how often they were restarted before is kept."""
    containers = [
        _container(pod, name, {"running": {"startedAt": _stamp(now)}}, ready=ready)
        for name in _containers(pod)
    ]
    return _status(pod, now, "Running", containers, ready=ready)


def build_waiting(pod: dict[str, Any], now: datetime, reason: str) -> dict[str, Any]:
    """No container gets as far as running, for instance for the reason ImagePullBackOff."""
    state = {"waiting": {"reason": reason, "message": f"the fake node was told to report {reason}"}}
    containers = [
        {**_container(pod, name, state, ready=False), "containerID": ""} for name in _containers(pod)
    ]
    return _status(pod, now, "Pending", containers, ready=False)


def build_finished(
    pod: dict[str, Any], now: datetime, exit_code: int, reason: str | None = None
) -> dict[str, Any]:
    """Every container has ended and none is started again: the pod has succeeded or failed."""
    containers = [
        _container(pod, name, {"terminated": _terminated(pod, name, now, exit_code, reason)}, ready=False)
        for name in _containers(pod)
    ]
    return _status(pod, now, "Failed" if exit_code else "Succeeded", containers, ready=False)


def build_restarted(
    pod: dict[str, Any], now: datetime, exit_code: int, reason: str | None = None
) -> dict[str, Any]:
    """Every container has ended and runs again under a new id."""
    containers = []
    for name in _containers(pod):
        ended = {"terminated": _terminated(pod, name, now, exit_code, reason)}
        restarts = _before(pod, name).get("restartCount", 0) + 1
        state = {"running": {"startedAt": _stamp(now)}}
        container = _container(pod, name, state, ready=True, restarts=restarts)
        containers.append({**container, "lastState": ended})
    return _status(pod, now, "Running", containers, ready=True)


def _containers(pod: dict[str, Any]) -> list[str]:
    return [container["name"] for container in pod["spec"]["containers"]]


def _before(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """What was last reported of this container."""
    reported: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return next((status for status in reported if status["name"] == name), {})


def _container(
    pod: dict[str, Any], name: str, state: dict[str, Any], *, ready: bool, restarts: int | None = None
) -> dict[str, Any]:
    before = _before(pod, name)
    if restarts is None:
        restarts = before.get("restartCount", 0)
    image = next(container["image"] for container in pod["spec"]["containers"] if container["name"] == name)
    status = {
        "name": name,
        "image": image,
        "imageID": f"fake://{image}",
        "containerID": _container_id(pod, name, restarts),
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
    }
    if "lastState" in before:
        status["lastState"] = before["lastState"]
    return status


def _terminated(
    pod: dict[str, Any], name: str, now: datetime, exit_code: int, reason: str | None
) -> dict[str, Any]:
    before = _before(pod, name)
    started_at = before.get("state", {}).get("running", {}).get("startedAt", _stamp(now))
    return {
        "exitCode": exit_code,
        "reason": reason or ("Error" if exit_code else "Completed"),
        "startedAt": started_at,
        "finishedAt": _stamp(now),
        "containerID": _container_id(pod, name, before.get("restartCount", 0)),
    }


def _container_id(pod: dict[str, Any], name: str, restarts: int) -> str:
    """Another one for each start, as a runtime gives them."""
    start = f"{pod['metadata']['uid']}/{name}/{restarts}"
    return f"fake://{hashlib.sha256(start.encode()).hexdigest()}"


def _status(
    pod: dict[str, Any], now: datetime, phase: str, containers: Sequence[dict[str, Any]], *, ready: bool
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": pod.get("status", {}).get("startTime") or _stamp(now),
        "hostIP": HOST_ADDRESS,
        "containerStatuses": list(containers),
        "conditions": [
            _condition(pod, now, "Initialized", holds=True),
            _condition(pod, now, "ContainersReady", holds=ready),
            _condition(pod, now, "Ready", holds=ready),
        ],
    }
    if phase == "Running":
        address = _pod_address(pod)
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return status


def _condition(pod: dict[str, Any], now: datetime, kind: str, *, holds: bool) -> dict[str, Any]:
    value = "True" if holds else "False"
    reported: list[dict[str, Any]] = pod.get("status", {}).get("conditions") or []
    before = next((condition for condition in reported if condition["type"] == kind), {})
    unchanged = before.get("status") == value
    changed_at = before.get("lastTransitionTime") if unchanged else _stamp(now)
    return {"type": kind, "status": value, "lastTransitionTime": changed_at}


def _pod_address(pod: dict[str, Any]) -> str:
    """The same for the same pod; two pods may share one, since nobody can call them."""
    digest = hashlib.sha256(pod["metadata"]["uid"].encode()).digest()
    return f"10.244.{digest[0]}.{digest[1]}"


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
