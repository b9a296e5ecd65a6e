"""What a pool says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bad_manifests import change, good_manifest
from rrq.messages import QueueObservation
from rrq_operator.scaling import Reason, ScalingDecision, Workload
from rrq_operator.shrinking import ShrinkPlan
from rrq_operator.sizing import SizingStep
from rrq_operator.spec import parse_pool
from rrq_operator.status import (
    Condition,
    Fault,
    Picture,
    build_deployment_status,
    date_conditions,
    parse_conditions,
)
from rrq_operator.views import DeploymentView, PodView

POOL = parse_pool(
    change(good_manifest(), {})
    | {"metadata": {"name": "emails", "namespace": "shop", "uid": "1", "generation": 4}}
)
QUEUES = {
    "default": QueueObservation(due=3, due_soon=1, later=7, oldest_due_age_seconds=5.0, next_due_ms=None),
    "other": QueueObservation(due=2, due_soon=0, later=0, oldest_due_age_seconds=9.0, next_due_ms=None),
}
PICTURE = Picture(POOL, QUEUES, None, None, None, (), now=1_000.0)
DEPLOYMENT = DeploymentView(
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
STUCK = PodView(
    pool=("shop", "emails"),
    name="emails-1",
    uid="3",
    created_at=0.0,
    ready_at=None,
    is_terminating=False,
    has_ended=False,
    has_worker_ended=False,
    is_cut_off=False,
    was_disrupted=False,
    deletion_cost=0,
    trouble="no such image",
    trouble_reason="ImagePullBackOff",
    ending=None,
    owner_kind="ReplicaSet",
)


def step(replicas: int = 2, reason: Reason = Reason.BACKLOG, **plan: Any) -> SizingStep:
    workload = Workload(due=5, due_soon=1, busy=4)
    return SizingStep(
        ScalingDecision(replicas, reason, "because", replicas), ShrinkPlan(**plan), workload, replicas
    )


def conditions_of(
    picture: Picture = PICTURE,
    deployment: DeploymentView | None = DEPLOYMENT,
    taken: SizingStep | None = None,
) -> dict[str, Condition]:
    _, conditions = build_deployment_status(picture, taken or step(), deployment, None)
    return {condition.type: condition for condition in conditions}


def test_a_pool_that_is_as_it_should_be() -> None:
    status, conditions = build_deployment_status(PICTURE, step(), DEPLOYMENT, 2.34)
    assert {entry.type: (entry.status, entry.reason) for entry in conditions} == {
        "Ready": (True, "AsDesired"),
        "QueueReachable": (True, "Reachable"),
        "ScalingActive": (True, "Backlog"),
        "ScalingLimited": (False, "WithinLimits"),
        "Draining": (False, "NotDraining"),
    }
    assert (status["due"], status["dueSoon"], status["later"], status["busy"]) == (5, 1, 7, 4)
    assert status["oldestDueTime"] == "1970-01-01T00:16:31Z"
    assert (status["reason"], status["startupSeconds"]) == ("Backlog", 2.3)
    assert status["observedGeneration"] == 4
    assert status["selector"] == "rrq.dev/pool=emails"


def test_a_pool_on_hold_says_so_and_how_many_jobs_wait_for_it() -> None:
    taken = step(0, Reason.ON_HOLD)
    status, conditions = build_deployment_status(
        replace(PICTURE, is_on_hold=True), taken, replace(DEPLOYMENT, ready=0), None
    )
    active = next(entry for entry in conditions if entry.type == "ScalingActive")
    assert (active.status, active.reason) == (False, "OnHold")
    assert (status["reason"], status["due"], status["held"]) == ("OnHold", 5, 5)
    assert status["lastDecision"] == {"reason": "OnHold", "words": "because", "replicas": 0}


def test_jobs_that_may_not_start_are_counted_apart() -> None:
    queues = QUEUES | {"default": replace(QUEUES["default"], held=2)}
    status, conditions = build_deployment_status(replace(PICTURE, queues=queues), step(), DEPLOYMENT, None)
    assert (status["due"], status["held"]) == (5, 2)
    assert all(not entry.is_bad for entry in conditions)


def test_a_redis_whose_clock_is_wrong_by_ages_has_a_status_all_the_same() -> None:
    queues = {"default": replace(QUEUES["default"], oldest_due_age_seconds=253_402_300_799.0)}
    status, _ = build_deployment_status(replace(PICTURE, queues=queues), step(), DEPLOYMENT, None)
    assert status["oldestDueTime"] == "1970-01-01T00:00:00Z"


def test_jobs_of_lost_workers_are_counted_over_all_queues() -> None:
    queues = {name: replace(queue, orphaned=number) for number, (name, queue) in enumerate(QUEUES.items(), 2)}
    status, _ = build_deployment_status(replace(PICTURE, queues=queues), step(), DEPLOYMENT, None)
    assert (status["due"], status["orphaned"]) == (5, 5)


def test_what_is_unknown_is_left_out() -> None:
    fault = Fault("Unreachable", "Redis cannot be read")
    picture = replace(PICTURE, queues=None, queue_fault=fault)
    taken = replace(step(reason=Reason.QUEUE_UNREADABLE), workload=None)
    status, _ = build_deployment_status(picture, taken, DEPLOYMENT, None)
    figures = {"due", "held", "orphaned", "dueSoon", "later", "busy", "oldestDueTime", "startupSeconds"}
    assert not figures & status.keys()
    conditions = conditions_of(picture, taken=taken)
    assert conditions["QueueReachable"].message == "Redis cannot be read"
    assert conditions["ScalingActive"].status is False
    assert status["reason"] == "Unreachable"


@pytest.mark.parametrize(
    ("picture", "deployment", "expected"),
    [
        ({}, None, (False, "Creating")),
        ({}, {"is_rolling_out": True}, (False, "RollingOut")),
        ({}, {"ready": 1}, (False, "Growing")),
        ({}, {"failure": "exceeded quota"}, (False, "ReplicaFailure")),
        ({"pods": (STUCK,)}, {"is_rolling_out": True}, (False, "ImagePullBackOff")),
        ({"pods": (replace(STUCK, is_terminating=True),)}, {}, (True, "AsDesired")),
        ({"child_fault": Fault("NameTaken", "theirs"), "pods": (STUCK,)}, {}, (False, "NameTaken")),
        ({"queue_fault": Fault("SecretMissing", "none")}, {}, (False, "SecretMissing")),
    ],
)
def test_what_keeps_a_pool_from_being_ready(
    picture: dict[str, Any], deployment: dict[str, Any] | None, expected: tuple[bool, str]
) -> None:
    view = None if deployment is None else replace(DEPLOYMENT, **deployment)
    ready = conditions_of(replace(PICTURE, **picture), view)["Ready"]
    assert (ready.status, ready.reason) == expected
    assert ready.message


def test_a_pool_at_zero_is_ready() -> None:
    ready = conditions_of(deployment=replace(DEPLOYMENT, requested=0, ready=0), taken=step(0))["Ready"]
    assert (ready.status, ready.reason) == (True, "AtZero")


def test_pods_that_are_waited_for_are_counted() -> None:
    waiting = conditions_of(taken=step(drain=("a", "b"), waiting_for=1))["Draining"]
    assert (waiting.status, waiting.reason) == (True, "WaitingForJobs")
    assert waiting.message == "2 pods get no further jobs, 1 of them still run some"
    assert conditions_of(taken=step(drain=("a",)))["Draining"].reason == "PodsLeaving"


def test_the_time_of_a_condition_that_did_not_turn_stays() -> None:
    first = date_conditions([Condition("Ready", False, "Growing", "1 of 2")], (), 1, now=0.0)
    second = date_conditions([Condition("Ready", False, "RollingOut", "x")], first, 2, now=60.0)
    third = date_conditions([Condition("Ready", True, "AsDesired", "2")], second, 2, now=90.0)
    assert [entry[0]["lastTransitionTime"] for entry in (first, second, third)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:01:30Z",
    ]
    assert second[0]["observedGeneration"] == 2


@pytest.mark.parametrize("status", [True, False, None])
def test_conditions_are_read_as_they_were_written(status: bool | None) -> None:
    condition = Condition("Ready", status, "Because", "words")
    assert parse_conditions({"conditions": date_conditions([condition], (), 1, 0.0)}) == (condition,)
