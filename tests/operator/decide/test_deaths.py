"""Which workers count as dead by what is known of their pods."""

from __future__ import annotations

from typing import Any

import pytest

from rrq.broker.messages import WorkerObservation
from rrq_operator.decide.deaths import Deaths, find_deaths
from rrq_operator.decide.objects import Ending, PodObject

ENDED_AT = 1_000_000.0
ENDED = {"has_ended": True, "has_worker_ended": True}


def build_pod(**changes: Any) -> PodObject:
    return PodObject(uid="pod", name="emails-1", created_at=0.0, ready_at=0.0, **changes)


def build_worker(registered_at: float | None = ENDED_AT - 60, pod_uid: str = "pod") -> WorkerObservation:
    registered_ms = None if registered_at is None else int(registered_at * 1000)
    return WorkerObservation("worker", pod_uid, 1, 10, False, ("default",), 0, "first", registered_ms)


def judge(
    worker: WorkerObservation, pod: PodObject | None = None, vanished: PodObject | None = None
) -> Deaths:
    def by_uid(known: PodObject | None) -> dict[str, PodObject]:
        return {} if known is None else {"pod": known}

    return find_deaths([worker], by_uid(pod), by_uid(vanished))


def test_a_worker_of_a_pod_that_runs_or_is_not_ours_is_alive() -> None:
    assert judge(build_worker(), build_pod()) == Deaths()
    assert judge(build_worker(pod_uid="of another pool"), vanished=build_pod()) == Deaths()
    assert judge(build_worker(pod_uid="")) == Deaths()


def test_the_end_of_a_pod_is_proof_and_names_the_incarnation() -> None:
    crash = Ending(ENDED_AT, 137, "OOMKilled")
    [certificate] = judge(build_worker(), build_pod(**ENDED, ending=crash)).certificates
    assert certificate.worker.incarnation == "first"
    assert certificate.cause == {"exit_code": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("registered_at", "is_dead"),
    [
        (ENDED_AT - 60, True),
        (ENDED_AT - 5.1, True),
        # Clocks differ, and a container may start anew within a second: these may be of the next one.
        (ENDED_AT - 4.9, False),
        (ENDED_AT + 1, False),
        (None, False),
    ],
)
def test_a_restarted_container_is_proof_for_those_who_registered_well_before(
    registered_at: float | None, is_dead: bool
) -> None:
    deaths = judge(build_worker(registered_at), build_pod(ending=Ending(ENDED_AT, 1, "Error")))
    assert bool(deaths.certificates) is is_dead
    assert deaths.hints == ()


@pytest.mark.parametrize(
    ("registered_at", "is_dead"),
    [(ENDED_AT - 60, True), (ENDED_AT - 0.1, True), (ENDED_AT + 0.1, False)],
)
def test_a_container_that_is_not_started_again_yet_is_proof_for_the_youngest_too(
    registered_at: float, is_dead: bool
) -> None:
    ending = Ending(ENDED_AT, 137, "Error", is_last=True)
    assert bool(judge(build_worker(registered_at), build_pod(ending=ending)).certificates) is is_dead


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"ending": Ending(ENDED_AT, 1, "")}, {"exit_code": 1, "reason": "Error"}),
        ({"ending": Ending(ENDED_AT, 0, "Completed")}, None),
        ({"ending": Ending(ENDED_AT, 75, "Error")}, None),  # a burst that was stopped
        ({"ending": Ending(ENDED_AT, 137, "Error"), "was_disrupted": True}, None),
        ({}, None),
    ],
)
def test_jobs_are_blamed_for_crashes_only(changes: dict[str, Any], cause: dict[str, object] | None) -> None:
    [certificate] = judge(build_worker(), build_pod(**ENDED, **changes)).certificates
    assert certificate.cause == cause
    assert certificate.is_explained


def test_an_eviction_counts_as_the_loss_of_a_worker_and_not_as_a_crash() -> None:
    evicted = build_pod(**ENDED, ending=Ending(ENDED_AT, 137, "Error"), was_disrupted=True, was_evicted=True)
    [certificate] = judge(build_worker(), evicted).certificates
    assert (certificate.cause, certificate.is_explained) == (None, False)


def test_a_pod_that_vanished_or_was_cut_off_is_a_hint() -> None:
    assert judge(build_worker(), vanished=build_pod()).hints == ("worker",)
    assert judge(build_worker(), build_pod(is_cut_off=True)).hints == ("worker",)


def test_a_pod_that_vanished_after_its_end_was_reported_is_proof() -> None:
    [certificate] = judge(build_worker(), vanished=build_pod(**ENDED, was_disrupted=True)).certificates
    assert certificate.cause is None


def test_a_pod_that_is_said_to_have_failed_by_others_than_its_kubelet_is_a_hint() -> None:
    assert judge(build_worker(), build_pod(has_ended=True)) == Deaths(hints=("worker",))
    restarted_before = Ending(ENDED_AT, 1, "Error")
    pod = build_pod(has_ended=True, ending=restarted_before)
    assert judge(build_worker(ENDED_AT + 60), pod) == Deaths(hints=("worker",))
