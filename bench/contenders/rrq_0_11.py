"""RRQ 0.11.1 as a contender: its Rust engine plus one Python runner, so two processes.

The engine starts the runner itself and keeps its output, so the runner keeps the ledger and hands
the result over through a file next to the generated configuration.
"""

# mypy: disable-error-code="import-not-found"
# The libraries live in the contender's own environment.

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop
from contest import (
    POLL_DELAY_SECONDS,
    RECORDED_POLL_SECONDS,
    AsyncContest,
    Order,
    enqueue_all,
    leave,
    parse_order,
    send_stamped,
)
from redis.asyncio import Redis

# The limit the runner itself sets for one connection.
MAX_IN_FLIGHT = 64
# The engine passes its environment on to the runner it starts.
ANSWERS_VARIABLE = "BENCH_RUNNER_ANSWERS"
ORDER_VARIABLE = "BENCH_RUNNER_ORDER"


async def produce(order: Order) -> None:
    # Loaded by name: ``rrq`` means our own package to a type checker, another release here.
    client = import_module("rrq.client").RRQClient(config={"redis_dsn": order.dsn})

    async def send_one(number: int) -> None:
        await client.enqueue("noop", {"params": {"number": number}})

    try:
        if order.command == "latency":
            await send_stamped(order, send_one)
        else:
            await enqueue_all(order, send_one)
    finally:
        await client.close()


async def run_runner() -> None:
    """Be the Python runner: the handler, its ledger, and a watch on what Redis knows."""
    # The worker process below must stay until the engine is stopped, or the engine restarts it.
    order = replace(parse_order(json.loads(os.environ[ORDER_VARIABLE])), linger=True)
    contest = AsyncContest(order)
    redis = Redis.from_url(order.dsn)

    async def noop(request: Any) -> None:
        await contest.handle(request.params["number"])

    async def is_recorded() -> bool:
        # The engine keeps a lock on every job until the result is written.
        return not [key async for key in redis.scan_iter("rrq:lock:job:*", count=100_000)]

    registry = import_module("rrq.registry").Registry()
    registry.register("noop", noop)
    settings = import_module("rrq.runner_settings").PythonRunnerSettings(registry=registry)
    runtime: Any = import_module("rrq.runner_runtime")
    # The runtime only takes a dotted name; this function already holds the object.
    runtime.load_runner_settings = lambda _path: settings
    watcher = asyncio.create_task(contest.watch(is_recorded))
    await runtime.run_python_runner("", sys.argv[sys.argv.index("--tcp-socket") + 1])
    watcher.cancel()


def build_config(order: Order) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"""
[rrq]
redis_dsn = "{order.dsn}"
default_runner_name = "python"
default_poll_delay_seconds = {POLL_DELAY_SECONDS}
[rrq.runners.python]
type = "socket"
cmd = {json.dumps([sys.executable, str(Path(__file__).resolve()), "runner"])}
tcp_port = {port}
pool_size = 1
max_in_flight = {min(order.concurrency, MAX_IN_FLIGHT)}
"""


def work(order: Order) -> None:
    """Start the engine, pass the runner's answers on, stop the engine."""
    # Ended by default without clean-up, this process would leave an engine behind that takes the
    # jobs of the next contender.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as name:
        config, answers = Path(name, "rrq.toml"), Path(name, "answers")
        config.write_text(build_config(order))
        answers.touch()
        environment = {
            **os.environ,
            # One INFO line per job would cost it speed that its peers do not pay.
            "RUST_LOG": "warn",
            ANSWERS_VARIABLE: str(answers),
            ORDER_VARIABLE: json.dumps(sys.argv[1:]),
        }
        engine = subprocess.Popen(
            [str(Path(sys.executable).with_name("rrq")), "worker", "run", "--config", str(config)],
            env=environment,
            stdout=sys.stderr,
        )
        try:
            _pass_on(answers, engine)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            engine.terminate()
            engine.wait(timeout=15)
    leave()


def _pass_on(answers: Path, engine: subprocess.Popen[bytes]) -> None:
    with answers.open() as lines:
        while engine.poll() is None:
            line = lines.readline()
            sys.stdout.write(line)
            sys.stdout.flush()
            if '"done"' in line:
                return
            if not line:
                time.sleep(RECORDED_POLL_SECONDS * 10)


def main() -> None:
    if sys.argv[1] == "runner":
        with Path(os.environ[ANSWERS_VARIABLE]).open("a") as answers, redirect_stdout(answers):
            uvloop.run(run_runner())
        return
    order = parse_order()
    if order.command == "work":
        work(order)
    else:
        uvloop.run(produce(order))


if __name__ == "__main__":
    main()
