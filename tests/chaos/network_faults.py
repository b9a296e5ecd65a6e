"""Faults of the network between Redis and one pod, of either part, or the producers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evidence import MAIN, SENTINEL, Injected, ended_now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from chaos_environment import ChaosEnvironment
    from chaos_network import Network
    from fault_plan import PlannedFault

CUT_REPLIES = 4
PAST_LEASES = 1.5
WITHIN_LEASES = 0.1


@dataclass(frozen=True)
class _Victim:
    """Whoever is behind one network. `hit` are the processes that were there when it began."""

    part: str
    network: Network
    find_pids: Callable[[], Iterable[int]]
    hit: frozenset[int]

    def injected(self, fault: PlannedFault, begun_at: float) -> Injected:
        """What was done, ended now: to those who were there and to those who have come since."""
        pids = tuple(self.hit.union(self.find_pids()))
        return ended_now(fault, begun_at, pids, part=self.part)


def _pick(environment: ChaosEnvironment, fault: PlannedFault) -> _Victim:
    everybody: list[tuple[str, Network, Callable[[], Iterable[int]]]] = [
        (MAIN, place.network, place.children) for place in environment.main.places
    ]
    producers, place = environment.main.producers, environment.sentinel.place
    if environment.main.producer_network is not None and producers is not None:
        everybody.append((MAIN, environment.main.producer_network, lambda: producers.pids))
    if place is not None:
        everybody.append((SENTINEL, place.network, place.children))
    part, network, find_pids = everybody[fault.pick(len(everybody))]
    return _Victim(part, network, find_pids, frozenset(find_pids()))


async def slow_down(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    victim = _pick(environment, fault)
    begun_at = time.monotonic()
    victim.network.slow_down(fault.between(0.05, 0.25))
    try:
        await asyncio.sleep(fault.between(2.0, 4.0))
    finally:
        victim.network.slow_down(0.0)
    return victim.injected(fault, begun_at)


async def cut(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """Every connection at once, and none for a moment."""
    victim = _pick(environment, fault)
    begun_at = time.monotonic()
    victim.network.refuse(True)
    victim.network.cut_all()
    try:
        await asyncio.sleep(fault.between(0.0, 0.1 * environment.config.lease_seconds))
    finally:
        victim.network.refuse(False)
    return victim.injected(fault, begun_at)


async def cut_replies(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """Scripts that Redis has run and whose answers never arrive: claims, outcomes, heartbeats, new jobs."""
    victim = _pick(environment, fault)
    begun_at = time.monotonic()
    victim.network.cut_replies(CUT_REPLIES, matching=b"EVALSHA")
    await asyncio.sleep(1.0)
    return victim.injected(fault, begun_at)


def silence(
    leases: float, *, cuts: bool
) -> Callable[[ChaosEnvironment, PlannedFault], Awaitable[Injected | None]]:
    """Return the fault of no bytes for so long; within a lease it is harmless, whenever it comes: see ChaosConfig."""

    async def inject(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
        victim = _pick(environment, fault)
        begun_at = time.monotonic()
        victim.network.silence(True)
        try:
            await asyncio.sleep(leases * environment.config.lease_seconds)
        finally:
            victim.network.silence(False)
        injected = victim.injected(fault, begun_at)
        return replace(
            injected,
            # Bytes are gone for good, so that each side waits for its time-out before it connects anew.
            ended_at=injected.ended_at + environment.config.socket_timeout_seconds,
            cuts=cuts,
            cuts_from=begun_at + environment.config.least_lease_left_seconds,
        )

    return inject


FAULTS = {
    "network slow": slow_down,
    "network cut": cut,
    "replies cut": cut_replies,
    "network silent within the lease": silence(WITHIN_LEASES, cuts=False),
    "network silent past the lease": silence(PAST_LEASES, cuts=True),
}
