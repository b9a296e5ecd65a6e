"""The judge finds what is wrong: each kind of violation in a ledger that was doctored to have it, and none in a good one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bars import Bars, build_bars
from chaos_config import full_config, short_config
from chaos_ledger import EFFECT, RAISED, STARTED, TAKEN, Entry
from doctored import CHILD, LEGACY, OTHER, build, fault, killed, run_of, verdict
from injected import MAIN, SENTINEL, DueAgain, Sample

if TYPE_CHECKING:
    from chaos_config import ChaosConfig
    from injected import Injected


def test_a_run_in_which_all_went_well_has_no_violation() -> None:
    report = verdict(build())
    assert report.violations == []
    assert (report.jobs, report.effects, report.lost, report.reruns) == (2, 2, 0, 0)


# Lost jobs


@pytest.mark.parametrize("status", [None, "PENDING", "ACTIVE", "FAILED", "COMPLETED"])
def test_an_acknowledged_job_without_its_effect_is_lost_whatever_redis_says(status: str | None) -> None:
    report = verdict(build(jobs={"gone": 2.0}, statuses={"gone": status}))
    assert report.lost == 1
    assert any("1 acknowledged jobs are lost: gone" in violation for violation in report.violations)


def test_a_job_that_was_started_and_never_came_to_its_effect_is_lost() -> None:
    evidence = build(
        Entry(STARTED, "cut", 1, CHILD, 2.1), jobs={"cut": 2.0}, statuses={"cut": None}, faults=[killed(2.2)]
    )
    assert verdict(evidence).lost == 1


def test_a_job_that_redis_forgot_in_a_fail_over_is_counted_apart() -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0))
    report = verdict(build(jobs={"gone": 2.0}, statuses={"gone": None}, faults=[failover]))
    assert (report.lost, report.lost_by_redis, report.violations) == (0, 1, [])


@pytest.mark.parametrize("acknowledged_at", [1.0, 3.1])
def test_redis_is_not_blamed_for_a_job_acknowledged_before_or_after_what_it_may_forget(
    acknowledged_at: float,
) -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0))
    report = verdict(build(jobs={"gone": acknowledged_at}, statuses={"gone": None}, faults=[failover]))
    assert (report.lost, report.lost_by_redis) == (1, 0)


def test_redis_is_not_blamed_for_a_job_whose_hash_it_still_has() -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0))
    report = verdict(build(jobs={"stuck": 2.0}, statuses={"stuck": "PENDING"}, faults=[failover]))
    assert (report.lost, report.lost_by_redis) == (1, 0)


@pytest.mark.parametrize(("started_at", "is_forgotten"), [(2.1, True), (6.1, False)])
def test_redis_is_blamed_for_a_job_that_was_in_hand_when_it_was_forgotten_and_not_for_one_started_later(
    started_at: float, is_forgotten: bool
) -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0))
    start = Entry(STARTED, "gone", 1, CHILD, started_at)
    report = verdict(build(start, jobs={"gone": 2.0}, statuses={"gone": None}, faults=[failover]))
    assert (report.lost, report.lost_by_redis) == ((0, 1) if is_forgotten else (1, 0))


def test_the_redis_of_one_part_is_not_blamed_for_a_job_of_the_other() -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0), part=SENTINEL)
    assert verdict(build(jobs={"gone": 2.0}, statuses={"gone": None}, faults=[failover])).lost == 1


def test_with_durability_asked_for_redis_may_forget_nothing() -> None:
    failover = fault("fail-over", 3.0, 6.0, is_outage=True, loses=(1.5, 3.0))
    evidence = build(jobs={"gone": 2.0}, statuses={"gone": None}, faults=[failover])
    assert "durability" in verdict(evidence, Bars(durable_parts=frozenset({MAIN}))).violations[0]
    assert verdict(evidence, Bars(durable_parts=frozenset({SENTINEL}))).violations == []


def test_what_the_old_worker_took_and_lost_is_counted_apart() -> None:
    taken = Entry(TAKEN, "old", 0, LEGACY, 2.1)
    report = verdict(build(taken, jobs={"old": 2.0}, statuses={"old": "PENDING"}))
    assert (report.lost, report.lost_by_legacy, report.violations) == (0, 1, [])


# Attempts that ran again


def test_a_job_that_ran_twice_for_no_reason_is_found() -> None:
    report = verdict(build(*run_of("twice", 2.0), *run_of("twice", 4.0, OTHER), jobs={"twice": 1.9}))
    assert report.unexplained_reruns == 1
    assert report.repeated_effects == 1
    assert "job twice ran again without a cause" in report.violations[0]


def test_an_attempt_cut_by_a_kill_may_run_again() -> None:
    start = Entry(STARTED, "cut", 1, CHILD, 2.0)
    report = verdict(build(start, *run_of("cut", 2.5, OTHER), jobs={"cut": 1.9}, faults=[killed(2.1)]))
    assert (report.reruns, report.unexplained_reruns, report.violations) == (1, 0, [])
    (kind,) = report.kinds
    assert kind.rerun is not None
    assert kind.rerun.p50 == pytest.approx(0.4)


@pytest.mark.parametrize(
    "innocent",
    [
        killed(2.1, pid=OTHER),
        killed(1.0),
        killed(9.0),
        fault("child stopped within its lease", 2.1, 2.6, pids=(CHILD,)),
        fault("Redis shut down", 2.1, 3.0, is_outage=True),
        fault("network cut", 2.1, 2.3, pids=(CHILD,)),
        fault("handler blocks the loop", 2.1, 2.3, jobs=("bad",)),
    ],
    ids=["other process", "before", "after", "too short", "outage", "network cut", "blocked loop"],
)
def test_a_fault_that_did_not_cut_the_attempt_explains_nothing(innocent: Injected) -> None:
    start = Entry(STARTED, "cut", 1, CHILD, 2.0)
    bad = [Entry(STARTED, "bad", 1, CHILD, 1.9), Entry(EFFECT, "bad", 1, CHILD, 2.3)]
    evidence = build(start, *bad, *run_of("cut", 4.0, OTHER), jobs={"cut": 1.9}, faults=[innocent])
    assert verdict(evidence).unexplained_reruns == 1


@pytest.mark.parametrize(("ran_again_at", "is_explained"), [(13.0, True), (4.0, False)])
def test_a_fault_that_leaves_time_to_end_cuts_only_what_outlasts_it(
    ran_again_at: float, is_explained: bool
) -> None:
    drained = fault("supervisor killed", 2.5, pids=(CHILD,), cuts=True, cuts_from=12.3)
    start = Entry(STARTED, "long", 1, CHILD, 2.0)
    report = verdict(build(start, *run_of("long", ran_again_at, OTHER), jobs={"long": 1.9}, faults=[drained]))
    assert report.unexplained_reruns == (0 if is_explained else 1)


def test_a_kill_long_after_the_effect_explains_no_rerun() -> None:
    runs = [*run_of("twice", 2.0), *run_of("twice", 9.0, OTHER)]
    assert verdict(build(*runs, jobs={"twice": 1.9}, faults=[killed(8.0)])).unexplained_reruns == 1


def test_a_kill_explains_the_rerun_of_an_outcome_that_an_outage_kept_from_being_stored() -> None:
    runs = [*run_of("twice", 2.0), *run_of("twice", 9.0, OTHER)]
    outage = fault("Redis shut down", 2.1, 6.0, is_outage=True)
    report = verdict(build(*runs, jobs={"twice": 1.9}, faults=[outage, killed(6.5)]))
    assert (report.reruns, report.unexplained_reruns, report.repeated_effects) == (1, 0, 1)


def test_a_deadly_job_explains_the_reruns_of_its_neighbours_and_of_nobody_else() -> None:
    deadly = fault("handler exits", 1.5, jobs=("deadly",), cuts=True, poison=("deadly",))
    entries = [
        Entry(STARTED, "deadly", 1, CHILD, 2.0),
        Entry(STARTED, "neighbour", 1, CHILD, 2.0),
        *run_of("neighbour", 3.0, OTHER),
        Entry(STARTED, "stranger", 1, OTHER, 2.0),
        *run_of("stranger", 3.0, CHILD),
    ]
    jobs = {"neighbour": 1.9, "stranger": 1.9}
    report = verdict(build(*entries, jobs=jobs, faults=[deadly], dead_letters=("deadly",)))
    assert (report.reruns, report.unexplained_reruns) == (2, 1)
    assert "stranger" in report.violations[0]


@pytest.mark.parametrize(
    ("started_at", "part", "is_forgotten"),
    [(2.0, MAIN, True), (0.9, MAIN, False), (3.1, MAIN, False), (2.0, SENTINEL, False)],
    ids=["within", "before", "after", "other part"],
)
def test_a_rerun_is_put_down_to_redis_only_if_it_may_have_forgotten_that_very_outcome(
    started_at: float, part: str, is_forgotten: bool
) -> None:
    runs = [*run_of("twice", started_at), *run_of("twice", 9.0, OTHER)]
    failover = fault("fail-over", 2.9, 6.0, is_outage=True, loses=(1.5, 3.0), part=part)
    held_up = fault("network slow", 5.0, 8.5, pids=(CHILD,))
    report = verdict(build(*runs, jobs={"twice": 0.8}, faults=[failover, held_up]))
    assert (report.reruns_by_redis, report.unexplained_reruns) == ((1, 0) if is_forgotten else (0, 1))


def test_an_orderly_retry_is_no_rerun() -> None:
    first = [Entry(STARTED, "flaky", 1, CHILD, 2.0), Entry(RAISED, "flaky", 1, CHILD, 2.1)]
    report = verdict(build(*first, *run_of("flaky", 3.0, OTHER, attempt=2), jobs={"flaky": 1.9}))
    assert (report.reruns, report.violations) == (0, [])


def test_a_job_that_the_old_worker_ran_twice_is_counted_apart() -> None:
    runs = [*run_of("old", 2.0, LEGACY), *run_of("old", 4.0, OTHER)]
    report = verdict(build(*runs, jobs={"old": 1.9}))
    assert (report.reruns, report.reruns_of_legacy, report.violations) == (0, 1, [])


# Dead letters and what is left


def test_an_innocent_job_among_the_dead_letters_is_found() -> None:
    report = verdict(build(dead_letters=("good-1",)))
    assert "1 innocent jobs are among the dead letters: ['good-1']" in report.violations


def test_a_poison_job_that_is_not_among_the_dead_letters_is_found() -> None:
    poison = fault("handler exits", 2.0, jobs=("bad",), cuts=True, poison=("bad",))
    report = verdict(build(faults=[poison]))
    assert report.poison_in_dead_letters == 0
    assert "1 poison jobs are not among the dead letters: ['bad']" in report.violations


def test_a_job_that_had_its_effect_and_never_ended_is_found() -> None:
    report = verdict(build(statuses={"good-1": "ACTIVE"}))
    assert "1 jobs of part main had their effect and never ended: ['good-1 ACTIVE']" in report.violations


def test_keys_that_are_left_over_are_found() -> None:
    assert "left over" in verdict(build(left_keys=("rrq:active:jobs:w",))).violations[0]


def test_complaints_of_the_run_itself_are_violations() -> None:
    assert verdict(build(complaints=["processes outlived pod-1: [7]"])).violations == [
        "processes outlived pod-1: [7]"
    ]


# Times


def test_jobs_of_a_killed_child_that_are_due_late_are_found() -> None:
    late = [DueAgain("child killed", 2.0, 1.4, 3)]
    assert "due again after 1.40 s (p99), 1 s are allowed" in verdict(build(due_again=late)).violations[0]
    assert verdict(build(due_again=late), build_bars(15.0, room=1.5)).violations == []


def test_jobs_of_orphans_that_are_due_late_are_found() -> None:
    late = [DueAgain("supervisor killed", 2.0, 20.5, 3)]
    assert (
        "supervisor killed: jobs were due again after 20.50 s" in verdict(build(due_again=late)).violations[0]
    )
    in_time = [DueAgain("supervisor killed", 2.0, 19.5, 3)]
    assert verdict(build(due_again=in_time)).violations == []


def test_the_bars_of_the_default_lease_are_those_that_are_promised() -> None:
    assert build_bars(15.0) == Bars()


@pytest.mark.parametrize("config", [short_config(1), full_config(1)], ids=["short", "full"])
def test_every_bar_can_be_broken_before_the_run_stops_watching(config: ChaosConfig) -> None:
    bars = build_bars(config.lease_seconds, config.room)
    times = (bars.child_due_again_seconds, bars.supervisor_due_again_seconds, bars.pod_due_again_seconds)
    assert max(times) + 5 < config.watch_seconds
    # A lease that ends one renewal late is seen, and so is a backlog that stays for most of the run.
    assert bars.pod_due_again_seconds < 2 * config.lease_seconds + 1
    assert bars.backlog_seconds < 0.6 * config.seconds


def test_jobs_of_a_killed_pod_that_are_due_late_are_found() -> None:
    late = [DueAgain("pod killed", 2.0, 21.0, 3)]
    assert "pod killed: jobs were due again after 21.00 s" in verdict(build(due_again=late)).violations[0]


def test_jobs_that_were_never_given_back_are_found_however_much_room_there_is() -> None:
    never = [DueAgain("child killed", 2.0, None, 3)]
    assert "never given back" in verdict(build(due_again=never), build_bars(15.0, room=100)).violations[0]


def test_a_time_during_an_outage_is_not_held_against_the_bar() -> None:
    late = [DueAgain("child killed", 2.0, 1.4, 3)]
    outage = fault("Redis shut down", 2.5, 3.0, is_outage=True)
    assert verdict(build(due_again=late, faults=[outage])).violations == []


def test_a_backlog_that_stays_is_found() -> None:
    samples = [Sample(float(second), 500 if second >= 2 else 0) for second in range(60)]
    report = verdict(build(samples=samples, faults=[killed(2.0, pid=7)]))
    assert report.violations == [
        "the backlog of 1 faults was not gone within 30 s: 1 (child killed)",
        "more jobs waited than 25 for 57 s from 2 s on, 30 s are allowed",
    ]


def test_a_backlog_that_goes_is_timed_from_the_end_of_the_fault() -> None:
    samples = [Sample(float(second), 500 if 2 <= second < 12 else 3) for second in range(60)]
    pause = fault("Redis paused past the lease", 2.0, 6.0, is_outage=True)
    report = verdict(build(samples=samples, faults=[pause]))
    assert report.violations == []
    assert report.backlog_gone is not None
    assert report.backlog_gone.most == pytest.approx(6.0)


def test_a_backlog_that_could_not_be_read_is_not_taken_for_gone() -> None:
    samples = [Sample(float(second), None) for second in range(60)]
    assert verdict(build(samples=samples, faults=[killed(2.0, pid=7)])).violations != []


def test_throughput_is_told_during_and_after_a_fault() -> None:
    steady = [
        entry
        for second in range(20)
        if not 5 <= second < 8
        for number in range(10)
        for entry in run_of(f"{second}-{number}", second + number / 20, seconds=0.1)
    ]
    outage = fault("Redis shut down", 5.0, 7.9, is_outage=True)
    evidence = replace(build(*steady, faults=[outage]), load_ended_at=20.0)
    (kind,) = verdict(evidence).kinds
    assert kind.throughput_during == pytest.approx(0, abs=3)
    assert kind.throughput_after == pytest.approx(10, abs=2)
