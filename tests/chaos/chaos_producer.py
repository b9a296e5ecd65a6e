"""A process of several producers that enqueue on the minute, whatever became of the job before.

`python chaos_producer.py SETTINGS`, a JSON object: dsn, ledger, rate (jobs per second, of all producers), producers,
queues (each drawn from equally), seed, durability. What was acknowledged is entered into the ledger; what Redis
refused or left without an answer is counted, and told at the end as JSON, with whatever else went wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from typing import Any

from chaos_ledger import ACKNOWLEDGED, LedgerWriter
from rrq.broker.connection import REDIS_ERRORS
from rrq.client import RRQClient
from rrq.exc import RRQError
from rrq.settings import RRQSettings

SHORTEST_SECONDS, LONGEST_SECONDS = 0.02, 0.3
#: Function, share, queue: None is drawn.
MIX = (("note", 0.8), ("in_thread", 0.1), ("flaky", 0.05), ("deferred", 0.05))
LONGEST_DEFERRAL_SECONDS = 2.0
MOST_UNANSWERED = 500
MOST_CRASHES_TOLD = 10


class Producer:
    """Sends jobs at fixed moments, without waiting for the answer to the one before."""

    def __init__(self, options: dict[str, Any], number: int, ledger: LedgerWriter) -> None:
        extra = {"durability": options["durability"]} if options.get("durability") else {}
        settings = RRQSettings(
            redis_dsn=options["dsn"],
            redis_socket_timeout_seconds=options["socket_timeout_seconds"],
            redis_connect_timeout_seconds=options["socket_timeout_seconds"],
            default_job_timeout_seconds=options["job_timeout_seconds"],
            **extra,
        )
        self._client = RRQClient(settings)
        self._queues: list[str] = options["queues"]
        self._shared_queue: str = options.get("shared_queue", "")
        self._interval_seconds = options["producers"] / options["rate"]
        self._draw = random.Random(f"{options['seed']}.{number}")
        self._ledger = ledger
        self._sending: set[asyncio.Task[None]] = set()
        self.refused = 0
        self.crashes: list[str] = []

    async def run(self, is_over: asyncio.Event) -> None:
        due_at = time.monotonic() + self._draw.uniform(0, self._interval_seconds)
        while not is_over.is_set():
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            due_at += self._interval_seconds
            if len(self._sending) < MOST_UNANSWERED:
                task = asyncio.create_task(self._send())
                self._sending.add(task)
                task.add_done_callback(self._collect)
            else:
                self.refused += 1
        if self._sending:
            await asyncio.wait(self._sending)
        await self._client.close()

    async def _send(self) -> None:
        draw = self._draw
        (function,) = draw.choices([name for name, _ in MIX], [share for _, share in MIX])
        seconds = round(draw.uniform(SHORTEST_SECONDS, LONGEST_SECONDS), 3)
        queue = draw.choice(self._queues)
        options: dict[str, Any] = {}
        if function == "deferred":
            function, options["_defer_by"] = "note", draw.uniform(0, LONGEST_DEFERRAL_SECONDS)
        if function != "note" and queue == self._shared_queue:
            # The 0.7.1 worker that serves it too knows only one handler.
            function = "note"
        try:
            job = await self._client.enqueue(function, seconds, _queue_name=queue, **options)
        except (RRQError, *REDIS_ERRORS):
            self.refused += 1
        else:
            assert job is not None
            self._ledger.record(ACKNOWLEDGED, job.id)

    def _collect(self, task: asyncio.Task[None]) -> None:
        """Keep what nobody expected: in a task that is forgotten it would be forgotten too."""
        self._sending.discard(task)
        if (error := task.exception()) is not None:
            self.crashes.append(repr(error))


async def main() -> None:
    options = json.loads(sys.argv[1])
    ledger = LedgerWriter(options["ledger"])
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    producers = [Producer(options, number, ledger) for number in range(options["producers"])]
    await asyncio.gather(*(producer.run(is_over) for producer in producers))
    refused = sum(producer.refused for producer in producers)
    crashes = [crash for producer in producers for crash in producer.crashes]
    print(json.dumps({"refused": refused, "crashes": crashes[:MOST_CRASHES_TOLD]}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
