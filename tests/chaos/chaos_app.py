"""The application that the pods of a chaos run serve: handlers that behave, and some that do their worst."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
from typing import Any

import psutil

from chaos_ledger import EFFECT, KILLED, RAISED, STARTED, LedgerWriter
from rrq import JobRegistry, RRQSettings

ledger = LedgerWriter(os.environ["CHAOS_LEDGER"])
MEGABYTE = 1 << 20
# Enough to be noticed, and no machine is brought down by it.
MEMORY_TO_EXHAUST_BYTES = 96 * MEGABYTE
#: The parent when this process began, known by its id and the time of its start.
SUPERVISOR = psutil.Process(os.getppid())


def sleep_in_thread(seconds: float) -> None:
    """Block this thread. Not by time.sleep, whose system call libfaketime gets wrong."""
    select.select([], [], [], seconds)


async def note(ctx: dict[str, Any], seconds: float) -> None:
    """Start, take some time, have an effect."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    await asyncio.sleep(seconds)
    ledger.record(EFFECT, ctx["job_id"], ctx["job_try"])


def in_thread(ctx: dict[str, Any], seconds: float) -> None:
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    sleep_in_thread(seconds)
    ledger.record(EFFECT, ctx["job_id"], ctx["job_try"])


async def flaky(ctx: dict[str, Any], seconds: float) -> None:
    """Fail at the first try, so that retries are in the mix."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    await asyncio.sleep(seconds)
    if ctx["job_try"] == 1:
        ledger.record(RAISED, ctx["job_id"], ctx["job_try"])
        raise ConnectionError("the mail server is away")
    ledger.record(EFFECT, ctx["job_id"], ctx["job_try"])


async def exit_process(ctx: dict[str, Any]) -> None:
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    await asyncio.sleep(0.1)
    os._exit(3)


async def take_all_memory() -> None:
    """Return once this process has all the memory that it may have."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_TO_EXHAUST_BYTES, resource.RLIM_INFINITY))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(b"x" * MEGABYTE))
            await asyncio.sleep(0)
    except MemoryError:
        return


async def exhaust_memory(ctx: dict[str, Any]) -> None:
    """Be killed at a limit of this process, as the kernel kills a process that goes beyond its own."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    await take_all_memory()
    os.kill(os.getpid(), signal.SIGKILL)


async def exhaust_container(ctx: dict[str, Any]) -> None:
    """Take the whole container down, as the kernel does at the memory limit of a cgroup with memory.oom.group."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    await take_all_memory()
    for process in stop_container():
        ledger.record(KILLED, ctx["job_id"], ctx["job_try"], process.pid)
        process.kill()
    ledger.record(KILLED, ctx["job_id"], ctx["job_try"])
    os.kill(os.getpid(), signal.SIGKILL)


def stop_container() -> list[psutil.Process]:
    """Stop the supervisor that started this process; return it and its other children.

    A stopped supervisor cannot report the death of its children before it dies itself. An orphan has nobody to stop:
    its parent is by now a process that has nothing to do with this run.
    """
    parent = psutil.Process(os.getppid())
    if parent != SUPERVISOR or "rrq" not in parent.cmdline():
        return []
    parent.suspend()
    own_group = [child for child in parent.children() if child.pid != os.getpid()]
    return [*own_group, parent]


async def block_loop(ctx: dict[str, Any], seconds: float) -> None:
    """Hold the event loop, as careless code does, and come back in time."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    sleep_in_thread(seconds)
    ledger.record(EFFECT, ctx["job_id"], ctx["job_try"])


async def hang(ctx: dict[str, Any], seconds: float) -> None:
    """Hold the event loop past every deadline; somebody has to end this process."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    sleep_in_thread(seconds)


async def ignore_cancellation(ctx: dict[str, Any], turns: int) -> None:
    """Go on regardless. By turns, not by time: a blocked loop would bring it to its end before anybody noticed."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    for _ in range(turns):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


registry = JobRegistry()
for handler in (
    note,
    in_thread,
    flaky,
    exit_process,
    exhaust_memory,
    exhaust_container,
    block_loop,
    hang,
    ignore_cancellation,
):
    registry.register(handler.__name__, handler)

settings = RRQSettings(job_registry=registry)
