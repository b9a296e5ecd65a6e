"""Faults of the network between one pod and Redis."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from injected import MAIN, Injected

if TYPE_CHECKING:
    from chaos_pods import PodPlace
    from chaos_world import World
    from fault_plan import PlannedFault
    from proxy import RedisProxy

CUT_REPLIES = 4
PAST_LEASES = 1.5
WITHIN_LEASES = 0.1
LEAST_LEASES_LEFT = 2 / 3


def _pick(world: World, fault: PlannedFault) -> tuple[PodPlace, RedisProxy]:
    place = world.main.places[fault.pick(len(world.main.places))]
    assert place.proxy is not None
    return place, place.proxy


def _hit(place: PodPlace, before: list[int]) -> tuple[int, ...]:
    """The processes that were there when it began and those that have come since."""
    return tuple({*before, *place.children()})


async def slow_down(world: World, fault: PlannedFault) -> Injected | None:
    place, proxy = _pick(world, fault)
    before = place.children()
    begun_at = time.monotonic()
    proxy.delay_seconds = fault.between(0.05, 0.25)
    try:
        await asyncio.sleep(fault.between(2.0, 4.0))
    finally:
        proxy.delay_seconds = 0.0
    return Injected(fault.number, fault.kind, MAIN, begun_at, time.monotonic(), _hit(place, before))


async def cut(world: World, fault: PlannedFault) -> Injected | None:
    """Every connection at once, and none for a moment."""
    place, proxy = _pick(world, fault)
    before = place.children()
    begun_at = time.monotonic()
    proxy.refuse = True
    proxy.cut_all()
    try:
        await asyncio.sleep(fault.between(0.0, 0.1 * world.config.lease_seconds))
    finally:
        proxy.refuse = False
    return Injected(fault.number, fault.kind, MAIN, begun_at, time.monotonic(), _hit(place, before))


async def cut_replies(world: World, fault: PlannedFault) -> Injected | None:
    """Scripts that Redis has run and whose answers never arrive: claims, outcomes, heartbeats."""
    place, proxy = _pick(world, fault)
    before = place.children()
    begun_at = time.monotonic()
    proxy.cut_next_reply(CUT_REPLIES, matching=b"EVALSHA")
    await asyncio.sleep(1.0)
    return Injected(fault.number, fault.kind, MAIN, begun_at, time.monotonic(), _hit(place, before))


async def silence_within_lease(world: World, fault: PlannedFault) -> Injected | None:
    """Harmless, whenever it comes: see ChaosConfig.socket_timeout_seconds."""
    return await _silence(world, fault, WITHIN_LEASES * world.config.lease_seconds, cuts=False)


async def silence_past_lease(world: World, fault: PlannedFault) -> Injected | None:
    return await _silence(world, fault, PAST_LEASES * world.config.lease_seconds, cuts=True)


async def _silence(world: World, fault: PlannedFault, seconds: float, *, cuts: bool) -> Injected | None:
    place, proxy = _pick(world, fault)
    before = place.children()
    begun_at = time.monotonic()
    proxy.blackhole = True
    try:
        await asyncio.sleep(seconds)
    finally:
        proxy.blackhole = False
    # Bytes are gone for good, so that each side waits for its time-out before it connects anew.
    ended_at = time.monotonic() + world.config.socket_timeout_seconds
    # The last renewal was a third of the lease ago at most: before two thirds of it no lease can have ended.
    cuts_from = begun_at + LEAST_LEASES_LEFT * world.config.lease_seconds
    pids = _hit(place, before)
    return Injected(fault.number, fault.kind, MAIN, begun_at, ended_at, pids, cuts=cuts, cuts_from=cuts_from)


FAULTS = {
    "network slow": slow_down,
    "network cut": cut,
    "replies cut": cut_replies,
    "network silent within the lease": silence_within_lease,
    "network silent past the lease": silence_past_lease,
}
