"""How fast the operator reacts, and what a thousand pools cost: ``make bench-operator``.

A real API server (without a node: pods stay pending, which is all that matters here), a real Redis and the
operator as a process of its own. A second client watches the Deployment and notes when the size is asked for.
Writes ``bench/results/operator.json``, ``docs/operator-benchmarks.md`` and ``docs/img/operator.svg``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

BENCH = Path(__file__).parent
sys.path[:0] = [str(BENCH.parent / folder) for folder in ("tools", "tests/support", "tools/cluster")]

import psutil
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config
from reaction_report import build_page, build_plot

from control_plane import ControlPlane
from kubernetes_build import find_programs
from operator_process import RunningOperator
from pool_definition import install_pool_definition
from pools import PoolDesk, build_pool
from rrq import RRQClient, RRQSettings
from rrq.client import JobRequest
from rrq.embedded import EmbeddedRedis
from rrq_operator.cluster.kube import Kube, deployments_path, pools_path
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

RESULTS = BENCH / "results" / "operator.json"
PAGE = BENCH.parent / "docs" / "operator-benchmarks.md"
PLOT = BENCH.parent / "docs" / "img" / "operator.svg"
JOBS = 2_000
REPLICAS = 20
OTHERS = 50
NAMESPACE = "bench"
SETTLE_SECONDS = 15.0


class Sizes:
    """What the Deployments of the namespace are asked for, followed by a watch of our own."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._now: dict[str, int] = {}
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        path = deployments_path(NAMESPACE)
        items, version = await self._kube.list_all(path)
        for item in items:
            self._note(item)
        while True:
            async with self._kube.watch(path, version) as events:
                async for event in events:
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._note(event["object"])

    def _note(self, item: dict[str, Any]) -> None:
        self._now[item["metadata"]["name"]] = item["spec"]["replicas"]
        self._changed.set()

    async def wait_for(self, name: str, replicas: int, timeout_seconds: float = 30.0) -> float:
        """Return the time at which the size was seen."""
        async with asyncio.timeout(timeout_seconds):
            while self._now.get(name) != replicas:
                self._changed.clear()
                await self._changed.wait()
        return time.perf_counter()


def pool(name: str, dsn: str, queue: str, **scaling: Any) -> dict[str, Any]:
    sizing = {"maxReplicas": REPLICAS, "scaleDown": {"windowSeconds": 0}} | scaling
    return build_pool(name, redis={"url": dsn}, queues=[queue], scaling=sizing)


def busy_pool(number: int, dsn: str) -> dict[str, Any]:
    """Return one of the others, with the usual window: its size does not follow every ripple."""
    return build_pool(
        f"busy-{number}", redis={"url": dsn}, queues=[f"busy-{number}"], scaling={"maxReplicas": 2}
    )


async def enqueue_in_bulk(client: RRQClient, queue: str) -> None:
    await client.enqueue_many([JobRequest("greet", queue_name=queue) for _ in range(JOBS)])


async def enqueue_silently(client: RRQClient, queue: str) -> None:
    """As a producer of RRQ 0.7 does: entries in the sorted set, and not a word to anybody."""
    store = client.job_store
    now_ms = time.time() * 1000
    await store.redis.zadd(store.keys.queue_key(queue), {f"silent-{n}": now_ms for n in range(JOBS)})


async def measure_reactions(
    enqueue: Callable[[RRQClient, str], Awaitable[None]],
    client: RRQClient,
    sizes: Sizes,
    name: str,
    runs: int,
) -> dict[str, Any]:
    """Return the times from the start of the enqueue, and from its end, to the size being asked for."""
    from_start, from_end = [], []
    for run in range(runs):
        await client.job_store.redis.delete(client.job_store.keys.queue_key(name))
        await sizes.wait_for(name, 0)
        # At another moment of the operator's second each time.
        await asyncio.sleep(1.0 + run / runs)
        started_at = time.perf_counter()
        await enqueue(client, name)
        enqueued_at = time.perf_counter()
        seen_at = await sizes.wait_for(name, REPLICAS)
        from_start.append(seen_at - started_at)
        from_end.append(max(0.0, seen_at - enqueued_at))
    await client.job_store.redis.delete(client.job_store.keys.queue_key(name))
    return {"from_start": summarise(from_start), "from_end": summarise(from_end), "runs": runs}


