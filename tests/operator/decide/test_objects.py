"""What the operator keeps of the objects of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from rrq_operator.decide.objects import (
    Ending,
    parse_deployment,
    parse_job,
    parse_pod,
)

BORN = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:04:15Z"
LABELS = {"rrq.dev/pool": "emails"}


def metadata(**changes: Any) -> dict[str, Any]:
    return {
        "namespace": "shop",
        "name": "emails",
        "uid": "u",
        "creationTimestamp": BORN,
        "labels": LABELS,
    } | changes


def pod(status: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"metadata": metadata(**changes), "spec": {}, "status": status}


def ended(name: str, exit_code: int = 1) -> dict[str, Any]:
    end = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": LATER}}
    return {"name": name, "state": {"running": {"startedAt": LATER}}, "lastState": end}


def test_a_ready_pod_knows_since_when() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": LATER}
    parsed = parse_pod(pod({"phase": "Running", "conditions": [ready]}))
    assert parsed.pool == ("shop", "emails")
    assert parsed.ready_at is not None
    assert parsed.ready_at - parsed.created_at == 10
    assert (parsed.is_terminating, parsed.has_ended, parsed.is_cut_off, parsed.trouble) == (
        False,
        False,
        False,
        "",
    )


def test_only_the_end_of_the_worker_is_the_end_of_a_worker() -> None:
    assert parse_pod(pod({"containerStatuses": [ended("sidecar")]})).ending is None
    ending = parse_pod(pod({"containerStatuses": [ended("sidecar", 2), ended("worker", 137)]})).ending
    assert ending is not None
    assert ending.exit_code == 137


@pytest.mark.parametrize("place", ["containerStatuses", "initContainerStatuses"])
def test_a_container_that_cannot_start_is_trouble(place: str) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    parsed = parse_pod(pod({place: [{"name": "x", "state": {"waiting": waiting}}]}))
    assert (parsed.trouble_reason, parsed.trouble) == ("ImagePullBackOff", "no such image")


def test_a_pod_without_a_node_is_trouble() -> None:
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    assert parse_pod(pod({"conditions": [nowhere]})).trouble == "0/1 nodes"


@pytest.mark.parametrize(
    ("status", "has_started"),
    [
        ({}, False),
        ({"containerStatuses": [{"name": "worker", "state": {"waiting": {}}}]}, False),
        ({"containerStatuses": [{"name": "sidecar", "state": {"running": {}}}]}, False),
        ({"containerStatuses": [{"name": "worker", "state": {"running": {}}}]}, True),
        ({"containerStatuses": [{"name": "worker", "state": {"waiting": {}}, "restartCount": 1}]}, True),
        ({"containerStatuses": [{"name": "worker", "lastState": {"terminated": {}}}]}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Unknown"}, True),
    ],
    ids=[
        "no node",
        "no image",
        "only a sidecar runs",
        "the worker runs and a sidecar does not",
        "the worker ran before",
        "the worker ended",
        "running",
        "unknown",
    ],
)
def test_only_a_pod_whose_worker_never_ran_has_not_started(status: dict[str, Any], has_started: bool) -> None:
    assert parse_pod(pod({"phase": "Pending"} | status)).has_started == has_started


def test_a_node_that_fell_silent_cuts_its_pods_off() -> None:
    conditions = [
        {"type": "ContainersReady", "status": "True"},
        {"type": "Ready", "status": "False", "lastTransitionTime": LATER},
    ]
    running = {"name": "worker", "state": {"running": {}}}
    assert parse_pod(pod({"conditions": conditions, "containerStatuses": [running]})).is_cut_off


@pytest.mark.parametrize(
    ("reason", "condition", "was_evicted"),
    [
        ("Evicted", "TerminationByKubelet", True),
        ("Evicted", None, True),  # of an older kubelet
        ("Preempting", "TerminationByKubelet", False),
        ("Terminated", "TerminationByKubelet", False),
        ("NodeLost", "DeletionByTaintManager", False),
        (None, "EvictionByEvictionAPI", False),
        (None, "PreemptionByScheduler", False),
    ],
    ids=["eviction", "old eviction", "preemption", "node shutdown", "node loss", "drain", "scheduler"],
)
def test_only_a_pod_that_used_too_much_of_its_node_was_evicted(
    reason: str | None, condition: str | None, was_evicted: bool
) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": condition}
    status = {"phase": "Failed", "reason": reason, "conditions": [target] if condition else []}
    parsed = parse_pod(pod(status))
    assert parsed.was_evicted is was_evicted
    assert parsed.was_disrupted


def deployment(**changes: Any) -> dict[str, Any]:
    status = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3}
    return {
        "metadata": metadata(generation=2, resourceVersion="7"),
        "spec": {"replicas": 3, "template": {}},
        "status": status | changes.pop("status", {}),
    } | changes


def test_a_deployment_shows_the_secret_of_its_pods() -> None:
    annotated = {"metadata": {"annotations": {"rrq.dev/redis-secret-version": "7"}}}
    raw = deployment()
    assert parse_deployment(raw).secret_shown == ""
    raw["spec"]["template"] = annotated
    raw["metadata"]["annotations"] = {"rrq.dev/redis-secret-digest": "first"}
    assert parse_deployment(raw).secret_shown == "7"
    assert parse_deployment(raw).secret_digest == "first"


def test_the_digest_of_a_deployment_knows_nothing_of_replicas() -> None:
    before = parse_deployment(deployment())
    scaled = parse_deployment(deployment(spec={"replicas": 9, "template": {}}))
    changed = parse_deployment(deployment(spec={"replicas": 3, "template": {"x": 1}}))
    assert before.live_digest == scaled.live_digest != changed.live_digest
    assert scaled.requested == 9


@pytest.mark.parametrize(
    ("status", "expected"), [({}, False), ({"updatedReplicas": 1}, True), ({"observedGeneration": 1}, True)]
)
def test_a_roll_out_lasts_until_no_old_pod_is_left(status: dict[str, int], expected: bool) -> None:
    assert parse_deployment(deployment(status=status)).is_rolling_out is expected


def test_why_replicas_do_not_come_and_who_asked_for_them() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    fields = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    parsed = parse_deployment(
        deployment(
            status={"conditions": [refused]},
            metadata=metadata(generation=2, resourceVersion="7", managedFields=[{}, fields]),
        )
    )
    assert (parsed.failure, parsed.scaled_by) == ("exceeded quota", "kubectl")


def test_the_end_of_a_job_is_read() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": LATER,
        "message": "BackoffLimitExceeded",
    }
    labels = LABELS | {"rrq.dev/run": "4"}
    parsed = parse_job({"metadata": metadata(labels=labels), "spec": {}, "status": {"conditions": [failed]}})
    assert (parsed.run, parsed.is_finished, parsed.has_succeeded) == (4, True, False)
    assert (parsed.message, parsed.lacks_functions) == ("BackoffLimitExceeded", False)


def test_a_job_that_failed_by_its_policy_lacks_functions() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": LATER,
        "reason": "PodFailurePolicy",
        "message": "Container worker for pod shop/emails-run-4-x failed with exit code 69 matching FailJob rule at index 2",
    }
    parsed = parse_job({"metadata": metadata(labels=LABELS), "spec": {}, "status": {"conditions": [failed]}})
    assert (parsed.is_finished, parsed.has_succeeded, parsed.lacks_functions) == (True, False, True)
    assert parsed.message.startswith("it ran all other jobs, but the image has no handler for some")


# Pools


def test_a_container_that_waits_after_its_crash_has_no_successor_yet() -> None:
    def ending_in(state: dict[str, Any]) -> Ending:
        ending = parse_pod(pod({"containerStatuses": [ended("worker") | {"state": state}]})).ending
        assert ending is not None
        return ending

    assert ending_in({"waiting": {"reason": "CrashLoopBackOff"}}).is_last
    assert not ending_in({"waiting": {"reason": "ContainerCreating"}}).is_last
    assert not ending_in({"running": {}}).is_last


def test_a_phase_alone_does_not_say_that_the_worker_has_ended() -> None:
    running, end = {"name": "worker", "state": {"running": {}}}, {"terminated": {"exitCode": 137}}
    assert not parse_pod(pod({"phase": "Failed", "containerStatuses": [running]})).has_worker_ended
    assert not parse_pod(pod({"phase": "Failed", "containerStatuses": [ended("worker")]})).has_worker_ended
    over = {"name": "worker", "state": end}
    assert parse_pod(pod({"phase": "Failed", "containerStatuses": [over]})).has_worker_ended
