"""The rules of the election as tables: what a candidate and a leader do about the lease that they see."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    build_held,
    build_released,
    build_vacant,
    decide,
    observe,
)

TIMING = Timing()
NOON = datetime(2031, 5, 17, 12, 0, 0, 5, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

MINE = LeaseRecord("7", holder="me", duration_seconds=5)
THEIRS = LeaseRecord("7", holder="them", duration_seconds=5)
RELEASED = LeaseRecord("7", holder="", duration_seconds=1)


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
