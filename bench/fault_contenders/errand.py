"""What every contender of the fault comparison does: the same errand, and a line in the ledger for each step.

The modules beside this one wrap one queue library each and run in that library's own environment, so this
module uses nothing but the standard library. Imported by a worker they are the application; run as a script
they are its producer.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DSN = os.environ["FAULTS_DSN"]
LEDGER = os.environ["FAULTS_LEDGER"]
CONCURRENCY = 10
JOB_SECONDS = 0.2


def record(job: str, event: str, attempt: str = "") -> None:
    # The monotonic clock is one for all processes of a machine, and nobody sets it.
    entry = {"job": job, "event": event, "attempt": attempt, "pid": os.getpid(), "at": time.monotonic()}
    # One write() to an O_APPEND file: lines of several processes never mix, and what was written
    # outlives kill -9 of its writer.
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(file)


def seconds_until_effect(job: str) -> float:
    # Early in every second job and late in the others: jobs that start together would otherwise all be
    # cut before their effect, or all after it.
    return 0.02 if int(job.rpartition("-")[2]) % 2 else 0.18


async def run_errand(job: str) -> None:
    attempt = secrets.token_hex(4)
    record(job, "started", attempt)
    await asyncio.sleep(seconds_until_effect(job))
    record(job, "effect", attempt)
    await asyncio.sleep(JOB_SECONDS - seconds_until_effect(job))
    record(job, "finished", attempt)


def run_errand_in_thread(job: str) -> None:
    attempt = secrets.token_hex(4)
    record(job, "started", attempt)
    time.sleep(seconds_until_effect(job))
    record(job, "effect", attempt)
    time.sleep(JOB_SECONDS - seconds_until_effect(job))
    record(job, "finished", attempt)


async def produce(send: Callable[[str], Awaitable[object]]) -> None:
    """Enqueue what the lines of stdin ask for, ``<prefix> <count>`` each; record what Redis acknowledged."""
    loop = asyncio.get_running_loop()
    while order := await loop.run_in_executor(None, sys.stdin.readline):
        prefix, count = order.split()
        for number in range(int(count)):
            job = f"{prefix}-{number}"
            await send(job)
            record(job, "acknowledged")