def summarise(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[ceil(len(ordered) * 0.95) - 1] * 1000, 1),
        "max_ms": round(ordered[-1] * 1000, 1),
    }


@contextlib.asynccontextmanager
async def busy_pools(client: RRQClient, count: int) -> AsyncIterator[None]:
    """Keep many queues changing: jobs come three times a second, and go again as if they were run."""

    over = asyncio.Event()

    async def churn(number: int) -> None:
        queue = f"busy-{number}"
        key = client.job_store.keys.queue_key(queue)
        while not over.is_set():
            jobs = [JobRequest("greet", queue_name=queue) for _ in range(random.randrange(5, 50))]
            await client.enqueue_many(jobs)
            await asyncio.sleep(random.uniform(0.1, 0.4))
            await client.job_store.redis.zpopmin(key, random.randrange(5, 50))

    tasks = [asyncio.create_task(churn(number)) for number in range(count)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def read_metrics(operator: RunningOperator) -> dict[str, float]:
    _, text = await operator.get("/metrics")
    figures = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            figures[name] = float(value)
    return figures


async def measure_crowd(
    kube: Kube, operator: RunningOperator, dsn: str, counts: list[int], seconds: float
) -> list[dict[str, Any]]:
    """Return what the operator does and needs per second with more and more idle pools."""
    rows, made = [], 0
    await plan_jobs_for_next_week(dsn, max(counts))
    for count in counts:
        started_at = time.perf_counter()
        for first in range(made, count, 20):
            numbers = range(first, min(first + 20, count))
            await asyncio.gather(
                *(
                    kube.create(pools_path(NAMESPACE), pool(f"idle-{n:04d}", dsn, f"idle-{n}"))
                    for n in numbers
                )
            )
        made = count
        await wait_for_deployments(kube, count)
        settled_seconds = time.perf_counter() - started_at
        await wait_until_quiet(operator)
        process = psutil.Process(operator.pid)
        before, cpu = await read_metrics(operator), sum(process.cpu_times()[:2])
        at = time.perf_counter()
        await asyncio.sleep(seconds)
        after, elapsed = await read_metrics(operator), time.perf_counter() - at
        ticks = after["rrq_operator_tick_seconds_count"] - before["rrq_operator_tick_seconds_count"]
        took = after["rrq_operator_tick_seconds_sum"] - before["rrq_operator_tick_seconds_sum"]
        slow = ticks - (
            after['rrq_operator_tick_seconds_bucket{le="1.0"}']
            - before['rrq_operator_tick_seconds_bucket{le="1.0"}']
        )
        rows.append(
            {
                "pools": count,
                "tick_ms": round(took / ticks * 1000, 1),
                "ticks_over_1_s": int(slow),
                "api_calls_per_tick": round(
                    (after["rrq_operator_api_calls_total"] - before["rrq_operator_api_calls_total"]) / ticks,
                    2,
                ),
                "redis_calls_per_tick": round(
                    (after["rrq_operator_redis_calls_total"] - before["rrq_operator_redis_calls_total"])
                    / ticks,
                    2,
                ),
                "cpu_percent": round((sum(process.cpu_times()[:2]) - cpu) / elapsed * 100, 1),
                "rss_mb": round(process.memory_info().rss / 1e6, 1),
                "settled_seconds": round(settled_seconds, 1),
            }
        )
        print(rows[-1], flush=True)
    return rows


async def wait_until_quiet(operator: RunningOperator) -> None:
    """Wait until everything there is to tell of new pools has been told."""
    async with asyncio.timeout(180):
        before = -1.0
        while (calls := (await read_metrics(operator))["rrq_operator_api_calls_total"]) != before:
            before = calls
            await asyncio.sleep(3)


async def plan_jobs_for_next_week(dsn: str, count: int) -> None:
    """Give every idle queue a job that asks for nothing yet."""
    client = RRQClient(RRQSettings(redis_dsn=dsn))
    week = timedelta(days=7)
    await client.enqueue_many(
        [JobRequest("greet", queue_name=f"idle-{n}", defer_by=week) for n in range(count)]
    )
    await client.close()


async def wait_for_deployments(kube: Kube, count: int) -> None:
    await eventually(
        lambda: _has_deployments(kube, count), 300, f"{count} Deployments are there", interval_seconds=0.5
    )


async def _has_deployments(kube: Kube, count: int) -> bool:
    # One object and the number of the others: a list of a thousand would be the larger part of the load.
    page = await kube.list_page(deployments_path(NAMESPACE), limit=1)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0) >= count


