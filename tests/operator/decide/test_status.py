"""What a pool says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bad_manifests import change, good_manifest
from rrq.broker.messages import QueueObservation
from rrq_operator.api.pool_status import Condition, PoolStatus
from rrq_operator.api.spec import parse_pool
from rrq_operator.cluster.cluster_cache import parse_status
from rrq_operator.decide.objects import DeploymentObject, PodObject
from rrq_operator.decide.scaling import Reason, ScalingDecision, Workload
from rrq_operator.decide.shrinking import ShrinkPlan
from rrq_operator.decide.sizing import SizingStep
from rrq_operator.decide.status import (
    Fault,
    PoolSnapshot,
    build_replica_status,
    build_status_manifest,
    is_bad,
)

POOL = parse_pool(
    change(good_manifest(), {})
    | {"metadata": {"name": "emails", "namespace": "shop", "uid": "1", "generation": 4}}
)
QUEUES = {
    "default": QueueObservation(due=3, due_soon=1, later=7, oldest_due_age_seconds=5.0, next_due_ms=None),
    "other": QueueObservation(due=2, due_soon=0, later=0, oldest_due_age_seconds=9.0, next_due_ms=None),
}
SNAPSHOT = PoolSnapshot(POOL, QUEUES, None, None, None, (), now=1_000.0)
DEPLOYMENT = DeploymentObject(
    pool=("shop", "emails"),
    name="emails",
    uid="2",
    owner_uid="1",
    version=7,
    requested=2,
    present=2,
    ready=2,
    is_rolling_out=False,
    digest="",
    live_digest="",
    failure="",
    scaled_by="rrq-operator-scale",
)
STUCK = PodObject(
    uid="3",
    name="emails-1",
    created_at=0.0,
    ready_at=None,
    owner_kind="ReplicaSet",
    trouble="no such image",
    trouble_reason="ImagePullBackOff",
)


def step(replicas: int = 2, reason: Reason = Reason.BACKLOG, **plan: Any) -> SizingStep:
    workload = Workload(due=5, due_soon=1, busy=4)
    return SizingStep(
        ScalingDecision(replicas, reason, "because", replicas), ShrinkPlan(**plan), workload, replicas
    )


def conditions_of(
    snapshot: PoolSnapshot = SNAPSHOT,
    deployment: DeploymentObject | None = DEPLOYMENT,
    taken: SizingStep | None = None,
) -> dict[str, Condition]:
    status = build_replica_status(snapshot, taken or step(), deployment, None)
    return {condition.type: condition for condition in status.conditions or ()}


def test_a_pool_that_is_as_it_should_be() -> None:
    status = build_status_manifest(build_replica_status(SNAPSHOT, step(), DEPLOYMENT, 2.34))
    assert {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]} == {
        "Ready": ("True", "AsDesired"),
        "QueueReachable": ("True", "Reachable"),
        "ScalingActive": ("True", "Backlog"),
        "ScalingLimited": ("False", "WithinLimits"),
        "Draining": ("False", "NotDraining"),
    }
    assert (status["due"], status["dueSoon"], status["later"], status["busy"]) == (5, 1, 7, 4)
    assert status["oldestDueTime"] == "1970-01-01T00:16:31Z"
    assert (status["reason"], status["startupSeconds"]) == ("Backlog", 2.3)
    assert status["observedGeneration"] == 4
    assert status["selector"] == "rrq.dev/pool=emails"


def test_the_status_of_a_paused_pool_counts_the_jobs_that_wait() -> None:
    taken = step(0, Reason.PAUSED)
    status = build_replica_status(
        replace(SNAPSHOT, is_paused=True), taken, replace(DEPLOYMENT, ready=0), None
    )
    active = next(entry for entry in status.conditions or () if entry.type == "ScalingActive")
    assert (active.status, active.reason) == ("False", "Paused")
    assert (status.reason, status.due, status.blocked) == ("Paused", 5, 5)
    assert build_status_manifest(status)["lastDecision"] == {
        "time": "1970-01-01T00:16:40Z",
        "reason": "Paused",
        "words": "because",
        "replicas": 0,
    }


def test_jobs_that_may_not_start_are_counted_apart() -> None:
    queues = QUEUES | {"default": replace(QUEUES["default"], blocked=2)}
    status = build_replica_status(replace(SNAPSHOT, queues=queues), step(), DEPLOYMENT, None)
    assert (status.due, status.blocked) == (5, 2)
    assert not any(map(is_bad, status.conditions or ()))


def test_a_redis_whose_clock_is_wrong_by_ages_has_a_status_all_the_same() -> None:
    queues = {"default": replace(QUEUES["default"], oldest_due_age_seconds=253_402_300_799.0)}
    status = build_replica_status(replace(SNAPSHOT, queues=queues), step(), DEPLOYMENT, None)
    assert build_status_manifest(status)["oldestDueTime"] == "1970-01-01T00:00:00Z"


def test_jobs_of_lost_workers_are_counted_over_all_queues() -> None:
    queues = {name: replace(queue, orphaned=number) for number, (name, queue) in enumerate(QUEUES.items(), 2)}
    status = build_replica_status(replace(SNAPSHOT, queues=queues), step(), DEPLOYMENT, None)
    assert (status.due, status.orphaned) == (5, 5)


def test_what_is_unknown_is_left_out() -> None:
    fault = Fault("Unreachable", "Redis cannot be read")
    snapshot = replace(SNAPSHOT, queues=None, queue_fault=fault)
    taken = replace(step(reason=Reason.QUEUE_UNREADABLE), workload=None)
    status = build_status_manifest(build_replica_status(snapshot, taken, DEPLOYMENT, None))
    figures = {"due", "blocked", "orphaned", "dueSoon", "later", "busy", "oldestDueTime", "startupSeconds"}
    assert not figures & status.keys()
    conditions = conditions_of(snapshot, taken=taken)
    assert conditions["QueueReachable"].message == "Redis cannot be read"
    assert conditions["ScalingActive"].status == "False"
    assert status["reason"] == "Unreachable"


@pytest.mark.parametrize(
    ("known", "deployment", "expected"),
    [
        ({}, None, ("False", "Creating")),
        ({}, {"is_rolling_out": True}, ("False", "RollingOut")),
        ({}, {"ready": 1}, ("False", "Growing")),
        ({}, {"failure": "exceeded quota"}, ("False", "ReplicaFailure")),
        ({"pods": (STUCK,)}, {"is_rolling_out": True}, ("False", "ImagePullBackOff")),
        ({"pods": (replace(STUCK, is_terminating=True),)}, {}, ("True", "AsDesired")),
        ({"object_fault": Fault("NameTaken", "theirs"), "pods": (STUCK,)}, {}, ("False", "NameTaken")),
        ({"queue_fault": Fault("SecretMissing", "none")}, {}, ("False", "SecretMissing")),
    ],
)
def test_what_keeps_a_pool_from_being_ready(
    known: dict[str, Any], deployment: dict[str, Any] | None, expected: tuple[str, str]
) -> None:
    live = None if deployment is None else replace(DEPLOYMENT, **deployment)
    ready = conditions_of(replace(SNAPSHOT, **known), live)["Ready"]
    assert (ready.status, ready.reason) == expected
    assert ready.message


def test_a_pool_at_zero_is_ready() -> None:
    ready = conditions_of(deployment=replace(DEPLOYMENT, requested=0, ready=0), taken=step(0))["Ready"]
    assert (ready.status, ready.reason) == ("True", "AtZero")


def test_pods_that_are_waited_for_are_counted() -> None:
    waiting = conditions_of(taken=step(drain=("a", "b"), waiting_for=1))["Draining"]
    assert (waiting.status, waiting.reason) == ("True", "WaitingForJobs")
    assert waiting.message == "2 pods get no further jobs, 1 of them still run some"
    assert conditions_of(taken=step(drain=("a",)))["Draining"].reason == "PodsLeaving"


def test_the_time_of_a_condition_that_did_not_turn_stays() -> None:
    growing = build_replica_status(SNAPSHOT, step(), replace(DEPLOYMENT, ready=1), None)
    rolling = build_replica_status(
        replace(SNAPSHOT, now=1_060.0, written=growing, pool=replace(POOL, generation=5)),
        step(),
        replace(DEPLOYMENT, is_rolling_out=True),
        None,
    )
    well = build_replica_status(replace(SNAPSHOT, now=1_090.0, written=rolling), step(), DEPLOYMENT, None)
    ready = [build_status_manifest(status)["conditions"][0] for status in (growing, rolling, well)]
    assert [entry["reason"] for entry in ready] == ["Growing", "RollingOut", "AsDesired"]
    assert [entry["lastTransitionTime"] for entry in ready] == [
        "1970-01-01T00:16:40Z",
        "1970-01-01T00:16:40Z",
        "1970-01-01T00:18:10Z",
    ]
    assert [entry["observedGeneration"] for entry in ready] == [4, 5, 4]


def test_the_time_of_a_decision_that_is_the_same_stays() -> None:
    first = build_replica_status(SNAPSHOT, step(2), DEPLOYMENT, None)
    same = build_replica_status(replace(SNAPSHOT, now=1_060.0, latest=first), step(2), DEPLOYMENT, None)
    other = build_replica_status(replace(SNAPSHOT, now=1_060.0, latest=first), step(3), DEPLOYMENT, None)
    assert first.last_decision is not None
    assert same.last_decision == first.last_decision
    assert build_status_manifest(other)["lastDecision"]["time"] == "1970-01-01T00:17:40Z"


def test_what_others_wrote_fits_into_a_condition() -> None:
    fault = Fault("", "x" * 100_000)
    ready = conditions_of(replace(SNAPSHOT, object_fault=fault))["Ready"]
    assert (ready.reason, len(ready.message)) == ("Unknown", 32_768)


def test_a_status_is_read_as_it_was_build_status_manifest() -> None:
    unread = replace(SNAPSHOT, queues=None)
    for snapshot in (SNAPSHOT, unread):
        status = build_replica_status(snapshot, step(), DEPLOYMENT, 2.0)
        assert parse_status({"status": build_status_manifest(status)}) == status
    assert conditions_of(unread)["QueueReachable"].status == "Unknown"


def test_a_status_that_cannot_be_parsed_counts_as_none() -> None:
    assert parse_status({"status": {"due": "many"}}) == PoolStatus()


def test_a_status_says_nothing_of_what_is_unknown() -> None:
    assert build_status_manifest(PoolStatus()) == {}
    assert build_status_manifest(PoolStatus(due=0)) == {"due": 0}


def test_times_of_a_status_have_whole_seconds_of_utc() -> None:
    status = build_status_manifest(
        build_replica_status(replace(SNAPSHOT, now=1_000.75), step(), DEPLOYMENT, None)
    )
    times = {entry["lastTransitionTime"] for entry in status["conditions"]}
    assert {*times, status["lastDecision"]["time"]} == {"1970-01-01T00:16:40Z"}
    assert status["oldestDueTime"] == "1970-01-01T00:16:31Z"


def test_what_a_newer_operator_wrote_is_ignored() -> None:
    status = build_replica_status(SNAPSHOT, step(), DEPLOYMENT, None)
    newer = build_status_manifest(status) | {"somethingNewer": 1}
    newer["conditions"][0]["somethingNewer"] = 1
    assert parse_status({"status": newer}) == status
