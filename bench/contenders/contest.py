"""What every contender has in common: its orders, its ledger, and JSON lines as answers.

The modules beside this one each wrap one queue library and run in that library's own virtual
environment, so this module uses nothing but the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

# Enqueue calls kept in flight where a library has no bulk call of its own. RRQ 0.7.1 fails above 20,
# the size of its connection pool.
CONCURRENT_ENQUEUES = 16
# Jobs handed to one bulk call: large enough to hide the round trip, small enough for any library.
BULK_JOBS = 500
# Several libraries sleep this long when all slots are taken (their defaults: 100 to 500 ms), which
# limits them to a few jobs a second at concurrency 1. All of them get the short pause.
POLL_DELAY_SECONDS = 0.01
# How long a worker listens on after its last job, so that a second delivery is seen and counted.
DUPLICATE_WATCH_SECONDS = 0.2
RECORDED_POLL_SECONDS = 0.001


@dataclass(frozen=True)
class Order:
    """What the harness asks of one contender process."""

    command: str
    dsn: str
    jobs: int
    concurrency: int
    mode: str
    gap_ms: tuple[float, float]
    handler_ms: float
    burn_ms: float
    linger: bool
    stamped: bool


def parse_order(argv: list[str] | None = None) -> Order:
    """Read the command line that all contenders share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("enqueue", "work", "latency"))
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--jobs", type=int, required=True, help="0: work until told to stop")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--mode", choices=("single", "concurrent", "bulk"), default="concurrent")
    parser.add_argument("--gap-ms", type=float, nargs=2, default=(20.0, 50.0))
    parser.add_argument("--handler-ms", type=float, default=0.0)
    parser.add_argument("--burn-ms", type=float, default=0.0, help="processor time each job takes")
    parser.add_argument("--linger", action="store_true", help="stay alive after the last job")
    parser.add_argument("--stamped", action="store_true", help="job numbers are sending times")
    given = parser.parse_args(argv)
    return Order(
        command=given.command,
        dsn=given.dsn,
        jobs=given.jobs,
        concurrency=given.concurrency,
        mode=given.mode,
        gap_ms=(given.gap_ms[0], given.gap_ms[1]),
        handler_ms=given.handler_ms,
        burn_ms=given.burn_ms,
        linger=given.linger,
        stamped=given.stamped,
    )


def emit(event: str, **fields: Any) -> None:
    """Write one answer to the harness."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class Ledger:
    """Remembers which job numbers ran, how often, and when the first and the last one did.

    One flag per job, allocated up front: a growing set would show up as a leak of the worker.
    """

    def __init__(self, order: Order, on_full: Callable[[], None]) -> None:
        self._order = order
        self._on_full = on_full
        self._flags = bytearray(0 if order.stamped else order.jobs)
        self._stamps: set[int] = set()
        self.distinct = 0
        self.duplicates = 0
        self.first_start_ns = 0
        self.last_start_ns = 0
        self.latencies_ns: list[int] = []

    def record(self, number: int) -> None:
        """Note that the handler of job ``number`` runs now."""
        if self.first_start_ns == 0:
            self.first_start_ns = time.monotonic_ns()
            emit("started")
        if self._is_repeated(number):
            self.duplicates += 1
            return
        self.distinct += 1
        if self.distinct == self._order.jobs:
            self.last_start_ns = time.monotonic_ns()
            self._on_full()

    def _is_repeated(self, number: int) -> bool:
        if self._order.stamped:
            self.latencies_ns.append(time.time_ns() - number)
            repeated = number in self._stamps
            self._stamps.add(number)
            return repeated
        if self._flags[number]:
            return True
        self._flags[number] = 1
        return False

    def report(self, recorded_ns: int) -> None:
        """Tell the harness how the run went; ``recorded_ns`` is when Redis knew the last result."""
        emit(
            "done",
            jobs=self._order.jobs,
            distinct=self.distinct,
            duplicates=self.duplicates,
            first_start_ns=self.first_start_ns,
            last_start_ns=self.last_start_ns,
            recorded_ns=recorded_ns,
            latencies_ns=self.latencies_ns,
        )


class AsyncContest:
    """The worker side of a contender that runs on an event loop."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._full = asyncio.Event()
        self.ledger = Ledger(order, self._full.set)

    async def handle(self, number: int) -> None:
        """The body of every job: nothing, or a short nap or some work where a section asks for it."""
        self.ledger.record(number)
        if self.order.burn_ms:
            burn(self.order.burn_ms)
        if self.order.handler_ms:
            await asyncio.sleep(self.order.handler_ms / 1000)

    async def watch(self, is_recorded: Callable[[], Awaitable[bool]]) -> None:
        """End the process once all jobs ran and ``is_recorded`` says that Redis knows it."""
        await self._full.wait()
        while not await is_recorded():  # noqa: ASYNC110 - Redis is asked, there is no event to wait for
            await asyncio.sleep(RECORDED_POLL_SECONDS)
        recorded_ns = time.monotonic_ns()
        await asyncio.sleep(DUPLICATE_WATCH_SECONDS)
        self.ledger.report(recorded_ns)
        if not self.order.linger:
            leave()


def burn(milliseconds: float) -> None:
    """Use this much processor time, however long that takes on a busy machine."""
    ends_at = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < ends_at:
        pass


def leave() -> NoReturn:
    """End at once: a graceful stop differs per library and nothing of it is measured."""
    sys.stdout.flush()
    os._exit(0)


def numbers_in_bulks(jobs: int) -> Iterator[range]:
    """Yield the job numbers in portions for a bulk call."""
    for first in range(0, jobs, BULK_JOBS):
        yield range(first, min(first + BULK_JOBS, jobs))


async def enqueue_all(
    order: Order,
    send_one: Callable[[int], Awaitable[object]],
    send_many: Callable[[range], Awaitable[object]] | None = None,
) -> None:
    """Enqueue as the order says and report the time it took."""
    # The first call connects and loads scripts; that is start-up, not enqueue speed.
    await send_one(0)
    first = 1
    begun_ns = time.monotonic_ns()
    if order.mode == "single":
        for number in range(first, order.jobs):
            await send_one(number)
    elif order.mode == "bulk" and send_many is not None:
        for numbers in numbers_in_bulks(order.jobs - first):
            await send_many(range(numbers.start + first, numbers.stop + first))
    else:
        pending = iter(range(first, order.jobs))

        async def drain() -> None:
            for number in pending:
                await send_one(number)

        await asyncio.gather(*(drain() for _ in range(CONCURRENT_ENQUEUES)))
    emit("enqueued", jobs=order.jobs - first, seconds=(time.monotonic_ns() - begun_ns) / 1e9)


async def send_stamped(order: Order, send_one: Callable[[int], Awaitable[object]]) -> None:
    """Send single jobs with pauses between; each carries its sending time as its number."""
    # One job ahead of the measured ones proves the worker is up; then the harness says go.
    await send_one(time.time_ns())
    await asyncio.to_thread(sys.stdin.readline)
    for _ in range(order.jobs - 1):
        # Uneven pauses, so that the sender cannot fall into step with a polling worker.
        await asyncio.sleep(random.uniform(*order.gap_ms) / 1000)
        await send_one(time.time_ns())
    emit("sent", jobs=order.jobs)
