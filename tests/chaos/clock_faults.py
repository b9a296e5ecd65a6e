"""Faults of wall clocks: somebody sets the time of a pod, of the producers or of Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evidence import MAIN, SENTINEL, Injected, ended_now

if TYPE_CHECKING:
    from chaos_environment import ChaosEnvironment
    from fault_plan import PlannedFault

A_DAY_SECONDS = 86_400.0


async def jump_pod(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """By up to a day, either way: no decision about jobs may use the clock of a worker."""
    pods = [(MAIN, place) for place in environment.main.places]
    if environment.sentinel.place is not None:
        pods.append((SENTINEL, environment.sentinel.place))
    clocks = [(part, place.clock) for part, place in pods if place.clock is not None]
    if not clocks:
        return None
    part, clock = clocks[fault.pick(len(clocks))]
    begun_at = time.monotonic()
    clock.jump(fault.between(-A_DAY_SECONDS, A_DAY_SECONDS))
    return ended_now(fault, begun_at, part=part)


async def jump_producers(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """By up to a day, either way: when a job is due is for Redis to say."""
    if environment.main.producer_clock is None:
        return None
    begun_at = time.monotonic()
    environment.main.producer_clock.jump(fault.between(-A_DAY_SECONDS, A_DAY_SECONDS))
    return ended_now(fault, begun_at)


async def jump_redis_forward(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """By more than a lease: all of them seem to have ended at once."""
    return _jump_redis(environment, fault, fault.between(1.5, 10.0) * environment.config.lease_seconds)


async def jump_redis_back(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """By a little: what was due before the jump is due again that much later."""
    return _jump_redis(environment, fault, -fault.between(0.5, 3.0))


def _jump_redis(environment: ChaosEnvironment, fault: PlannedFault, seconds: float) -> Injected | None:
    if environment.main.clock is None:
        return None
    begun_at = time.monotonic()
    environment.main.clock.jump(seconds)
    # Until everybody has renewed under the new time.
    ended_at = time.monotonic() + max(0.0, -seconds)
    return Injected(fault.number, fault.kind, MAIN, begun_at, ended_at)


FAULTS = {
    "clock of a pod jumps": jump_pod,
    "clock of the producers jumps": jump_producers,
    "clock of Redis jumps forward": jump_redis_forward,
    "clock of Redis jumps back": jump_redis_back,
}
