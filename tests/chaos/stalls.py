"""Notes when the machine itself stood still: a fault that nobody planned and that hits everybody.

All networks of the pods run in the event loop of the run. Whenever that does not turn for a while, because others
have the processors, nobody reaches Redis, and an outcome may be on its way for that much longer.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from injected import MAIN, SENTINEL, Injected

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "the machine stood still"
TURN_SECONDS = 0.1
# Shorter ones are what `REPORT_SECONDS` leaves room for.
SHORTEST_SECONDS = 0.4


async def watch_for_stalls(found: list[Injected]) -> None:
    """Add every stall to the list, until cancelled."""
    while True:
        begun_at = time.monotonic()
        await asyncio.sleep(TURN_SECONDS)
        ended_at = time.monotonic()
        if ended_at - begun_at - TURN_SECONDS > SHORTEST_SECONDS:
            found += [Injected(0, KIND, part, begun_at, ended_at) for part in (MAIN, SENTINEL)]


def stalled_seconds(stalls: Sequence[Injected]) -> float:
    return sum(stall.ended_at - stall.begun_at for stall in stalls if stall.part == MAIN)