async def open_kube(kubeconfig: Path) -> Kube:
    configuration = type.__call__(kubernetes_client.Configuration)
    await kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return Kube(configuration)


async def measure_all_reactions(
    plane: ControlPlane, kube: Kube, dsn: str, folder: Path, runs: int
) -> dict[str, Any]:
    """Return the reactions of one operator, alone and beside other pools."""
    results: dict[str, Any] = {}
    client = RRQClient(RRQSettings(redis_dsn=dsn))
    sizes = Sizes(kube)
    follower = asyncio.create_task(sizes.follow())
    try:
        with RunningOperator(plane.kubeconfig, NAMESPACE, folder, log_level="INFO") as operator:
            PoolDesk(plane, NAMESPACE).apply(pool("reaction", dsn, "reaction"))
            await sizes.wait_for("reaction", 0)
            for name, enqueue in (("bulk", enqueue_in_bulk), ("silent", enqueue_silently)):
                results[name] = await measure_reactions(enqueue, client, sizes, "reaction", runs)
                print(name, results[name], flush=True)
            for number in range(OTHERS):
                await kube.create(pools_path(NAMESPACE), busy_pool(number, dsn))
            await wait_for_deployments(kube, OTHERS + 1)
            async with busy_pools(client, OTHERS):
                await asyncio.sleep(SETTLE_SECONDS)
                results["beside_50"] = await measure_reactions(
                    enqueue_in_bulk, client, sizes, "reaction", runs
                )
            print("beside_50", results["beside_50"], operator.log[-2000:], flush=True)
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await client.job_store.redis.flushdb()
        await client.close()
        plane.kubectl("delete", "rrqworkerpools", "--all", "--namespace", NAMESPACE)
    return results


async def run(given: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "runs": given.runs}
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane(find_programs(), Path(name)) as plane,
        EmbeddedRedis() as redis,
    ):
        folder = Path(name)
        # Without a node it would try to place pods for ever, at the cost of everybody on this machine.
        plane.scheduler.stop()
        install_pool_definition(plane)
        plane.kubectl("create", "namespace", NAMESPACE)
        async with await open_kube(plane.kubeconfig) as kube:
            if not given.skip_reactions:
                results |= await measure_all_reactions(plane, kube, redis.dsn, folder, given.runs)
            if not given.skip_crowd:
                with RunningOperator(
                    plane.kubeconfig, NAMESPACE, folder, name="crowd", log_level="INFO"
                ) as operator:
                    results["crowd"] = await measure_crowd(
                        kube, operator, redis.dsn, given.counts, given.seconds
                    )
                    print(*[line for line in operator.log.splitlines() if "INFO" not in line][-5:])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="measurements of each reaction")
    parser.add_argument(
        "--counts", type=lambda text: [int(n) for n in text.split(",")], default=[10, 100, 300, 1000]
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each crowd is watched")
    parser.add_argument("--skip-crowd", action="store_true")
    parser.add_argument("--skip-reactions", action="store_true")
    parser.add_argument("--quick", action="store_true", help="three runs, no crowd, nothing written")
    given = parser.parse_args()
    if given.quick:
        given.runs, given.skip_crowd = 3, True
    results = asyncio.run(run(given))
    if not given.quick:
        # A part that was left out stays as it was measured before.
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results = before | results
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        PAGE.write_text(build_page(results))
        if results.get("crowd"):
            PLOT.write_text(build_plot(results["crowd"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
