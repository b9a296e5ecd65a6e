"""Runs inside the environment of RRQ 0.7.1: a producer or a worker of that version, beside ours on the same Redis.

`python -I legacy_chaos.py OPTIONS`, a JSON object: role, dsn, ledger, queue, rate, path (of chaos_ledger.py). Only names
that 0.7.1 has may be used here. No fault is aimed at it, but it shares the troubles of Redis; what it loses in them is
told from what we lose by the line that it writes before it takes a job.
"""

import asyncio
import json
import logging
import random
import signal
import sys
import time
from typing import Any

from rrq.client import RRQClient
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])
sys.path.insert(0, OPTIONS["path"])

from chaos_ledger import ACKNOWLEDGED, EFFECT, STARTED, TAKEN, LedgerWriter

ledger = LedgerWriter(OPTIONS["ledger"])


async def note(context: dict[str, Any], seconds: float) -> None:
    ledger.record(STARTED, context["job_id"], context["job_try"])
    await asyncio.sleep(seconds)
    ledger.record(EFFECT, context["job_id"], context["job_try"])


async def produce(settings: RRQSettings, is_over: asyncio.Event) -> None:
    client = RRQClient(settings=settings)
    draw = random.Random(OPTIONS["seed"])
    due_at = time.monotonic()
    while not is_over.is_set():
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        due_at = max(due_at + 1 / OPTIONS["rate"], time.monotonic() - 1)
        try:
            job = await asyncio.wait_for(
                client.enqueue("note", round(draw.uniform(0.02, 0.3), 3), _queue_name=OPTIONS["queue"]), 2.0
            )
        except Exception:  # noqa: BLE001, S112  whatever 0.7.1 raises: this one was not acknowledged
            continue
        if job is not None:
            ledger.record(ACKNOWLEDGED, job.id)


async def work(settings: RRQSettings, is_over: asyncio.Event) -> None:
    registry = JobRegistry()
    registry.register("note", note)
    worker = RRQWorker(settings, registry, queues=[OPTIONS["queue"]])
    take = worker.job_store.atomic_lock_and_remove_job

    async def take_and_tell(job_id: str, *args: Any) -> Any:
        try:
            taken = await take(job_id, *args)
        except BaseException:
            ledger.record(TAKEN, job_id)  # perhaps: its answer never came
            raise
        if all(taken):
            ledger.record(TAKEN, job_id)
        return taken

    setattr(worker.job_store, "atomic_lock_and_remove_job", take_and_tell)  # noqa: B010  mypy knows it for a method
    running = asyncio.create_task(worker.run())
    ending = asyncio.create_task(is_over.wait())
    await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
    worker._request_shutdown()
    await running


async def main() -> None:
    logging.disable(logging.CRITICAL)
    is_over = asyncio.Event()
    settings = RRQSettings(
        redis_dsn=OPTIONS["dsn"],
        worker_concurrency=2,
        default_job_timeout_seconds=30,
        worker_shutdown_grace_period_seconds=2,
    )
    work_or_produce = work if OPTIONS["role"] == "worker" else produce
    doing = asyncio.create_task(work_or_produce(settings, is_over))
    # After the worker has set its own: it must end when we are told to, not only when its signals say so.
    await asyncio.sleep(0.2)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    await doing


if __name__ == "__main__":
    asyncio.run(main())
