"""Computes how long to wait: before a retry, between polls, while idle. Pure.

Randomness is an argument; the caller sleeps.
"""

import math
from collections.abc import Callable

__all__ = ["LONGEST_DELAY_SECONDS", "idle_delay_seconds", "jittered_delay_seconds", "retry_delay_ms"]

# An infinite maximum is a valid setting, but a job with an infinite score would never be found again. A century is long
# enough, and still an exact number of milliseconds.
LONGEST_DELAY_SECONDS = 100 * 365 * 86_400.0

# Full jitter could give a delay of zero, which would be a busy loop.
_LARGEST_JITTER_FACTOR = 0.99
_SHORTEST_DELAY_SECONDS = 0.001


def retry_delay_ms(attempt: int, base_seconds: float, max_seconds: float) -> int:
    """Return the wait before retry number ``attempt`` (from 1; lower counts as 1).

    It doubles with each attempt up to the maximum. It has no jitter: users rely on the exact value, and the workers that
    claim jobs spread those that failed together.
    """
    delay = _double(base_seconds, attempt - 1, min(max_seconds, LONGEST_DELAY_SECONDS))
    return max(0, int(1000 * delay))


def idle_delay_seconds(empty_polls: int, base_seconds: float, maximum_seconds: float) -> float:
    """Return the wait after ``empty_polls`` polls in a row that found nothing.

    A base above the maximum wins, so that slow polling stays slow.
    """
    return _double(base_seconds, empty_polls - 1, max(base_seconds, maximum_seconds))


def jittered_delay_seconds(
    base_seconds: float, factor: float, uniform: Callable[[float, float], float]
) -> float:
    """Return a random delay between ``base_seconds`` ± ``factor``, at least a millisecond.

    ``uniform(low, high)`` draws it. Factor 0 returns the base unchanged.
    """
    factor = max(0.0, min(factor, _LARGEST_JITTER_FACTOR))
    if factor == 0.0:
        return base_seconds
    low = max(_SHORTEST_DELAY_SECONDS, base_seconds * (1 - factor))
    high = max(low, base_seconds * (1 + factor))
    return uniform(low, high)


def _double(base: float, times: int, limit: float) -> float:
    try:
        return min(limit, math.ldexp(base, max(0, times)))
    except OverflowError:
        # Beyond the range of a float, and so beyond any limit.
        return limit
