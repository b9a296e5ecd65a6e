"""A fail-over to a replica that lags: Redis forgets what it had acknowledged, and everybody finds the new master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from injected import SENTINEL, HalfDone, Injected

if TYPE_CHECKING:
    from chaos_world import World
    from fault_plan import PlannedFault


async def fail_over(world: World, fault: PlannedFault) -> Injected | None:
    async with world.sentinel.redis_fault:
        moments = await world.sentinel.fail_over(fault.between(0.5, 1.5))
        injected = Injected(
            fault.number,
            fault.kind,
            SENTINEL,
            moments.begun_at,
            moments.promoted_at,
            is_outage=True,
            loses=(moments.lagging_since, moments.killed_at),
        )
        try:
            await world.sentinel.restore_replica()
        except Exception as error:
            raise HalfDone(injected) from error
    return injected


FAULTS = {"fail-over": fail_over}
