"""No excuse is too wide: ledgers in which something is wrong beside a fault that has nothing to do with it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from chaos_ledger import KILLED, RAISED, STARTED, TAKEN, Entry
from doctored import CHILD, LEASE_SECONDS, LEGACY, OTHER, build, fault, killed, run_of, verdict
from injected import MAIN, SENTINEL, DueAgain, Sample
from stalls import KIND as STALL
from stalls import watch_for_stalls
from waiting import eventually

if TYPE_CHECKING:
    from injected import Injected

POD_PIDS = (21, 22)
TWO_RUNS = (*run_of("twice", 2.0), *run_of("twice", 9.0, OTHER))
TWICE = {"twice": 1.9}


# Attempts that ran again


def test_a_job_that_ignores_its_cancellation_keeps_its_process_from_nothing() -> None:
    bad = fault("handler ignores cancellation", 9.0, jobs=("bad",), poison=("bad",))
    entries = [
        Entry(STARTED, "bad", 1, CHILD, 10.0),
        *run_of("j", 20.0),
        *run_of("j", 100.5, OTHER),
    ]
    report = verdict(build(*entries, jobs={"j": 19.0}, faults=[bad, killed(100.0)], dead_letters=("bad",)))
    assert report.unexplained_reruns == 1


@pytest.mark.parametrize(("victim", "unexplained"), [(CHILD, 0), (LEGACY, 1)])
def test_a_job_that_kills_its_container_explains_the_reruns_of_those_whom_it_killed(
    victim: int, unexplained: int
) -> None:
    bad = fault("container out of memory", 2.0, jobs=("bad",), poison=("bad",), cuts=True, ends=True)
    entries = [
        Entry(STARTED, "bad", 1, OTHER, 2.05),
        Entry(STARTED, "twice", 1, CHILD, 2.0),
        Entry(KILLED, "bad", 1, victim, 2.1),
        *run_of("twice", 9.0, OTHER),
    ]
    report = verdict(build(*entries, jobs=TWICE, faults=[bad], dead_letters=("bad",)))
    assert report.unexplained_reruns == unexplained


@pytest.mark.parametrize(("part", "unexplained"), [(MAIN, 0), (SENTINEL, 1)])
def test_an_outage_of_the_other_part_kept_no_outcome_from_being_stored(part: str, unexplained: int) -> None:
    outage = fault("Redis shut down", 2.1, 6.0, is_outage=True, part=part)
    report = verdict(build(*TWO_RUNS, jobs=TWICE, faults=[outage, killed(6.5)]))
    assert report.unexplained_reruns == unexplained


def test_what_ours_finished_and_the_old_worker_started_again_needs_a_cause() -> None:
    runs = [*run_of("old", 2.0, CHILD), *run_of("old", 4.0, LEGACY)]
    report = verdict(build(*runs, jobs={"old": 1.9}))
    assert (report.reruns_of_legacy, report.unexplained_reruns) == (0, 1)


def test_an_effect_before_a_crash_of_redis_is_no_excuse_for_an_owner_that_was_there_all_the_time() -> None:
    crash = fault("Redis killed", 2.9, 6.0, is_outage=True, loses=(1.5, 3.0))
    assert verdict(build(*TWO_RUNS, jobs=TWICE, faults=[crash])).unexplained_reruns == 1


@pytest.mark.parametrize(("died_at", "by_redis"), [(5.0, 1), (8.0, 0)])
def test_what_redis_forgot_is_excused_if_its_owner_died_before_it_could_say_it_again(
    died_at: float, by_redis: int
) -> None:
    crash = fault("Redis killed", 2.9, 6.0, is_outage=True, loses=(1.5, 3.0))
    # Killed without having cut anything: only the second telling is what it kept from happening.
    death = fault("child killed", died_at, pids=(CHILD,), ends=True)
    report = verdict(build(*TWO_RUNS, jobs=TWICE, faults=[crash, death]))
    assert (report.reruns_by_redis, report.unexplained_reruns) == (by_redis, 1 - by_redis)


@pytest.mark.parametrize(("held_up_until", "by_redis"), [(7.5, 0), (8.5, 1)])
def test_what_redis_forgot_is_excused_if_its_owner_was_held_up_for_longer_than_others_wait(
    held_up_until: float, by_redis: int
) -> None:
    crash = fault("Redis killed", 2.9, 6.0, is_outage=True, loses=(1.5, 3.0))
    held_up = fault("network slow", 5.0, held_up_until, pids=(CHILD,))
    report = verdict(build(*TWO_RUNS, jobs=TWICE, faults=[crash, held_up]))
    assert (report.reruns_by_redis, report.unexplained_reruns) == (by_redis, 1 - by_redis)
    # With all others, which have nobody to wait for them then.
    stall = fault(STALL, 6.5, held_up_until)
    report = verdict(build(*TWO_RUNS, jobs=TWICE, faults=[crash], stalls=[stall]))
    assert (report.reruns_by_redis, report.unexplained_reruns) == (by_redis, 1 - by_redis)


@pytest.mark.parametrize(
    ("failed_at", "failed_in", "started_at", "by_redis"),
    [
        (2.0, OTHER, 2.5, 1),
        # Whoever made both attempts has both to tell.
        (2.0, CHILD, 2.5, 0),
        # Redis had been told of the failure before it began to forget.
        (0.5, OTHER, 2.5, 0),
        # The second attempt was made when Redis was back.
        (2.0, OTHER, 6.5, 0),
    ],
)
def test_an_attempt_that_redis_forgot_with_the_failure_before_it_is_excused_if_two_had_to_tell(
    failed_at: float, failed_in: int, started_at: float, by_redis: int
) -> None:
    crash = fault("Redis killed", 2.9, 6.0, is_outage=True, loses=(1.5, 3.0))
    failed = [Entry(STARTED, "twice", 1, failed_in, 0.4), Entry(RAISED, "twice", 1, failed_in, failed_at)]
    runs = [*run_of("twice", started_at, CHILD, attempt=2), *run_of("twice", 9.0, OTHER, attempt=2)]
    report = verdict(build(*failed, *runs, jobs={"twice": 0.3}, faults=[crash]))
    assert (report.reruns_by_redis, report.unexplained_reruns) == (by_redis, 1 - by_redis)


@pytest.mark.parametrize(("stalled_until", "unexplained"), [(4.0, 0), (2.3, 1)])
def test_an_outcome_that_was_on_its_way_when_the_machine_stood_still_arrives_later(
    stalled_until: float, unexplained: int
) -> None:
    stall = fault("the machine stood still", 2.1, stalled_until)
    report = verdict(build(*TWO_RUNS, jobs=TWICE, faults=[killed(6.5)], stalls=[stall]))
    assert (report.unexplained_reruns, report.stalled_seconds) == (unexplained, round(stalled_until - 2.1, 1))


async def test_a_machine_that_stands_still_is_noticed() -> None:
    found: list[Injected] = []
    watch = asyncio.create_task(watch_for_stalls(found))
    await eventually(lambda: len(asyncio.all_tasks()) > 1, 5)
    await asyncio.sleep(0)
    begun_at = time.monotonic()
    time.sleep(1.0)  # noqa: ASYNC251  nothing else may turn meanwhile
    await eventually(lambda: found, 10)
    watch.cancel()
    assert {stall.part for stall in found} == {MAIN, SENTINEL}
    assert found[0].begun_at <= begun_at + 0.1
    assert found[0].ended_at >= begun_at + 1.0


@pytest.mark.parametrize("kind", ["child stopped past its lease", "network silent past the lease"])
@pytest.mark.parametrize(("ran_again_at", "unexplained"), [(3.0, 1), (5.5, 0)])
def test_a_stop_explains_nothing_before_the_lease_can_have_ended(
    kind: str, ran_again_at: float, unexplained: int
) -> None:
    start = Entry(STARTED, "cut", 1, CHILD, 2.0)
    cuts_from = 2.1 + LEASE_SECONDS * 2 / 3
    stop = fault(kind, 2.1, 6.6, pids=(CHILD,), cuts=True, cuts_from=cuts_from)
    report = verdict(build(start, *run_of("cut", ran_again_at, OTHER), jobs={"cut": 1.9}, faults=[stop]))
    assert report.unexplained_reruns == unexplained


def test_a_silence_within_the_lease_explains_nothing() -> None:
    start = Entry(STARTED, "cut", 1, CHILD, 2.0)
    silence = fault("network silent within the lease", 2.1, 3.2, pids=(CHILD,))
    report = verdict(build(start, *run_of("cut", 5.5, OTHER), jobs={"cut": 1.9}, faults=[silence]))
    assert report.unexplained_reruns == 1


@pytest.mark.parametrize(("attempt", "unexplained"), [(1, 1), (2, 0), (3, 1)])
def test_an_exception_explains_the_next_attempt_and_no_other(attempt: int, unexplained: int) -> None:
    first = [Entry(STARTED, "flaky", 1, CHILD, 2.0), Entry(RAISED, "flaky", 1, CHILD, 2.1)]
    report = verdict(build(*first, *run_of("flaky", 4.0, OTHER, attempt=attempt), jobs={"flaky": 1.9}))
    assert report.unexplained_reruns == unexplained


@pytest.mark.parametrize(("died_at", "unexplained"), [(2.5, 0), (3.5, 1)])
def test_a_death_explains_the_rerun_of_an_effect_only_while_its_outcome_was_on_its_way(
    died_at: float, unexplained: int
) -> None:
    assert verdict(build(*TWO_RUNS, jobs=TWICE, faults=[killed(died_at)])).unexplained_reruns == unexplained


def test_only_reruns_with_a_cause_are_told_as_cut_by_a_fault() -> None:
    entries = [
        Entry(STARTED, "cut", 1, CHILD, 2.0),
        *run_of("cut", 2.5, OTHER),
        *run_of("late", 1.9),
        *run_of("late", 2.6, OTHER),
        *run_of("odd", 3.0, OTHER),
        *run_of("odd", 5.0, OTHER),
    ]
    jobs = dict.fromkeys(("cut", "late", "odd"), 1.8)
    report = verdict(build(*entries, jobs=jobs, faults=[killed(2.2)]))
    assert (report.reruns, report.reruns_by_fault, report.repeated_by_fault) == (3, 2, 1)
    assert (report.repeated_effects, report.unexplained_reruns) == (2, 1)


# The 0.7.1 worker


@pytest.mark.parametrize(("started_at", "lost", "by_legacy"), [(3.0, 1, 0), (2.0, 0, 1)])
def test_the_old_worker_is_blamed_only_for_what_it_was_the_last_to_have(
    started_at: float, lost: int, by_legacy: int
) -> None:
    entries = [Entry(TAKEN, "old", 0, LEGACY, 2.1), Entry(STARTED, "old", 1, CHILD, started_at)]
    report = verdict(build(*entries, jobs={"old": 1.9}, statuses={"old": "PENDING"}))
    assert (report.lost, report.lost_by_legacy) == (lost, by_legacy)


@pytest.mark.parametrize(("pid", "is_stuck"), [(CHILD, True), (LEGACY, False)])
def test_a_job_that_the_old_worker_took_once_and_ours_ran_has_to_end(pid: int, is_stuck: bool) -> None:
    entries = [Entry(TAKEN, "old", 0, LEGACY, 2.1), *run_of("old", 3.0, pid)]
    report = verdict(build(*entries, jobs={"old": 1.9}, statuses={"old": "ACTIVE"}))
    assert any("never ended" in violation for violation in report.violations) == is_stuck


def test_a_job_that_ours_ran_before_the_old_worker_took_it_has_to_end() -> None:
    entries = [*run_of("old", 2.0), Entry(TAKEN, "old", 0, LEGACY, 3.0)]
    report = verdict(build(*entries, jobs={"old": 1.9}, statuses={"old": "ACTIVE"}))
    assert any("never ended" in violation for violation in report.violations)


# Times


LATE_POD = DueAgain("pod killed", 10.0, 21.0, 3, POD_PIDS)


@pytest.mark.parametrize("kind", ["network slow", "replies cut", "network silent past the lease"])
def test_the_network_of_one_pod_does_not_blur_the_death_of_another(kind: str) -> None:
    other = fault(kind, 12.0, 14.0, pids=(CHILD,))
    assert "pod killed" in verdict(build(due_again=[LATE_POD], faults=[other])).violations[0]
    own = fault(kind, 12.0, 14.0, pids=(POD_PIDS[0],))
    assert verdict(build(due_again=[LATE_POD], faults=[own])).violations == []


@pytest.mark.parametrize("kind", ["supervisor killed", "pod killed"])
def test_a_supervisor_that_died_before_it_could_tell_blurs_the_death_of_its_own_child(kind: str) -> None:
    late = DueAgain("child killed", 10.0, 3.9, 3, POD_PIDS)
    own = fault(kind, 10.4, pids=POD_PIDS)
    assert verdict(build(due_again=[late], faults=[own])).violations == []
    other = fault(kind, 10.4, pids=(CHILD,))
    assert "child killed" in verdict(build(due_again=[late], faults=[other])).violations[0]
    # Its own death is what the time of a pod is taken from.
    assert "pod killed" in verdict(build(due_again=[LATE_POD], faults=[own])).violations[0]


@pytest.mark.parametrize("kind", ["child killed", "pod killed"])
def test_a_kind_that_could_be_measured_and_never_was_is_found(kind: str) -> None:
    deaths = [fault(kind, float(at), pids=(50 + at,), cuts=True, ends=True) for at in (10, 20, 30)]
    assert f"{kind}: 3 were injected away from every outage" in verdict(build(faults=deaths)).violations[0]
    assert verdict(build(faults=deaths[:2])).violations == []
    outage = fault("Redis shut down", 9.0, 11.0, is_outage=True)
    assert verdict(build(faults=[outage, *deaths])).violations == []
    measured = [DueAgain(kind, 20.0, 0.5, 1, (70,))]
    assert verdict(build(faults=deaths, due_again=measured)).violations == []


def test_a_backlog_that_grows_long_after_the_fault_is_found() -> None:
    samples = [Sample(float(second), 500 if 10 <= second < 45 else 0) for second in range(60)]
    report = verdict(build(samples=samples, faults=[killed(2.0, pid=7)]))
    assert report.violations == ["more jobs waited than 25 for 34 s from 10 s on, 30 s are allowed"]


def test_a_backlog_of_an_outage_has_the_bar_to_be_gone_in() -> None:
    samples = [Sample(float(second), 500 if 10 <= second < 45 else 0) for second in range(60)]
    outage = fault("Redis paused past the lease", 10.0, 20.0, is_outage=True)
    assert verdict(build(samples=samples, faults=[outage])).violations == []
    long = [Sample(float(second), 500 if second >= 10 else 0) for second in range(60)]
    assert verdict(build(samples=long, faults=[outage])).violations != []


@pytest.mark.parametrize(("gone_at", "is_late"), [(45, False), (55, True)])
def test_a_backlog_is_put_down_to_the_outage_that_made_it_and_not_to_a_fault_just_before(
    gone_at: int, is_late: bool
) -> None:
    samples = [Sample(float(second), 500 if 10 <= second < gone_at else 0) for second in range(80)]
    cut = fault("network cut", 9.0, 9.5, pids=(CHILD,))
    outage = fault("Redis paused past the lease", 10.0, 20.0, is_outage=True)
    report = verdict(build(samples=samples, faults=[cut, outage]))
    assert [violation.endswith("1 (Redis paused past the lease)") for violation in report.violations] == (
        [True] if is_late else []
    )


@pytest.mark.parametrize(("gone_at", "is_late"), [(55, False), (59, True)])
def test_an_outage_at_the_last_moment_excuses_a_backlog_for_as_long_as_it_held_everybody_up(
    gone_at: int, is_late: bool
) -> None:
    samples = [Sample(float(second), 500 if 10 <= second < gone_at else 0) for second in range(80)]
    pause = fault("Redis paused past the lease", 10.0, 20.0, is_outage=True)
    # Two seconds without Redis, two for what came in meanwhile, two until everybody is back.
    last_moment = fault("Redis read-only", 49.0, 51.0, is_outage=True)
    report = verdict(build(samples=samples, faults=[pause, last_moment]))
    assert [violation.endswith("1 (Redis paused past the lease)") for violation in report.violations] == (
        [True] if is_late else []
    )
    elsewhere = fault("fail-over", 49.0, 51.0, is_outage=True, part=SENTINEL)
    assert verdict(build(samples=samples, faults=[pause, elsewhere])).violations != []


def test_outages_that_follow_each_other_excuse_no_backlog_for_ever() -> None:
    samples = [Sample(float(second), 500 if 10 <= second < 170 else 0) for second in range(180)]
    outages = [
        fault("Redis killed", begin, begin + 1.0, is_outage=True) for begin in map(float, range(10, 160, 15))
    ]
    report = verdict(build(samples=samples, faults=outages))
    assert "more jobs waited than 25 for 159 s from 10 s on, 70 s are allowed" in report.violations


@pytest.mark.parametrize("stalled", [True, False])
def test_a_machine_that_stood_still_has_the_time_for_its_backlog_that_an_outage_has(stalled: bool) -> None:
    samples = [Sample(float(second), 500 if 10 <= second < 48 else 0) for second in range(80)]
    stall = fault(STALL, 20.0, 24.5)
    report = verdict(build(samples=samples, faults=[killed(10.0, pid=7)], stalls=[stall] if stalled else []))
    assert (report.violations == []) == stalled
