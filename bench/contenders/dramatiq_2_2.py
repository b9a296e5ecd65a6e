"""dramatiq 2.2 as a contender: threads instead of an event loop, one per unit of concurrency."""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"
# The library lives in the contender's own environment, so its classes look untyped from here.

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import dramatiq
from contest import (
    DUPLICATE_WATCH_SECONDS,
    RECORDED_POLL_SECONDS,
    Ledger,
    Order,
    enqueue_all,
    leave,
    parse_order,
    send_stamped,
)
from dramatiq.brokers.redis import RedisBroker


class CountAcknowledged(dramatiq.Middleware):
    """Counts the jobs whose end Redis has confirmed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.jobs = 0

    def after_ack(self, _broker: Any, _message: Any) -> None:
        with self._lock:
            self.jobs += 1


async def produce(order: Order) -> None:
    broker = RedisBroker(url=order.dsn)

    @dramatiq.actor(actor_name="noop", broker=broker)
    def noop(number: int) -> None: ...

    async def send_one(number: int) -> None:
        # dramatiq's producer is blocking; one after the other is all it offers in one thread.
        noop.send(number)

    if order.command == "latency":
        await send_stamped(order, send_one)
    else:
        await enqueue_all(order, send_one)


def work(order: Order) -> None:
    full = threading.Event()
    ledger = Ledger(order, full.set)
    ledger_lock = threading.Lock()
    acknowledged = CountAcknowledged()
    broker = RedisBroker(url=order.dsn)
    broker.add_middleware(acknowledged)

    @dramatiq.actor(actor_name="noop", broker=broker)
    def noop(number: int) -> None:
        with ledger_lock:
            ledger.record(number)
        if order.handler_ms:
            time.sleep(order.handler_ms / 1000)

    worker = dramatiq.Worker(broker, worker_threads=order.concurrency)
    worker.start()
    full.wait()
    while acknowledged.jobs < order.jobs:
        time.sleep(RECORDED_POLL_SECONDS)
    recorded_ns = time.monotonic_ns()
    time.sleep(DUPLICATE_WATCH_SECONDS)
    ledger.report(recorded_ns)
    leave()


if __name__ == "__main__":
    order = parse_order()
    if order.command == "work":
        work(order)
    else:
        asyncio.run(produce(order))
