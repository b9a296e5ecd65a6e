"""Faults of Redis itself: away, silent, refusing, or forgetful of what it may forget."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from evidence import SENTINEL, HalfDone, Injected, ended_now
from rrq.broker.connection import REDIS_ERRORS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos_environment import ChaosEnvironment
    from chaos_main import MainPart
    from fault_plan import PlannedFault

PAUSE_LEASES = 1.3
# So long may Redis put off a write to its append-only file because an fsync of it is not over yet.
MOST_LOST_SECONDS = 2.0
LOADING_SECONDS = 2.0
# While it loads, Redis looks at its clients once every 2 MB: with less it would be silent instead of saying LOADING.
FILLER_KEYS, FILLER_BYTES = 200, 64 * 1024
REWRITE_PATIENCE_SECONDS = 20.0
# Nobody listens on port 1: a replica of it has no master to copy, and keeps all that it has.
NOBODY = ("127.0.0.1", "1")


async def kill_connections(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    begun_at = time.monotonic()
    try:
        await environment.main.patient.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    except REDIS_ERRORS:
        return None
    return ended_now(fault, begun_at, disturbs_all=True)


async def flush_scripts(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    begun_at = time.monotonic()
    try:
        await environment.main.patient.script_flush()
    except REDIS_ERRORS:
        return None
    return ended_now(fault, begun_at)


async def shut_down(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    async def restart(main: MainPart) -> None:
        # SIGTERM is SHUTDOWN by another name: what is in memory is written before it ends.
        server = main.server
        await asyncio.to_thread(server._terminate)
        await asyncio.sleep(fault.between(0.1, 1.5))
        await asyncio.to_thread(server.start)

    return await _outage(environment, fault, restart)


async def kill(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    loses: tuple[float, float] | None = None

    async def kill_and_start(main: MainPart) -> None:
        nonlocal loses
        begins_at = await _read_lost_since(main)
        await asyncio.to_thread(main.server.kill)
        # By now it is dead; until a moment ago it may have acknowledged something.
        loses = (begins_at, time.monotonic())
        await asyncio.sleep(fault.between(0.1, 1.5))
        await asyncio.to_thread(main.server.start)

    try:
        return replace(await _outage(environment, fault, kill_and_start), loses=loses)
    except HalfDone as half:
        raise HalfDone(replace(half.injected, loses=loses)) from half.__cause__


async def _read_lost_since(main: MainPart) -> float:
    """Return from when on a kill, now, may lose what Redis acknowledged.

    What was written to the file before the answer outlives the process, fsynced or not. Only while an fsync is under way
    is the write put off, for two seconds at most. Where none is, at most what comes after this look can be lost.
    """
    looked_at = time.monotonic()
    about = await main.patient.info("persistence")
    # The answer came after the write of its own turn: with no fsync under way, nothing is left from before it.
    return looked_at - MOST_LOST_SECONDS if about["aof_pending_bio_fsync"] else looked_at


async def pause(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    async def stop_and_go_on(main: MainPart) -> None:
        pid = main.server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_LEASES * environment.config.lease_seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    return await _outage(environment, fault, stop_and_go_on)


async def make_read_only(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    async def demote_and_promote(main: MainPart) -> None:
        await main.patient.execute_command("REPLICAOF", *NOBODY)
        try:
            await asyncio.sleep(fault.between(1.0, 2.5))
        finally:
            await main.patient.execute_command("REPLICAOF", "NO", "ONE")

    return await _outage(environment, fault, demote_and_promote)


async def load_slowly(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    async def rewrite_and_restart(main: MainPart) -> None:
        main.server.slow_load = (LOADING_SECONDS, await main.patient.dbsize())
        await asyncio.to_thread(main.server._terminate)
        try:
            await asyncio.to_thread(main.server.start)
        finally:
            main.server.slow_load = None
        await main.patient.delete(*filler)

    # Random, because Redis would compress anything else.
    filler = {f"chaos:filler:{number}": os.urandom(FILLER_BYTES) for number in range(FILLER_KEYS)}
    async with environment.main.redis_fault:
        await environment.main.patient.mset(filler)
        await _rewrite(environment.main)
        return await _outage(environment, fault, rewrite_and_restart, is_held=True)


async def _rewrite(main: MainPart) -> None:
    """Have the file begin with a dump: that is what loading can be slowed down for."""
    await main.patient.bgrewriteaof()
    deadline = time.monotonic() + REWRITE_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        about = await main.patient.info("persistence")
        if not about["aof_rewrite_in_progress"] and not about["aof_rewrite_scheduled"]:
            return
        await asyncio.sleep(0.05)


async def fill_memory(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    async def limit_and_lift(main: MainPart) -> None:
        await main.patient.config_set("maxmemory", "1")
        try:
            await asyncio.sleep(fault.between(1.0, 2.0))
        finally:
            await main.patient.config_set("maxmemory", "0")

    return await _outage(environment, fault, limit_and_lift)


async def _outage(
    environment: ChaosEnvironment,
    fault: PlannedFault,
    action: Callable[[MainPart], Awaitable[None]],
    *,
    is_held: bool = False,
) -> Injected:
    if not is_held:
        async with environment.main.redis_fault:
            return await _outage(environment, fault, action, is_held=True)
    begun_at = time.monotonic()
    failed: Exception | None = None
    try:
        await action(environment.main)
    except Exception as error:  # noqa: BLE001  told below: whatever it did until then has happened
        failed = error
    injected = ended_now(fault, begun_at, is_outage=True)
    if failed is not None:
        raise HalfDone(injected) from failed
    return injected


async def fail_over(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """To a replica that lags: Redis forgets what it had acknowledged, and everybody finds the new master."""
    async with environment.sentinel.redis_fault:
        moments = await environment.sentinel.fail_over(fault.between(0.5, 1.5))
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
            await environment.sentinel.restore_replica()
        except Exception as error:
            raise HalfDone(injected) from error
    return injected


FAULTS = {
    "connections killed": kill_connections,
    "scripts flushed": flush_scripts,
    "Redis shut down": shut_down,
    "Redis killed": kill,
    "Redis paused past the lease": pause,
    "Redis read-only": make_read_only,
    "Redis loading": load_slowly,
    "Redis out of memory": fill_memory,
    "fail-over": fail_over,
}
