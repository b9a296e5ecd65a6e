"""How long to wait: before a retry, between polls, while idle.

Pure arithmetic: randomness comes in as an argument and sleeping is left to the caller.
"""

import math
from collections.abc import Callable

__all__ = ["LONGEST_DELAY_SECONDS", "idle_delay_seconds", "jittered_delay_seconds", "retry_delay_ms"]

# An infinite maximum is a legal setting, but an infinite score is not: such a job could never be
# found again. A century is as good as never and still an exact integer of milliseconds.
LONGEST_DELAY_SECONDS = 100 * 365 * 86_400.0

# Full jitter would allow a delay of zero, which is a busy loop.
_LARGEST_JITTER_FACTOR = 0.99
_SHORTEST_DELAY_SECONDS = 0.001


def retry_delay_ms(attempt: int, base_seconds: float, max_seconds: float) -> int:
    """Return the wait before retry number ``attempt`` (from 1; lower counts as 1).

    It doubles with each attempt up to the maximum. No jitter here: jobs that failed together are
    spread by the workers that claim them, and users rely on the exact value.
    """
    delay = _double(base_seconds, attempt - 1, min(max_seconds, LONGEST_DELAY_SECONDS))
    return max(0, int(1000 * delay))


def idle_delay_seconds(empty_polls: int, base_seconds: float, maximum_seconds: float) -> float:
    """Return the wait after ``empty_polls`` polls in a row that found nothing.

    A base above the maximum wins: whoever asked for slow polling does not get faster polling.
    """
    return _double(base_seconds, empty_polls - 1, max(base_seconds, maximum_seconds))


def jittered_delay_seconds(
    base_seconds: float, factor: float, uniform: Callable[[float, float], float]
) -> float:
    """Return a draw from ``base_seconds`` ± ``factor``, never below a millisecond.

    ``uniform(low, high)`` supplies the randomness. Factor 0 returns the base unchanged.
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
        # Past the range of a float, hence past any limit.
        return limit
