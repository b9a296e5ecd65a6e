"""Faults inside handlers: jobs that do their worst to the process that runs them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from chaos_ledger import ACKNOWLEDGED
from chaos_main import OWN
from evidence import Injected, ended_now
from rrq.broker.connection import REDIS_ERRORS
from rrq.exc import RRQError
from rrq.job import new_job_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos_environment import ChaosEnvironment
    from fault_plan import PlannedFault

# Longer than the lease: whoever takes a busy loop for a dead process shows it here.
BLOCK_LEASES = 1.3
HANG_SECONDS = 90.0
HANG_TIMEOUT_SECONDS = 3
CANCEL_TIMEOUT_SECONDS = 2
# Of a fifth of a second: past its timeout, and past the time that a cancelled handler has to clean up.
IGNORE_TURNS = 80
SEND_PATIENCE_SECONDS = 30.0
# A process with a deadly job in hand ends within this; one that hangs is ended by others, which takes its time.
DEADLY_SECONDS = 120.0


async def block_loop(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
    """No poison: it comes back before any deadline, and nobody's job may have been given away."""
    begun_at = time.monotonic()
    seconds = BLOCK_LEASES * environment.config.lease_seconds
    job_id = await _send(environment, "block_loop", seconds)
    if job_id is None:
        return None
    environment.acknowledged.record(ACKNOWLEDGED, job_id)
    await asyncio.sleep(seconds)
    return ended_now(fault, begun_at, jobs=(job_id,), hit_seconds=seconds)


def _poison(
    function: str, *args: Any, ends_process: bool = True, timeout_seconds: int | None = None
) -> Callable[[ChaosEnvironment, PlannedFault], Awaitable[Injected | None]]:
    """Return the fault that sends a job which does this to whatever process runs it."""
    options = {} if timeout_seconds is None else {"_job_timeout_seconds": timeout_seconds}

    async def inject(environment: ChaosEnvironment, fault: PlannedFault) -> Injected | None:
        begun_at = time.monotonic()
        job_id = await _send(environment, function, *args, **options)
        if job_id is None:
            return None
        return ended_now(
            fault,
            begun_at,
            jobs=(job_id,),
            cuts=ends_process,
            ends=ends_process,
            hit_seconds=DEADLY_SECONDS if ends_process else 0.0,
            poison=(job_id,),
        )

    return inject


async def _send(environment: ChaosEnvironment, function: str, *args: Any, **options: Any) -> str | None:
    """Enqueue through trouble: a fault that could not be placed would show nothing.

    Under one id, drawn once: a send without an answer may have arrived, and a second job would be a fault in nobody's
    books. One that did arrive is not sent again, because that would make it a new job which runs once more.
    """
    job_id, is_unsure = new_job_id(), False
    deadline = time.monotonic() + SEND_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if is_unsure and await environment.main.patient.exists(environment.main.keys.job_key(job_id)):
                return job_id
            await environment.client.enqueue(function, *args, _queue_name=OWN, _job_id=job_id, **options)
        except (RRQError, *REDIS_ERRORS):
            is_unsure = True
            await asyncio.sleep(0.2)
            continue
        return job_id
    return None


FAULTS = {
    "handler exits": _poison("exit_process"),
    "handler exhausts memory": _poison("exhaust_memory"),
    # Nothing is left to say why: only the ends of the leases are seen, as often as `worker_lost_limit` allows.
    "container out of memory": _poison("exhaust_container"),
    "handler blocks the loop": block_loop,
    # Killed by its supervisor each time, once every job beside it is past its deadline too.
    "handler hangs": _poison("hang", HANG_SECONDS, timeout_seconds=HANG_TIMEOUT_SECONDS),
    # Runs past its timeout, which ends the job; the process goes on.
    "handler ignores cancellation": _poison(
        "ignore_cancellation", IGNORE_TURNS, ends_process=False, timeout_seconds=CANCEL_TIMEOUT_SECONDS
    ),
}
