"""What is kept of the objects in the cluster, and of pools as they come in any order."""

from __future__ import annotations

from typing import Any

import pytest

from rrq_operator.views import BudgetView, Ending, parse_budget, parse_deployment, parse_job, parse_pod
from rrq_operator.world import PoolRecord, World, parse_record

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
    view = parse_pod(pod({"phase": "Running", "conditions": [ready]}))
    assert view.pool == ("shop", "emails")
    assert view.ready_at is not None
    assert view.ready_at - view.created_at == 10
    assert (view.is_terminating, view.has_ended, view.is_cut_off, view.trouble) == (False, False, False, "")


def test_only_the_end_of_the_worker_is_the_end_of_a_worker() -> None:
    assert parse_pod(pod({"containerStatuses": [ended("sidecar")]})).ending is None
    ending = parse_pod(pod({"containerStatuses": [ended("sidecar", 2), ended("worker", 137)]})).ending
    assert ending is not None
    assert ending.exit_code == 137


@pytest.mark.parametrize("place", ["containerStatuses", "initContainerStatuses"])
def test_a_container_that_cannot_start_is_trouble(place: str) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    view = parse_pod(pod({place: [{"name": "x", "state": {"waiting": waiting}}]}))
    assert (view.trouble_reason, view.trouble) == ("ImagePullBackOff", "no such image")


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
    view = parse_pod(pod(status))
    assert view.was_evicted is was_evicted
    assert view.was_disrupted


def deployment(**changes: Any) -> dict[str, Any]:
    status = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3}
    return {
        "metadata": metadata(generation=2, resourceVersion="7"),
        "spec": {"replicas": 3, "template": {}},
        "status": status | changes.pop("status", {}),
    } | changes


def test_a_deployment_tells_what_its_pods_show_of_their_secret() -> None:
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
    view = parse_deployment(
        deployment(
            status={"conditions": [refused]},
            metadata=metadata(generation=2, resourceVersion="7", managedFields=[{}, fields]),
        )
    )
    assert (view.failure, view.scaled_by) == ("exceeded quota", "kubectl")


def test_a_job_tells_how_it_ended() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": LATER,
        "message": "BackoffLimitExceeded",
    }
    labels = LABELS | {"rrq.dev/run": "4"}
    view = parse_job({"metadata": metadata(labels=labels), "spec": {}, "status": {"conditions": [failed]}})
    assert (view.run, view.is_finished, view.has_succeeded) == (4, True, False)
    assert (view.message, view.lacks_functions) == ("BackoffLimitExceeded", False)


def test_a_job_that_failed_by_its_policy_lacks_functions() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": LATER,
        "reason": "PodFailurePolicy",
        "message": "Container worker for pod shop/emails-run-4-x failed with exit code 69 matching FailJob rule at index 2",
    }
    view = parse_job({"metadata": metadata(labels=LABELS), "spec": {}, "status": {"conditions": [failed]}})
    assert (view.is_finished, view.has_succeeded, view.lacks_functions) == (True, False, True)
    assert view.message.startswith("it ran all other jobs, but the image has no handler for some")


# Pools


def record(uid: str = "u", generation: int = 1, version: int = 1, **spec: Any) -> PoolRecord:
    worker = {"image": "example.com/shop:1", "settings": "shop.jobs.settings"}
    return parse_record(
        {
            "apiVersion": "rrq.dev/v1alpha1",
            "kind": "RRQWorkerPool",
            "metadata": metadata(uid=uid, generation=generation, resourceVersion=str(version)),
            "spec": {"queues": ["default"], "worker": worker} | spec,
        }
    )


def test_a_pool_that_cannot_be_understood_is_kept_with_the_reason() -> None:
    broken = record(queues=[])
    assert broken.pool is None
    assert "queues" in broken.fault


def test_a_changed_status_is_no_change_of_the_pool() -> None:
    told: list[tuple[str, str]] = []
    world = World()
    world.on_pool = told.append
    world.set_pool(record())
    pool = world.pools["shop", "emails"].pool
    world.set_pool(record(version=2))
    assert told == [("shop", "emails")]
    assert world.pools["shop", "emails"].version == 2
    assert world.pools["shop", "emails"].pool is pool, "loops tell by the same object that nothing changed"
    world.set_pool(record(generation=2, version=3))
    assert len(told) == 2
    assert world.pools["shop", "emails"].pool is not pool


def test_an_older_list_undoes_nothing() -> None:
    world = World()
    old, new = record(version=1), record(generation=2, version=5)
    world.set_pool(new)
    world.replace_pools([old])
    assert world.pools["shop", "emails"].generation == 2
    world.replace_pools([])
    assert world.pools, "it may have come while the list was made"
    world.drop_pool(new.key, new.uid)
    world.replace_pools([new])
    assert not world.pools, "what was deleted does not come back"
    world.set_pool(record(uid="v", version=9))
    assert world.pools["shop", "emails"].uid == "v", "another pool of the same name does"


def test_a_late_word_of_an_earlier_pool_does_not_drop_its_successor() -> None:
    world = World()
    world.set_pool(record(uid="v", version=9))
    world.drop_pool(("shop", "emails"), "u")
    assert world.pools


def budget(pool: str, name: str = "emails") -> BudgetView:
    return parse_budget({"metadata": metadata(name=name, labels={"rrq.dev/pool": pool}), "spec": {}})


def test_a_child_that_was_labelled_as_anothers_is_forgotten_and_both_hear_of_it() -> None:
    told: list[tuple[str, str]] = []
    world = World()
    world.set_budget(None, budget("emails"))
    world.on_child = told.append
    world.set_budget(budget("emails"), budget("reports"))
    assert (world.budgets, told) == ({}, [("shop", "emails")]), "by its name it is nobody's"
    world.set_budget(budget("reports"), budget("emails"))
    assert list(world.budgets) == [("shop", "emails")]
    world.set_budget(None, budget("emails", name="other"))
    world.set_budget(budget("emails", name="other"), None)
    assert list(world.budgets) == [("shop", "emails")], "what carries another name changes nothing"
    world.set_budget(budget("emails"), None)
    assert world.budgets == {}


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
