"""Runs inside the environment of RRQ 0.7.1: does what it is told on standard input, one line each.

Started by `legacy.py`, never imported by it. Only names that 0.7.1 has may be used here.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rrq.client import RRQClient
from rrq.exc import RetryJob
from rrq.job import JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker


async def echo(context: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    await _count_run(context)
    return {"by": "0.7.1", "args": list(args), "kwargs": kwargs, "try": context["job_try"]}


async def fail(context: dict[str, Any], *args: Any) -> None:
    await _count_run(context)
    raise ValueError("0.7.1 failed")


async def flaky(context: dict[str, Any]) -> str:
    await _count_run(context)
    if context["job_try"] < 3:
        raise RetryJob("once more", defer_seconds=0.05)
    return "0.7.1"


async def endless(context: dict[str, Any]) -> None:
    await _count_run(context)
    await asyncio.Event().wait()


async def _count_run(context: dict[str, Any]) -> None:
    await context["rrq_client"].job_store.redis.hincrby("test:runs", context["job_id"], 1)


HANDLERS: dict[str, Callable[..., Any]] = {"echo": echo, "fail": fail, "flaky": flaky, "endless": endless}


class Agent:
    def __init__(self, redis_dsn: str) -> None:
        self.redis_dsn = redis_dsn
        self.registry = JobRegistry()
        for name, handler in HANDLERS.items():
            self.registry.register(name, handler)
        self.settings = self.make_settings()
        self.store = JobStore(settings=self.settings)
        self.client = RRQClient(settings=self.settings, job_store=self.store)
        self.worker: RRQWorker | None = None
        self.running: asyncio.Task[None] | None = None

    def make_settings(self, **options: Any) -> RRQSettings:
        # The idle loop of 0.7.1 never pauses by itself; its poll delay is left at its default.
        return RRQSettings(
            redis_dsn=self.redis_dsn,
            **{"base_retry_delay_seconds": 0.05, "worker_shutdown_grace_period_seconds": 0.1} | options,
        )

    async def enqueue(
        self,
        function_name: str,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        defer_by_seconds: float | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        if defer_by_seconds is not None:
            options["_defer_by"] = timedelta(seconds=defer_by_seconds)
        job = await self.client.enqueue(function_name, *(args or []), **(kwargs or {}), **options)
        assert job is not None
        return job.model_dump(mode="json")

    async def read_job(self, job_id: str) -> dict[str, Any] | None:
        job = await self.store.get_job_definition(job_id)
        return None if job is None else job.model_dump(mode="json")

    async def run_burst(self, **options: Any) -> None:
        worker = RRQWorker(self.make_settings(**options), self.registry, burst=True)
        await worker.run()
        await worker.close()

    async def start_worker(self, **options: Any) -> str:
        self.worker = RRQWorker(self.make_settings(**options), self.registry)
        self.running = asyncio.create_task(self.worker.run())
        return self.worker.worker_id

    async def stop_worker(self) -> None:
        assert self.worker is not None
        assert self.running is not None
        self.worker._request_shutdown()
        await self.running
        await self.worker.close()

    async def retry(self, job_id: str, queue_name: str, score: float) -> int:
        """The first of the two steps in which 0.7.1 retries a job; the second releases its lock."""
        return await self.store.atomic_retry_job(
            job_id, queue_name, score, "0.7.1 failed", JobStatus.RETRYING
        )

    async def call_store(self, method: str, args: list[Any]) -> Any:
        return await getattr(self.store, method)(*args)


async def main() -> None:
    agent = Agent(sys.argv[1])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        try:
            value = await getattr(agent, request["command"])(**request["arguments"])
            answer = {"value": value}
        except Exception as error:  # noqa: BLE001  whatever 0.7.1 raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
