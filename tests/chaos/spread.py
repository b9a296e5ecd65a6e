"""The middle and the end of a set of times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """Times in seconds."""

    count: int
    p50: float
    p99: float
    most: float


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """Return the middle and the end of a set of times; None of none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Spread(
        len(ordered),
        round(ordered[(len(ordered) - 1) // 2], 3),
        round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        round(ordered[-1], 3),
    )
