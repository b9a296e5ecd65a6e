"""Faults of worker processes: killed, or stopped and let go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

from chaos_ledger import EFFECT
from chaos_zero import BURST_QUEUE, POOL_QUEUE, START_SECONDS
from evidence import ZERO, HalfDone, Injected, ended_now

if TYPE_CHECKING:
    from chaos_environment import ChaosEnvironment
    from chaos_pods import PodPlace
    from chaos_zero import ZeroPart
    from fault_plan import PlannedFault

# Long enough to lose the lease and to be swept, whenever it was renewed last.
PAST_LEASES = 1.5
# A third of a lease is the time between two renewals: a shorter stop costs one of them at most.
WITHIN_LEASES = 0.25
# The default of worker_shutdown_grace_period_seconds, less a little for clocks that are read one after the other.
GRACE_SECONDS = 9.8


def pick_child(environment: ChaosEnvironment, fault: PlannedFault) -> tuple[PodPlace, int] | None:
    """The worker process that the plan means, among those that are there now."""
    living = [
        (place, pid)
        for place in environment.main.places
        for pid in sorted(place.children())
        if pid not in place.stopped
    ]
    return living[fault.pick(len(living))] if living else None


async def kill_child(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    victim = pick_child(environment, fault)
    if victim is None:
        return None
    place, pid = victim
    family = (pid, *place.children())
    worker_ids = await environment.main.worker_ids({pid})
    begun_at = time.monotonic()
    if not _signal(pid, signal.SIGKILL):
        return None
    environment.watch(environment.main.watch_due_again(fault.kind, worker_ids, begun_at, family))
    return ended_now(fault, begun_at, (pid,), cuts=True, ends=True)


async def kill_supervisor(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """Its children learn of it, let their jobs end and end: only what outlasts their grace period is cut."""
    place = environment.main.places[fault.pick(len(environment.main.places))]
    children = place.children()
    worker_ids = await environment.main.worker_ids(set(children))
    begun_at = time.monotonic()
    supervisor = place.pod.pid
    if place.pod.process.poll() is not None or not _signal(supervisor, signal.SIGKILL):
        return None
    place.killed.add(supervisor)
    pids = (supervisor, *children)
    environment.watch(environment.main.watch_due_again(fault.kind, worker_ids, begun_at, pids))
    return ended_now(
        fault,
        begun_at,
        pids,
        cuts=True,
        cuts_from=begun_at + GRACE_SECONDS,
        ends=True,
    )


async def kill_pod(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """All of its processes at once, as when a container or its node dies: nobody is left to tell."""
    place = environment.main.places[fault.pick(len(environment.main.places))]
    if place.pod.process.poll() is not None:
        return None
    children = place.children()
    worker_ids = await environment.main.worker_ids(set(children))
    begun_at = time.monotonic()
    # The supervisor is stopped first, so that it cannot write a certificate for the first of its children.
    _signal(place.pod.pid, signal.SIGSTOP)
    family = {*children, *place.children()}
    pids = (*family, place.pod.pid)
    place.killed.add(place.pod.pid)
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    environment.watch(environment.main.watch_due_again(fault.kind, worker_ids, begun_at, pids))
    return ended_now(fault, begun_at, pids, cuts=True, ends=True)


async def stop_past_lease(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    return await _stop(environment, fault, PAST_LEASES * environment.config.lease_seconds, cuts=True)


async def stop_within_lease(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    return await _stop(environment, fault, WITHIN_LEASES * environment.config.lease_seconds, cuts=False)


async def _stop(
    environment: ChaosEnvironment, fault: PlannedFault, seconds: float, *, cuts: bool
) -> Injected | None:
    victim = pick_child(environment, fault)
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
    cuts_from = begun_at + environment.config.least_lease_left_seconds
    return ended_now(fault, begun_at, (pid,), cuts=cuts, cuts_from=cuts_from)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# The faults after which not one worker is left


async def kill_fleet(environment: ChaosEnvironment, fault: PlannedFault) -> Injected:
    """Kill local mode and its replicas with every job in hand, so that the next local mode begins at zero."""
    part = environment.zero
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


async def kill_burst(environment: ChaosEnvironment, fault: PlannedFault) -> Injected:
    """Kill a burst run with every job in hand; the next one after its lease has to settle them before it ends."""
    part = environment.zero
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
    return ended_now(fault, begun_at, pids, part=ZERO, cuts=True, ends=True)


FAULTS = {
    "child killed": kill_child,
    "supervisor killed": kill_supervisor,
    "pod killed": kill_pod,
    "child stopped past its lease": stop_past_lease,
    "child stopped within its lease": stop_within_lease,
    "fleet killed at zero": kill_fleet,
    "burst run killed": kill_burst,
}
