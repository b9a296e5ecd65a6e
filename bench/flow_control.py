"""What flow control costs: the same jobs without it, with weights, with limits; and, if given, before it existed.

    make bench-flow                               # off, weights, one limit, all kinds of limits, weights and limits
    make bench-flow ARGS="--before ../old-checkout"

Each run is a fresh worker process on a fresh Redis, the variants in turn, so that what else the machine does hits all of
them alike. Besides jobs per second it takes the processor time of worker and Redis per job, which other programs
hardly change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
VARIANTS = ("off", "weights", "one limit", "limits", "both")
QUEUES = ("high", "default", "low")
CONCURRENCY = 100


async def run_variant(variant: str, jobs: int) -> dict[str, float]:
    """Run prefilled no-op jobs to their end in this process; return what it took."""
    from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker
    from rrq.client import JobRequest
    from rrq.embedded import EmbeddedRedis
    from rrq.process import tune_garbage_collector

    tune_garbage_collector()
    options: dict[str, Any] = {}
    if variant in ("weights", "both"):
        options["worker_queue_weights"] = {"high": 6, "default": 3, "low": 1}
    if variant not in ("off", "weights"):
        from rrq.flow import Limit

        # Wide enough never to hold anything back: what is measured is the asking.
        one = {"function:noop": Limit(concurrency=10_000)}
        every_kind = {
            "function:noop": Limit(concurrency=10_000, key="number", key_position=0, per_key=10),
            "queue:default": Limit(concurrency=10_000),
        }
        options["limits"] = one if variant == "one limit" else every_kind
    ended = 0
    is_over = asyncio.Event()

    async def noop(_context: Any, number: int) -> int:
        nonlocal ended
        ended += 1
        if ended == jobs:
            is_over.set()
        return number

    registry = JobRegistry()
    registry.register("noop", noop)
    with EmbeddedRedis() as server:
        settings = RRQSettings(redis_dsn=server.dsn, worker_concurrency=CONCURRENCY, **options)
        client = RRQClient(settings)
        store = client.job_store
        if "limits" in options:
            await store.publish_limits("bench", settings.limits)
        await client.enqueue_many(
            JobRequest("noop", (number % 1000,), queue_name=QUEUES[number % len(QUEUES)])
            for number in range(jobs)
        )
        before = await _redis_seconds(store)
        worker = RRQWorker(settings, registry, queues=list(QUEUES))
        own_before, began = time.process_time(), time.monotonic()
        running = asyncio.create_task(worker.run())
        await is_over.wait()
        while await store.redis.exists(store.keys.active_jobs_key(worker.worker_id)):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.001)
        seconds, own = time.monotonic() - began, time.process_time() - own_before
        spent = await _redis_seconds(store) - before
        worker._request_shutdown()
        await running
        await client.close()
    return {"jobs_per_second": jobs / seconds, "worker_us": own / jobs * 1e6, "redis_us": spent / jobs * 1e6}


async def _redis_seconds(store: Any) -> float:
    info = await store.redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def measure(variant: str, jobs: int, project: Path) -> dict[str, float]:
    paths = os.pathsep.join(str(project / part) for part in ("worker", "operator"))
    command = [sys.executable, __file__, "--run", variant, "--jobs", str(jobs)]
    finished = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise SystemExit(f"{variant} failed:\n{finished.stderr}")
    figures: dict[str, float] = json.loads(finished.stdout)
    return figures


def build_table(figures: dict[str, list[dict[str, float]]]) -> str:
    """Return medians as Markdown, and the ratio of each variant to the first."""
    lines = [
        "| | jobs/s | ratio | worker µs/job | Redis µs/job | ratio of both |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    first: tuple[float, float] | None = None
    for name, runs in figures.items():
        rate, worker, redis = (
            statistics.median(run[key] for run in runs)
            for key in ("jobs_per_second", "worker_us", "redis_us")
        )
        first = first or (rate, worker + redis)
        lines.append(
            f"| {name} | {rate:,.0f} | {rate / first[0]:.2f} | {worker:.1f} | {redis:.1f} "
            f"| {(worker + redis) / first[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier state to compare with")
    given = parser.parse_args()
    if given.run:
        import uvloop

        print(json.dumps(uvloop.run(run_variant(given.run, given.jobs))))
        return
    variants = [("before", "off", given.before)] if given.before else []
    variants += [(name, name, PROJECT) for name in VARIANTS]
    figures: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in variants}
    for number in range(given.rounds):
        for name, variant, project in variants:
            figures[name].append(measure(variant, given.jobs, project.resolve()))
            print(f"round {number + 1}: {name} {figures[name][-1]}", file=sys.stderr, flush=True)
    print(build_table(figures))


if __name__ == "__main__":
    main()
