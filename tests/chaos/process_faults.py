"""Faults of worker processes: killed, or stopped and let go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

from injected import MAIN, Injected

if TYPE_CHECKING:
    from chaos_pods import PodPlace
    from chaos_world import World
    from fault_plan import PlannedFault

# Long enough to lose the lease and to be swept, whenever it was renewed last.
PAST_LEASES = 1.5
# A third of a lease is the time between two renewals: a shorter stop costs one of them at most.
WITHIN_LEASES = 0.25
# The default of worker_shutdown_grace_period_seconds, less a little for clocks that are read one after the other.
GRACE_SECONDS = 9.8


def pick_child(world: World, fault: PlannedFault) -> tuple[PodPlace, int] | None:
    """The worker process that the plan means, among those that are there now."""
    living = [
        (place, pid)
        for place in world.main.places
        for pid in sorted(place.children())
        if pid not in place.stopped
    ]
    return living[fault.pick(len(living))] if living else None


async def kill_child(world: World, fault: PlannedFault) -> Injected | None:
    victim = pick_child(world, fault)
    if victim is None:
        return None
    place, pid = victim
    family = (pid, *place.children())
    worker_ids = await world.main.worker_ids({pid})
    begun_at = time.monotonic()
    if not _signal(pid, signal.SIGKILL):
        return None
    world.watch(world.main.watch_due_again(fault.kind, worker_ids, begun_at, family))
    return Injected(fault.number, fault.kind, MAIN, begun_at, time.monotonic(), (pid,), cuts=True, ends=True)


async def kill_supervisor(world: World, fault: PlannedFault) -> Injected | None:
    """Its children learn of it, let their jobs end and end: only what outlasts their grace period is cut."""
    place = world.main.places[fault.pick(len(world.main.places))]
    children = place.children()
    worker_ids = await world.main.worker_ids(set(children))
    begun_at = time.monotonic()
    supervisor = place.pod.pid
    if place.pod.process.poll() is not None or not _signal(supervisor, signal.SIGKILL):
        return None
    place.killed.add(supervisor)
    pids = (supervisor, *children)
    world.watch(world.main.watch_due_again(fault.kind, worker_ids, begun_at, pids))
    return Injected(
        fault.number,
        fault.kind,
        MAIN,
        begun_at,
        time.monotonic(),
        pids,
        cuts=True,
        cuts_from=begun_at + GRACE_SECONDS,
        ends=True,
    )


async def kill_pod(world: World, fault: PlannedFault) -> Injected | None:
    """All of its processes at once, as when a container or its node dies: nobody is left to tell."""
    place = world.main.places[fault.pick(len(world.main.places))]
    if place.pod.process.poll() is not None:
        return None
    children = place.children()
    worker_ids = await world.main.worker_ids(set(children))
    begun_at = time.monotonic()
    # The supervisor is stopped first, so that it cannot write a certificate for the first of its children.
    _signal(place.pod.pid, signal.SIGSTOP)
    family = {*children, *place.children()}
    pids = (*family, place.pod.pid)
    place.killed.add(place.pod.pid)
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    world.watch(world.main.watch_due_again(fault.kind, worker_ids, begun_at, pids))
    return Injected(fault.number, fault.kind, MAIN, begun_at, time.monotonic(), pids, cuts=True, ends=True)


async def stop_past_lease(world: World, fault: PlannedFault) -> Injected | None:
    return await _stop(world, fault, PAST_LEASES * world.config.lease_seconds, cuts=True)


async def stop_within_lease(world: World, fault: PlannedFault) -> Injected | None:
    return await _stop(world, fault, WITHIN_LEASES * world.config.lease_seconds, cuts=False)


async def _stop(world: World, fault: PlannedFault, seconds: float, *, cuts: bool) -> Injected | None:
    victim = pick_child(world, fault)
    if victim is None:
        return None
    place, pid = victim
    place.stopped.add(pid)
    begun_at = time.monotonic()
    try:
        created_at = psutil.Process(pid).create_time()
        if not _signal(pid, signal.SIGSTOP):
            return None
        await asyncio.sleep(seconds)
        # Killed meanwhile by another fault, and its number may be somebody else's by now.
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).create_time() == created_at:
                _signal(pid, signal.SIGCONT)
    except psutil.Error:
        return None
    finally:
        place.stopped.discard(pid)
    cuts_from = begun_at + world.config.least_lease_left_seconds
    return Injected(
        fault.number, fault.kind, MAIN, begun_at, time.monotonic(), (pid,), cuts=cuts, cuts_from=cuts_from
    )


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


FAULTS = {
    "child killed": kill_child,
    "supervisor killed": kill_supervisor,
    "pod killed": kill_pod,
    "child stopped past its lease": stop_past_lease,
    "child stopped within its lease": stop_within_lease,
}
