"""This project's rrq as users run it: `rrq worker run`, a supervisor with worker processes below it.

Run as a script it becomes that command; imported by a worker process it is the application.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contest import AsyncContest, Order, emit, parse_order

ORDER_VARIABLE = "BENCH_ORDER"
PROCESSES_VARIABLE = "BENCH_PROCESSES"


def become_supervisor(order: Order) -> None:
    environment = os.environ | {
        ORDER_VARIABLE: json.dumps(asdict(order)),
        "RRQ_REDIS_DSN": order.dsn,
        "RRQ_WORKER_CONCURRENCY": str(order.concurrency),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    command = [sys.executable, "-m", "rrq", "worker", "run", "--settings", "rrq_pod.settings"]
    command += ["--num-workers", os.environ.get(PROCESSES_VARIABLE, "1"), "--log-level", "WARNING"]
    os.execve(sys.executable, command, environment)


def build_settings() -> Any:
    from rrq import JobRegistry, RRQSettings
    from rrq.store import JobStore

    # The supervisor would start a process anew that ended after its last job.
    order = replace(Order(**json.loads(os.environ[ORDER_VARIABLE])), linger=True)
    contest = AsyncContest(order)
    watchers = []

    async def noop(_context: dict[str, Any], number: int) -> None:
        await contest.handle(number)

    async def announce() -> None:
        store = JobStore(settings)

        async def is_recorded() -> bool:
            return int(await store.redis.hget(store.keys.counters, "done") or 0) >= order.jobs

        watchers.append(asyncio.create_task(contest.watch(is_recorded)))
        emit("ready")

    registry = JobRegistry()
    registry.register("noop", noop)
    settings = RRQSettings(job_registry=registry, on_startup=announce)
    return settings


if __name__ == "__main__":
    given = parse_order()
    if given.command == "work":
        become_supervisor(given)
    import uvloop
    from rrq_current import produce

    uvloop.run(produce(given))
elif ORDER_VARIABLE in os.environ:
    settings = build_settings()
