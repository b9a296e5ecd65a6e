"""Retry delays and the growth of idle polling."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrq.runtime.backoff import idle_delay_seconds, retry_delay_ms

seconds = st.floats(min_value=0.001, max_value=1e6)


@pytest.mark.parametrize(
    ("attempt", "base", "maximum", "delay_ms"),
    [
        (1, 5.0, 3600.0, 5000),
        (2, 5.0, 3600.0, 10_000),
        (10, 5.0, 3600.0, 2_560_000),
        (11, 5.0, 3600.0, 3_600_000),
        (-(10**9), 5.0, 3600.0, 5000),
        (1, 5.0, 2.0, 2000),
        (3, -1.0, 10.0, 0),
    ],
)
def test_retry_delay_doubles_up_to_the_maximum(
    attempt: int, base: float, maximum: float, delay_ms: int
) -> None:
    assert retry_delay_ms(attempt, base, maximum) == delay_ms


def test_a_huge_attempt_waits_the_maximum_instead_of_overflowing() -> None:
    assert retry_delay_ms(10**12, 5.0, 3600.0) == 3_600_000
    assert retry_delay_ms(10**12, 1e-300, 3600.0) in range(3_600_001)
    assert 0 < retry_delay_ms(5000, 5.0, math.inf) < 2**53


@given(attempt=st.integers(1, 60), base=seconds, maximum=seconds)
def test_retry_delay_follows_the_formula_of_rrq_0_7(attempt: int, base: float, maximum: float) -> None:
    assert retry_delay_ms(attempt, base, maximum) == int(1000 * min(maximum, base * 2 ** (attempt - 1)))


@given(attempt=st.integers(-5, 5000), base=seconds, maximum=seconds)
def test_a_later_attempt_never_waits_less(attempt: int, base: float, maximum: float) -> None:
    assert retry_delay_ms(attempt, base, maximum) <= retry_delay_ms(attempt + 1, base, maximum)


def test_idle_polling_starts_at_the_base_and_slows_down_to_the_maximum() -> None:
    delays = [idle_delay_seconds(polls, 0.1, 1.0) for polls in (*range(7), 31_536_000)]
    assert delays == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    # Never faster than what was set slower than the maximum.
    assert [idle_delay_seconds(polls, 3.0, 1.0) for polls in (1, 2, 99)] == [3.0, 3.0, 3.0]
