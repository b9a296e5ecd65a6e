"""Faults after which not one worker is left: the fleet of a pool is gone, or a burst run."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from chaos_ledger import EFFECT
from chaos_zero import BURST_QUEUE, POOL_QUEUE, START_SECONDS
from injected import ZERO, HalfDone, Injected

if TYPE_CHECKING:
    from chaos_world import World
    from chaos_zero import ZeroPart
    from fault_plan import PlannedFault


async def kill_fleet(world: World, fault: PlannedFault) -> Injected:
    """Kill local mode and its replicas with every job in hand, so that the next local mode begins at zero."""
    part = world.zero
    async with part.only_fault:
        jobs = await part.enqueue(POOL_QUEUE)
        local = part.start_pool()
        try:
            await part.are_in_hand(jobs)
            begun_at = time.monotonic()
            pids = await asyncio.to_thread(part.kill_family, local.process)
            injected = _killed(fault, begun_at, pids)
            local = part.start_pool()
            try:
                await part.have_ended(jobs)
            except AssertionError as error:
                raise HalfDone(injected) from error
        finally:
            part.note_family(local.process)
            await asyncio.to_thread(local.stop)
    return injected


async def kill_burst(world: World, fault: PlannedFault) -> Injected:
    """Kill a burst run with every job in hand; the next one after its lease has to settle them before it ends."""
    part = world.zero
    async with part.only_fault:
        jobs = await part.enqueue(BURST_QUEUE)
        run = part.start_burst()
        part.note_family(run)
        await part.are_in_hand(jobs)
        begun_at = time.monotonic()
        injected = _killed(fault, begun_at, await asyncio.to_thread(part.kill_family, run))
        await part.leases_have_ended()
        try:
            await _settle_by_burst(part, jobs)
        except Exception as error:
            raise HalfDone(injected) from error
    return injected


async def _settle_by_burst(part: ZeroPart, jobs: list[str]) -> None:
    run = part.start_burst()
    code = await asyncio.to_thread(run.wait, part.config.watch_seconds + START_SECONDS)
    left = part.missing(EFFECT, jobs)
    if code != 0 or left:
        part.complaints.append(f"a burst run ended with {code} and left {len(left)} jobs of an earlier run")


def _killed(fault: PlannedFault, begun_at: float, pids: tuple[int, ...]) -> Injected:
    return Injected(fault.number, fault.kind, ZERO, begun_at, time.monotonic(), pids, cuts=True, ends=True)


FAULTS = {"fleet killed at zero": kill_fleet, "burst run killed": kill_burst}
