"""A fail-over to a replica that lags: Redis forgets what it had acknowledged, and everybody finds the new master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from injected import SENTINEL, Injected

if TYPE_CHECKING:
    from chaos_world import World
    from fault_plan import PlannedFault


async def fail_over(world: World, fault: PlannedFault) -> Injected | None:
    async with world.sentinel.redis_fault:
        lagging_since, begun_at, killed_at, promoted_at = await world.sentinel.fail_over(
            fault.between(0.5, 1.5)
        )
    return Injected(
        fault.number,
        fault.kind,
        SENTINEL,
        begun_at,
        promoted_at,
        is_outage=True,
        loses=(lagging_since, killed_at),
    )


FAULTS = {"fail-over": fail_over}
