"""Whole elections in simulated time, with everything going wrong. decide/test_election_rules.py has the rules."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from election_simulation import Network, Simulation
from rrq_operator.decide.election_rules import LeaseRecord, Timing, WorkDoesNotStop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rrq_operator.control.election import Leadership

TIMING = Timing()
TAKEOVER_SECONDS = 8.0
#: MODEL_EXAMPLES=3000 draws many more storms, for a change of the election.
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "60"))

THEIRS = LeaseRecord("7", holder="them", duration_seconds=5)
RELEASED = LeaseRecord("7", holder="", duration_seconds=1)


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
