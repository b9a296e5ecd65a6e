"""A soak that cannot tell a leak from noise is worth nothing."""

from __future__ import annotations

import random

import pytest

from flatness import Allowance, decide_trend

ALLOWANCE = Allowance(share=0.05, absolute=2)


def sample(
    value_at: dict[int, float] | None = None, *, slope: float = 0.0, noise: float = 0.0
) -> list[tuple[float, float]]:
    draw = random.Random(1)
    return [
        (float(second), (value_at or {}).get(second, 100 + slope * second + draw.uniform(-noise, noise)))
        for second in range(300)
    ]


def test_a_steady_series_is_flat() -> None:
    trend = decide_trend(sample(), ALLOWANCE)
    assert not trend.is_growing
    assert trend.per_hour == pytest.approx(0)


def test_noise_is_no_growth() -> None:
    assert not decide_trend(sample(noise=40), ALLOWANCE).is_growing


def test_a_slow_leak_under_noise_is_seen() -> None:
    trend = decide_trend(sample(slope=0.1, noise=10), ALLOWANCE)
    assert trend.is_growing
    assert trend.per_hour == pytest.approx(360, rel=0.2)


def test_what_fills_up_once_at_the_start_is_flat() -> None:
    assert not decide_trend(sample(dict.fromkeys(range(50), 10.0)), ALLOWANCE).is_growing


def test_a_single_peak_near_the_end_is_no_growth() -> None:
    assert not decide_trend(sample({290: 100_000.0}), ALLOWANCE).is_growing


def test_a_few_more_of_something_small_are_allowed() -> None:
    few = [(float(second), 3.0 if second < 150 else 5.0) for second in range(300)]
    assert not decide_trend(few, ALLOWANCE).is_growing
    assert decide_trend(few, Allowance(share=0.05, absolute=1)).is_growing


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="say nothing about growth"):
        decide_trend([(0.0, 1.0), (1.0, 1.0)], ALLOWANCE)
