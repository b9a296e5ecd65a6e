"""The application that pods in tests run: handlers that behave, and handlers that misbehave on purpose.

Configured by environment variables, because each worker process loads it anew: POD_LEDGER is where effects are
recorded; while the file POD_BROKEN exists, a worker cannot start, and while POD_BROKEN.hangs does, it never ends
trying to.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil

from ledger import Ledger
from ledger_handlers import build_handlers
from rrq import JobRegistry, RRQSettings

if TYPE_CHECKING:
    from collections.abc import Callable

ledger = Ledger(os.environ["POD_LEDGER"])
hoard: list[bytearray] = []


async def linger_first(ctx: dict[str, Any], seconds: float) -> None:
    """Take long when run for the first time, and no time at all after that."""
    is_first = ctx["job_id"] not in ledger.counts("started")
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    await asyncio.sleep(seconds if is_first else 0)


async def hold_interpreter(ctx: dict[str, Any], seconds: float) -> int:
    """Stop every thread of the process, as a long call into C does: PyDLL keeps the lock."""
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:  # a signal cuts usleep short
        ctypes.PyDLL(None).usleep(int(left * 1_000_000))
    ledger.record(ctx["job_id"], "effect", ctx["job_try"])
    return os.getpid()


async def ignore_cancellation(ctx: dict[str, Any], seconds: float) -> None:
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            ledger.record(ctx["job_id"], "cancelled", ctx["job_try"])


async def kill_process(ctx: dict[str, Any], company: int = 1) -> None:
    """End the process as soon as so many jobs have been started, this one included."""
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    while len(ledger.counts("started")) < company:  # noqa: ASYNC110  a file rings no bell
        await asyncio.sleep(0.05)
    # Neighbours that were claimed with it get to start, so that they are in hand when it happens.
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


async def kill_pod(ctx: dict[str, Any], company: int = 1) -> None:
    """End the supervisor and all its processes, as the kernel does when a container has no memory left."""
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    while len(ledger.counts("started")) < company:  # noqa: ASYNC110  a file rings no bell
        await asyncio.sleep(0.05)
    supervisor = psutil.Process(os.getppid())
    # It must not report the others before it dies itself.
    supervisor.suspend()
    for process in supervisor.children():
        if process.pid != os.getpid():
            process.kill()
    supervisor.kill()
    os.kill(os.getpid(), signal.SIGKILL)


async def exit_process(ctx: dict[str, Any], code: int) -> None:
    ledger.record(ctx["job_id"], "started", ctx["job_try"])
    os._exit(code)


async def hoard_memory(ctx: dict[str, Any], megabytes: int) -> None:
    hoard.append(bytearray(os.urandom(1024) * 1024 * megabytes))


async def leave_orphan(ctx: dict[str, Any]) -> int:
    """Start a process that starts another and ends before it; returns the process id of the orphan."""
    middle = "import subprocess, sys; print(subprocess.Popen(['sleep', '0.5']).pid, flush=True)"
    done = subprocess.run([sys.executable, "-c", middle], capture_output=True, check=True)
    return int(done.stdout)


async def start_program(ctx: dict[str, Any], seconds: float) -> None:
    """Run a program for as long as told; its process id is recorded as the attempt."""
    program = await asyncio.create_subprocess_exec("sleep", str(seconds))
    ledger.record(ctx["job_id"], "program", program.pid)
    await program.wait()


async def refuse_to_start() -> None:
    broken = os.environ.get("POD_BROKEN", "")
    if os.path.exists(broken):
        raise RuntimeError("the database of the application is away")
    if os.path.exists(f"{broken}.hangs"):
        await asyncio.sleep(3600)


handlers: list[Callable[..., Any]] = [
    *build_handlers(ledger),
    linger_first,
    hold_interpreter,
    ignore_cancellation,
    kill_process,
    kill_pod,
    exit_process,
    hoard_memory,
    leave_orphan,
    start_program,
]
registry = JobRegistry()
for handler in handlers:
    registry.register(handler.__name__, handler)

settings = RRQSettings(job_registry=registry, on_startup=refuse_to_start)
