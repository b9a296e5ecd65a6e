"""The election: its rules as tables, and whole elections in simulated time with everything going wrong."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from election_simulation import Network, Simulation
from rrq_operator.decide.election_rules import (
    MOST_TRANSITIONS,
    Acquire,
    Create,
    Decision,
    LeaseRecord,
    Look,
    Lost,
    Memory,
    Renew,
    Sighting,
    Timing,
    Wait,
    WorkDoesNotStop,
    build_held,
    build_released,
    build_vacant,
    decide,
    observe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rrq_operator.control.election import Leadership

TIMING = Timing()
NOON = datetime(2031, 5, 17, 12, 0, 0, 5, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
TAKEOVER_SECONDS = 8.0
#: MODEL_EXAMPLES=3000 draws many more storms, for a change of the election.
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "60"))

MINE = LeaseRecord("7", holder="me", duration_seconds=5)
THEIRS = LeaseRecord("7", holder="them", duration_seconds=5)
RELEASED = LeaseRecord("7", holder="", duration_seconds=1)


# --- the rules


@pytest.mark.parametrize(
    ("record", "unchanged_seconds", "decision"),
    [
        pytest.param(None, 0.0, Create(), id="no Lease"),
        pytest.param(None, 60.0, Create(), id="no Lease, whenever we looked"),
        pytest.param(
            build_vacant(TIMING), 0.0, Wait(5.0), id="made a moment ago: perhaps deleted under a leader"
        ),
        pytest.param(build_vacant(TIMING), 5.0, Acquire(build_vacant(TIMING)), id="long without a holder"),
        pytest.param(THEIRS, 0.0, Wait(5.0), id="held by another"),
        pytest.param(THEIRS, 4.9, Wait(0.1), id="held by another, not for long"),
        pytest.param(THEIRS, 5.0, Acquire(THEIRS), id="not renewed for a whole duration"),
        pytest.param(RELEASED, 0.0, Acquire(RELEASED), id="released"),
        pytest.param(LeaseRecord("7"), 0.0, Wait(5.0), id="without content"),
        pytest.param(LeaseRecord("7"), 5.0, Acquire(LeaseRecord("7")), id="without content for long"),
        pytest.param(replace(THEIRS, holder=""), 0.0, Wait(5.0), id="emptied by hand under its leader"),
        pytest.param(replace(THEIRS, duration_seconds=None), 1.0, Wait(4.0), id="no duration: ours"),
        pytest.param(replace(THEIRS, duration_seconds=0), 1.0, Wait(4.0), id="no usable duration: ours"),
        pytest.param(
            replace(THEIRS, duration_seconds=20), 1.0, Wait(19.0), id="a longer duration is honoured"
        ),
        pytest.param(replace(THEIRS, duration_seconds=3600), 1.0, Wait(59.0), id="an hour is not"),
        pytest.param(MINE, 0.0, Renew(MINE), id="ours, though we did not know"),
    ],
)
def test_a_candidate_takes_only_a_lease_that_no_other_can_hold(
    record: LeaseRecord | None, unchanged_seconds: float, decision: Decision
) -> None:
    memory = Memory("me", Sighting(record, 100.0), is_current=True)
    decided = decide(memory, 100.0 + unchanged_seconds, TIMING)
    if isinstance(decision, Wait):
        assert isinstance(decided, Wait)
        assert decided.seconds == pytest.approx(decision.seconds)
    else:
        assert decided == decision


@pytest.mark.parametrize(
    ("record", "now_seconds", "decision"),
    [
        pytest.param(MINE, 102.0, Renew(MINE), id="ours"),
        pytest.param(MINE, 103.5, Lost("the lease could not be renewed in time"), id="too late"),
        pytest.param(THEIRS, 102.0, Lost("the lease is held by 'them'"), id="taken"),
        pytest.param(
            LeaseRecord("7"), 102.0, Acquire(LeaseRecord("7")), id="deleted and made again: taken back"
        ),
        pytest.param(None, 102.0, Create(), id="deleted"),
    ],
)
def test_a_leader_stops_at_its_deadline_and_when_the_lease_is_not_its_own(
    record: LeaseRecord | None, now_seconds: float, decision: Decision
) -> None:
    memory = Memory("me", Sighting(record, 100.0), is_current=True, held_until_seconds=103.5)
    assert decide(memory, now_seconds, TIMING) == decision


def test_nothing_is_decided_on_a_lease_that_may_have_changed() -> None:
    assert decide(Memory("me"), 100.0, TIMING) == Look()
    assert decide(Memory("me", Sighting(RELEASED, 0.0)), 100.0, TIMING) == Look()
    # Its deadline a leader knows without looking.
    assert isinstance(decide(Memory("me", held_until_seconds=99.0), 100.0, TIMING), Lost)


def test_only_a_new_version_starts_the_wait_anew() -> None:
    first = observe(None, THEIRS, 10.0)
    assert first == Sighting(THEIRS, 10.0)
    assert observe(first, THEIRS, 12.0).since_seconds == 10.0
    # The same content in a new version: a leader whose wall clock stands still.
    assert observe(first, replace(THEIRS, version="8"), 12.0).since_seconds == 12.0
    assert observe(first, None, 12.0) == Sighting(None, 12.0)
    assert observe(Sighting(None, 10.0), None, 12.0) == Sighting(None, 10.0)


def test_a_change_of_holder_counts_and_a_renewal_does_not() -> None:
    acquired = build_held(replace(build_vacant(TIMING), version="1"), "a", NOON, TIMING)
    assert acquired == LeaseRecord("1", "a", 5, NOON, NOON, transitions=1)
    renewed = build_held(replace(acquired, version="2"), "a", NOON + 9 * MICROSECOND, TIMING)
    assert renewed == LeaseRecord("2", "a", 5, NOON, NOON + 9 * MICROSECOND, transitions=1)
    released = build_released(replace(renewed, version="3"), NOON + 10 * MICROSECOND)
    assert released == LeaseRecord("3", "", 1, NOON, NOON + 10 * MICROSECOND, transitions=1)
    taken = build_held(released, "b", NOON + 20 * MICROSECOND, TIMING)
    assert (taken.holder, taken.acquired_at, taken.transitions) == ("b", NOON + 20 * MICROSECOND, 2)
    assert build_held(replace(THEIRS, transitions=MOST_TRANSITIONS), "a", NOON, TIMING).transitions == (
        MOST_TRANSITIONS
    )


@given(
    wall_time=st.datetimes(timezones=st.just(UTC)).filter(lambda time: time.year < 9999),
    difference=st.integers(-2, 2),
)
def test_the_written_time_always_differs_and_always_has_a_fraction(
    wall_time: datetime, difference: int
) -> None:
    try:
        before = wall_time + difference * MICROSECOND
    except OverflowError:
        before = wall_time
    seen = replace(MINE, renewed_at=before)
    for record in (build_held(seen, "me", wall_time, TIMING), build_released(seen, wall_time)):
        assert record.renewed_at is not None
        assert record.renewed_at != before
        assert record.renewed_at.microsecond != 0
        assert record.renewed_at - wall_time <= 2 * MICROSECOND


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"renew_deadline_seconds": 2.0}, "one lost call would end the leadership"),
        ({"renew_deadline_seconds": 4.0}, "may meet its successor"),
        ({"lease_seconds": 61}, "longer than the 60 s"),
    ],
)
def test_times_that_do_not_fit_together_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TIMING, **change)  # type: ignore[arg-type]  # the keys are those of numbers


# --- whole elections


@contextmanager
def simulated(seed: int = 0, record: LeaseRecord | None = RELEASED) -> Iterator[Simulation]:
    simulation = Simulation(seed, record)
    try:
        yield simulation
    finally:
        simulation.close()


def test_a_killed_leader_is_followed_within_the_time_promised() -> None:
    for seed in range(10):
        with simulated(seed) as simulation:
            simulation.add("a")
            simulation.add("b")
            simulation.run(3 + seed / 10)
            (leader,) = simulation.leaders()
            simulation.candidates[leader].kill()
            simulation.run(0.01)
            assert TIMING.lease_seconds - 1.1 < simulation.run_until_led(TAKEOVER_SECONDS) < 6.5


def test_a_leader_that_is_asked_to_end_leaves_the_lease_to_the_next() -> None:
    for seed in range(10):
        with simulated(seed) as simulation:
            simulation.add("a")
            simulation.add("b")
            simulation.run(3 + seed / 10)
            (leader,) = simulation.leaders()
            candidate = simulation.candidates[leader]
            candidate.stop()
            simulation.run(0.1)
            assert candidate.task.done()
            assert candidate.task.result() is None
            assert candidate.changes == [True, False]
            assert simulation.run_until_led(2.0) < 1.5
            assert simulation.record is not None
            assert simulation.record.transitions == 2


def test_a_lease_deleted_under_its_leader_makes_no_second_one() -> None:
    for seed in range(10):
        with simulated(seed, record=None) as simulation:
            simulation.add("a")
            simulation.add("b")
            simulation.run_until_led(TAKEOVER_SECONDS)
            (leader,) = simulation.leaders()
            simulation.run((0.01, 0.5, 3)[seed % 3])
            simulation.delete()
            simulation.run(10)
            assert simulation.leaders() == [leader]
            assert simulation.candidates[leader].changes == [True]


def test_a_leader_cut_off_stops_its_work_before_its_deadline_and_leads_again_later() -> None:
    with simulated() as simulation:
        leader = simulation.add("a")
        simulation.run(3)
        simulation.network = Network(lost_requests=1.0)
        simulation.run(3.6)
        assert leader.changes == [True, False]
        simulation.network = Network()
        simulation.run_until_led(2.0)
        assert leader.changes == [True, False, True]
        assert [term.is_leading() for term in leader.terms] == [False, True]


def test_a_leadership_counts_from_the_sending_of_the_renewal_not_from_its_answer() -> None:
    with simulated() as simulation:
        leader = simulation.add("a")
        simulation.run(3)
        simulation.freeze()
        while not simulation.is_waited_for:
            simulation.run(0.01)
        sent_at_seconds = simulation.now_seconds
        simulation.run(0.9)
        simulation.thaw()
        simulation.network = Network(lost_requests=1.0)
        while leader.is_leading():
            simulation.run(0.01)
        assert simulation.now_seconds - sent_at_seconds == pytest.approx(
            TIMING.renew_deadline_seconds, abs=0.1
        )


def test_work_that_fails_releases_the_lease_and_fails_the_election() -> None:
    async def fail(leadership: Leadership) -> None:
        await asyncio.sleep(2)
        raise RuntimeError("out of ideas")

    with simulated() as simulation:
        candidate = simulation.add("a", work=fail)
        simulation.run(3)
        with pytest.raises(RuntimeError, match="out of ideas"):
            candidate.task.result()
        assert candidate.changes == [True, False]
        assert simulation.record is not None
        assert (simulation.record.holder, simulation.record.duration_seconds) == ("", 1)


async def go_on(leadership: Leadership, *, for_seconds: float, steps: int = 1) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        for _ in range(steps):
            await asyncio.sleep(for_seconds / steps)


@pytest.mark.parametrize("ending", ["lost", "stopped"])
def test_work_that_does_not_stop_fails_the_election_and_keeps_the_lease(ending: str) -> None:
    with simulated() as simulation:
        candidate = simulation.add("a", work=partial(go_on, for_seconds=1.1))
        simulation.run(3)
        if ending == "lost":
            simulation.network = Network(lost_requests=1.0)
        else:
            candidate.stop()
        simulation.run(TIMING.lease_seconds)
        with pytest.raises(WorkDoesNotStop, match="End this process"):
            candidate.task.result()
        assert simulation.record is not None
        assert simulation.record.holder == "a"
        assert not candidate.is_leading()


def test_work_still_leads_while_it_stops() -> None:
    with simulated() as simulation:
        candidate = simulation.add("a", work=partial(go_on, for_seconds=0.9))
        simulation.run(3)
        candidate.stop()
        simulation.run(0.8)
        assert candidate.is_leading()
        simulation.run(0.2)
        assert candidate.task.done()
        assert not candidate.is_leading()
        assert simulation.record is not None
        assert simulation.record.holder == ""


@pytest.mark.parametrize("paused_after_seconds", [0.01, 0.3])
def test_a_process_that_stands_still_while_its_work_ends_goes_on_as_a_candidate(
    paused_after_seconds: float,
) -> None:
    with simulated() as simulation:
        candidate = simulation.add("a", work=partial(go_on, for_seconds=0.5, steps=5))
        simulation.run(3)
        simulation.network = Network(refused=1.0)
        while candidate.is_leading():
            simulation.run(0.01)
        simulation.run(paused_after_seconds)
        candidate.pause()
        simulation.run(3)
        candidate.resume()
        simulation.run(1)
        assert not candidate.task.done()
        simulation.network = Network()
        simulation.run_until_led(2.0)
        assert candidate.changes == [True, False, True]


def test_a_second_stop_does_not_release_the_lease_while_the_work_runs_on() -> None:
    with simulated() as simulation:
        candidate = simulation.add("a", work=partial(go_on, for_seconds=0.9))
        simulation.run(3)
        candidate.stop()
        simulation.run(0.2)
        candidate.stop()
        simulation.run(0.2)
        assert candidate.task.cancelled()
        assert simulation.record is not None
        assert simulation.record.holder == "a"


def test_work_that_fails_while_it_is_stopped_is_logged_and_the_candidate_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_at_the_end(leadership: Leadership) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("cannot tidy up")

    with simulated() as simulation:
        candidate = simulation.add("a", work=fail_at_the_end)
        simulation.run(3)
        simulation.network = Network(lost_requests=1.0)
        simulation.run(5)
        simulation.network = Network()
        simulation.run_until_led(2.0)
        assert candidate.changes == [True, False, True]
        assert "failed while it was stopped" in caplog.text


def test_an_unreachable_lease_does_not_delay_the_end() -> None:
    with simulated() as simulation:
        candidate = simulation.add("a")
        simulation.run(3)
        simulation.freeze()
        candidate.stop()
        simulation.run(1.1)
        assert candidate.task.result() is None


# --- everything at once

seconds_of_storm = st.floats(0, 30)
shares = st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0])
networks = st.builds(
    Network,
    longest_delay_seconds=st.sampled_from([0.01, 0.3, 1.5, 8.0]),
    lost_requests=shares,
    lost_answers=shares,
    refused=shares,
)
clocks = st.fixed_dictionaries(
    {
        "clock_offset_seconds": st.sampled_from([0.0, 12_345.0, 3_000_000.0]),
        "clock_rate": st.sampled_from([0.95, 1.0, 1.05]),
        "wall_offset_seconds": st.sampled_from([0.0, -86_400.0, 86_400.0]),
    }
)
candidate_numbers = st.integers(0, 3)


def set_network(simulation: Simulation, network: Network) -> None:
    simulation.network = network


def act_on(simulation: Simulation, number: int, action: str) -> None:
    names = sorted(simulation.candidates)
    candidate = simulation.candidates[names[number % len(names)]]
    if action == "pause leader":
        candidate = next((simulation.candidates[name] for name in simulation.leaders()), candidate)
        action = "pause"
    elif action in ("kill", "stop") and candidate.name == names[0]:
        return  # one survives
    {
        "pause": candidate.pause,
        "resume": candidate.resume,
        "kill": candidate.kill,
        "stop": candidate.stop,
    }[action]()


troubles = st.one_of(
    st.builds(lambda network: partial(set_network, network=network), networks),
    st.sampled_from([Simulation.freeze, Simulation.thaw, Simulation.delete]),
    st.builds(
        lambda number, action: partial(act_on, number=number, action=action),
        candidate_numbers,
        st.sampled_from(
            ["pause", "pause leader", "pause leader", "resume", "resume", "resume", "kill", "stop"]
        ),
    ),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    candidates=st.lists(clocks, min_size=2, max_size=4),
    storm=st.lists(st.tuples(seconds_of_storm, troubles), max_size=25),
    record=st.sampled_from([None, RELEASED, THEIRS]),
)
def test_two_never_lead_and_one_leads_once_all_faults_end(
    seed: int,
    candidates: list[dict[str, float]],
    storm: list[tuple[float, Callable[[Simulation], None]]],
    record: LeaseRecord | None,
) -> None:
    with simulated(seed, record) as simulation:  # it checks after every event that at most one leads
        for number, clock in enumerate(candidates):
            simulation.add(f"candidate-{number}", **clock)
        for moment_seconds, trouble in storm:
            simulation.at(moment_seconds, partial(trouble, simulation))
        simulation.run(30)
        simulation.calm()
        for candidate in simulation.candidates.values():
            candidate.resume()
        simulation.run_until_led(TAKEOVER_SECONDS)
        for candidate in simulation.candidates.values():
            is_over = candidate.task.done() and not candidate.task.cancelled()
            assert not is_over or candidate.task.exception() is None
