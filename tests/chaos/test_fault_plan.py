"""The plan of a run: drawn from its seed alone, within its caps, and with room where faults need it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_config import full_config
from fault_plan import BY_NAME, KINDS, PlanDoesNotFit, draw_plan

SHORT: Any = {"seconds": 95.0, "faults": 40, "lease_seconds": 3.0, "most_outages": 8}
FULL: Any = {"seconds": 1200.0, "faults": 500, "lease_seconds": 15.0, "most_outages": 20}


@given(seed=st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_faults(seed: int) -> None:
    assert draw_plan(seed, **SHORT) == draw_plan(seed, **SHORT)


def test_another_seed_draws_other_faults() -> None:
    assert draw_plan(1, **SHORT) != draw_plan(2, **SHORT)


@given(seed=st.integers(0, 10_000))
@pytest.mark.parametrize("size", [SHORT, FULL], ids=["short", "full"])
def test_a_run_has_all_its_faults_within_its_time_and_outages_within_their_cap(size: Any, seed: int) -> None:
    plan = draw_plan(seed, **size)
    assert len(plan) == size["faults"]
    assert all(0 <= fault.at_seconds <= size["seconds"] for fault in plan)
    assert [fault.at_seconds for fault in plan] == sorted(fault.at_seconds for fault in plan)
    assert sum(BY_NAME[fault.kind].is_outage for fault in plan) <= size["most_outages"]


@pytest.mark.parametrize("size", [SHORT, FULL], ids=["short", "full"])
@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_fault_comes_at_least_once(size: Any, seed: int) -> None:
    plan = draw_plan(seed, **size)
    assert {fault.kind for fault in plan} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("seed", range(20))
def test_nothing_begins_while_a_heavy_fault_is_to_be_seen_alone(seed: int) -> None:
    plan = draw_plan(seed, **FULL)
    for fault, successor in pairwise(plan):
        kind = BY_NAME[fault.kind]
        quiet_seconds = kind.busy_seconds + kind.busy_leases * FULL["lease_seconds"]
        assert successor.at_seconds - fault.at_seconds >= quiet_seconds - 0.002


@pytest.mark.parametrize("seed", range(20))
def test_what_takes_long_to_show_comes_early(seed: int) -> None:
    for fault in draw_plan(seed, **FULL):
        assert fault.at_seconds <= FULL["seconds"] * min(1.0, BY_NAME[fault.kind].latest_share + 0.1)


@pytest.mark.parametrize("size", [SHORT, FULL], ids=["short", "full"])
@pytest.mark.parametrize("seed", range(20))
def test_pods_are_killed_where_the_time_until_their_jobs_are_given_back_can_be_taken(
    size: Any, seed: int
) -> None:
    plan = draw_plan(seed, **size)
    blurs = [
        (fault.at_seconds, fault.at_seconds + size["lease_seconds"] * (2 + BY_NAME[fault.kind].busy_leases))
        for fault in plan
        if BY_NAME[fault.kind].blurs_leases
    ]
    pods = [fault.at_seconds for fault in plan if fault.kind == "pod killed"]
    clear = [
        at
        for at in pods
        if not any(begin <= at + size["lease_seconds"] * 4 / 3 and at <= end for begin, end in blurs)
    ]
    assert len(clear) >= max(1, len(pods) // 4)


def test_more_faults_than_the_time_has_room_for_are_refused() -> None:
    with pytest.raises(PlanDoesNotFit, match="Ask for fewer faults or a longer run"):
        draw_plan(1, seconds=10.0, faults=40, lease_seconds=3.0, most_outages=10)


def test_few_faults_are_of_different_kinds() -> None:
    plan = draw_plan(3, seconds=60.0, faults=8, lease_seconds=3.0, most_outages=10)
    assert max(Counter(fault.kind for fault in plan).values()) == 1


def test_the_victim_of_a_rank_is_one_of_those_who_are_there() -> None:
    for fault in draw_plan(5, **FULL):
        assert 0 <= fault.pick(1) < 1
        assert 0 <= fault.pick(6) < 6
        assert 1.0 <= fault.between(1.0, 2.0) < 2.0


@pytest.mark.parametrize("seed", range(20))
def test_no_minute_takes_more_from_the_fleet_than_it_can_make_up_for(seed: int) -> None:
    plan = draw_plan(seed, **FULL | {"seconds": full_config(seed).seconds})
    costs = [
        BY_NAME[fault.kind].costs_seconds + BY_NAME[fault.kind].costs_leases * FULL["lease_seconds"]
        for fault in plan
    ]
    for first in plan:
        in_a_minute = [
            cost
            for fault, cost in zip(plan, costs, strict=True)
            if first.at_seconds <= fault.at_seconds < first.at_seconds + 60
        ]
        # Four processes of six on average; half of them would be what a fleet can spare for good.
        assert sum(in_a_minute) < 4 * 60
