"""Jitter keeps workers from polling in step: its bounds, its shape and its independence."""

import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrq.runtime.backoff import jittered_delay_seconds

DRAWS = 20_000


def draw_many(seed: int, base: float = 1.0, factor: float = 0.5, count: int = DRAWS) -> list[float]:
    uniform = random.Random(seed).uniform
    return [jittered_delay_seconds(base, factor, uniform) for _ in range(count)]


@given(
    base=st.floats(min_value=0.01, max_value=1e4),
    factor=st.floats(min_value=0.0, max_value=0.9),
    seed=st.integers(),
)
def test_a_delay_stays_within_its_bounds(base: float, factor: float, seed: int) -> None:
    delay = jittered_delay_seconds(base, factor, random.Random(seed).uniform)

    assert base * (1 - factor) - 1e-9 * base <= delay <= base * (1 + factor) + 1e-9 * base


@pytest.mark.parametrize("base", [0.0005, 0.1, 1.0, 60.0])
def test_no_jitter_returns_the_base_exactly(base: float) -> None:
    assert jittered_delay_seconds(base, 0.0, random.uniform) == base


@pytest.mark.parametrize(("factor", "low", "high"), [(-1.0, 2.0, 2.0), (1.0, 0.02, 3.98), (50.0, 0.02, 3.98)])
def test_a_senseless_factor_is_clamped(factor: float, low: float, high: float) -> None:
    assert jittered_delay_seconds(2.0, factor, lambda a, _: a) == pytest.approx(low)
    assert jittered_delay_seconds(2.0, factor, lambda _, b: b) == pytest.approx(high)


@pytest.mark.parametrize("base", [0.0, 0.0005, 0.0015, -1.0])
def test_a_delay_is_never_so_short_that_polling_becomes_a_busy_loop(base: float) -> None:
    for pick_low in (True, False):
        delay = jittered_delay_seconds(base, 0.5, lambda a, b, low=pick_low: a if low else b)  # type: ignore[misc]
        assert delay >= 0.001


def poll_times(seed: int, polls: int) -> list[float]:
    times, now = [], 0.0
    for delay in draw_many(seed, base=0.1, count=polls):
        now += delay
        times.append(now)
    return times


def test_a_hundred_workers_started_together_do_not_poll_together() -> None:
    fleet = [poll_times(seed, polls=60) for seed in range(100)]
    # One second in, with a poll every 100 ms per worker: 10 polls in each hundredth on average.
    per_hundredth = Counter(int(time * 100) for times in fleet for time in times if 2.0 <= time < 5.0)
    loads = [per_hundredth[hundredth] for hundredth in range(200, 500)]

    assert statistics.fmean(loads) == pytest.approx(10, rel=0.1)
    # Without jitter the peak would be all 100 of them at once.
    assert max(loads) < 30
