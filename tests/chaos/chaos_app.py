"""The application that the pods of a chaos run serve: handlers that behave, and some that do their worst."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
from typing import Any

from chaos_ledger import EFFECT, RAISED, STARTED, LedgerWriter
from rrq import JobRegistry, RRQSettings

ledger = LedgerWriter(os.environ["CHAOS_LEDGER"])
MEGABYTE = 1 << 20
# Enough to be noticed, and no machine is brought down by it.
MEMORY_TO_EXHAUST_BYTES = 96 * MEGABYTE


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


async def exhaust_memory(ctx: dict[str, Any]) -> None:
    """Take memory up to a limit of this process, then be killed as the kernel kills who goes beyond its own."""
    ledger.record(STARTED, ctx["job_id"], ctx["job_try"])
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_TO_EXHAUST_BYTES, resource.RLIM_INFINITY))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(b"x" * MEGABYTE))
            await asyncio.sleep(0)
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


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
    block_loop,
    hang,
    ignore_cancellation,
):
    registry.register(handler.__name__, handler)

settings = RRQSettings(job_registry=registry)
