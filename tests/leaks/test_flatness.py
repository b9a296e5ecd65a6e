"""A soak that cannot tell a leak from noise is worth nothing."""

from __future__ import annotations

import random

import pytest

from flatness import Allowance, decide_trend


def sample(
    value_at: dict[int, float] | None = None, *, slope: float = 0.0, noise: float = 0.0
) -> list[tuple[float, float]]:
    draw = random.Random(1)
    return [
        (float(second), (value_at or {}).get(second, 100 + slope * second + draw.uniform(-noise, noise)))
        for second in range(300)
    ]


@pytest.mark.parametrize(
    ("samples", "is_growing"),
    [
        pytest.param(sample(), False, id="steady"),
        pytest.param(sample(noise=40), False, id="noise"),
        pytest.param(sample(slope=0.1, noise=10), True, id="a slow leak under noise"),
        pytest.param(sample(dict.fromkeys(range(50), 10.0)), False, id="fills up once at the start"),
        pytest.param(sample({290: 100_000.0}), False, id="a single peak near the end"),
        pytest.param(sample(dict.fromkeys(range(150, 300), 107.0)), True, id="more than is allowed"),
        pytest.param(sample(dict.fromkeys(range(150, 300), 105.0)), False, id="as much as is allowed"),
    ],
)
def test_what_grows_and_what_does_not(samples: list[tuple[float, float]], is_growing: bool) -> None:
    assert decide_trend(samples, Allowance(share=0.05, absolute=2)).is_growing is is_growing
