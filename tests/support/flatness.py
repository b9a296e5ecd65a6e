"""Whether a series of samples stays flat or grows. Pure: no clock, no processes.

A warm-up comes first and is left out: interpreters, pools and caches fill once. After it the median of the
last third is compared with the median of the first. Medians, because a batch in flight or a garbage
collection makes single samples jump. A straight line through all samples says how fast it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import linear_regression, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP_SHARE = 0.2
FEWEST_SAMPLES = 6


@dataclass(frozen=True)
class Allowance:
    """How much more the end may show than the beginning: the larger of the two."""

    share: float
    absolute: float


@dataclass(frozen=True)
class Trend:
    """What became of one series after the warm-up."""

    samples: int
    lowest: float
    highest: float
    first_third: float
    last_third: float
    per_hour: float
    is_growing: bool


def decide_trend(samples: Sequence[tuple[float, float]], allowance: Allowance) -> Trend:
    """Judge samples of (seconds since the start, value), in order of time."""
    settled = samples[int(len(samples) * WARM_UP_SHARE) :]
    if len(settled) < FEWEST_SAMPLES:
        raise ValueError(
            f"{len(samples)} samples say nothing about growth; take at least {FEWEST_SAMPLES} after a warm-up "
            f"of {WARM_UP_SHARE:.0%}, by running longer or sampling more often."
        )
    times, values = zip(*settled, strict=True)
    third = len(settled) // 3
    first, last = median(values[:third]), median(values[-third:])
    slope, _ = linear_regression(times, values)
    allowed = max(allowance.share * first, allowance.absolute)
    return Trend(
        len(settled), min(values), max(values), first, last, slope * 3600, is_growing=last - first > allowed
    )
