"""`make soak`: steady load for hours, after which nothing may have grown.

A pod of two processes works off jobs of every kind as they come. Memory, descriptors, threads and tasks of
the supervisor and of each process, and keys and memory of Redis, are sampled all along; at the end each
series is called flat or growing. Nothing is made to fail here: what faults leave behind is for the chaos run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flatness import Allowance, Trend, decide_trend
from leak_load import Load
from pod import Pod
from rrq.client import RRQClient
from rrq.embedded import EmbeddedRedis
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from running import end

WORKERS = 2
CONCURRENCY = 10
JOBS_PER_SECOND = 200
# Results have come and gone many times before the first sample counts.
TTL_SECONDS = 10
SAMPLES = 240
SHORTEST_SECONDS = 60.0

MEGABYTE = 1_000_000
# The absolute part is what a batch in flight, or an arena more of the allocator, makes up.
ALLOWANCES = {
    "rss_bytes": Allowance(0.05, 3 * MEGABYTE),
    "descriptors": Allowance(0.0, 2),
    # Plain handlers get a thread each until there are as many as jobs at once, and each job is a task: both are
    # bounded by the concurrency, and a leak would be by the number of jobs.
    "threads": Allowance(0.0, CONCURRENCY),
    "tasks": Allowance(0.1, CONCURRENCY + 5),
    "keys": Allowance(0.1, 200),
    "memory_bytes": Allowance(0.05, MEGABYTE),
}
SETTINGS: dict[str, Any] = {
    "default_result_ttl_seconds": TTL_SECONDS,
    "default_dlq_result_ttl_seconds": TTL_SECONDS,
    "default_unique_job_lock_ttl_seconds": 2,
    "base_retry_delay_seconds": 0.1,
    "worker_concurrency": CONCURRENCY,
}


@dataclass
class Report:
    """What a soak saw, by series such as `supervisor rss_bytes`."""

    seconds: float
    jobs: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_flat(self) -> bool:
        return not self.problems and not any(trend.is_growing for trend in self.trends.values())


class Soak:
    """One run, from the first job to the verdict."""

    def __init__(self, seconds: float, folder: Path) -> None:
        self.report = Report(seconds)
        self._folder = folder
        # Persistence off: rewriting its log makes memory jump, and is Redis's business.
        self._server = EmbeddedRedis()
        self._series: dict[str, list[tuple[float, float]]] = {}

    async def run(self) -> Report:
        with self._server:
            settings = RRQSettings(redis_dsn=self._server.dsn, job_registry=JobRegistry(), **SETTINGS)
            self._client = RRQClient(settings)
            options = ("--num-workers", str(WORKERS), "--queue", "default", "--queue", "other")
            self._pod = Pod(self._server.dsn, self._folder, *options, app="leak_app.settings", **SETTINGS)
            with self._pod:
                try:
                    await self._pod.is_up()
                    self._children = self._pod.children()
                    await self._soak()
                finally:
                    await self._client.close()
        return self.report

    async def _soak(self) -> None:
        load = Load(self._client)
        self._began_at = time.monotonic()
        producing = asyncio.create_task(self._produce(load))
        interval_seconds = self.report.seconds / SAMPLES
        for number in range(SAMPLES):
            await self._sample()
            next_at = self._began_at + (number + 1) * interval_seconds
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            if producing.done():
                break
        await end(producing)
        self.report.jobs = load.jobs
        await self._judge()

    async def _produce(self, load: Load) -> None:
        batch, second = JOBS_PER_SECOND, 0
        while True:
            await load.produce(batch)
            second += 1
            # By the clock and not by pauses: the load is the same however long a batch takes.
            await asyncio.sleep(max(0.0, self._began_at + second - time.monotonic()))

    async def _sample(self) -> None:
        self._sample_process("supervisor", self._pod.pid)
        # Two figures of one page, so that it is fetched once and in a thread: it must not hold up the load.
        _, page = await asyncio.to_thread(self._pod.get, "/metrics")
        for line in page.splitlines():
            series, _, value = line.rpartition(" ")
            if series == "rrq_supervisor_tasks":
                self._note("supervisor tasks", float(value))
            elif series.startswith("rrq_child_tasks{"):
                self._note(f"process {series.split(chr(34))[1]} tasks", float(value))
        for place, pid in enumerate(self._pod.children()):
            self._sample_process(f"process {place}", pid)
        redis = self._client.job_store.redis
        self._note("redis keys", await redis.dbsize())
        self._note("redis memory_bytes", (await redis.info("memory"))["used_memory"])

    def _sample_process(self, name: str, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                self._note(f"{name} rss_bytes", process.memory_info().rss)
                self._note(f"{name} descriptors", process.num_fds())
                self._note(f"{name} threads", process.num_threads())

    def _note(self, series: str, value: float) -> None:
        self._series.setdefault(series, []).append((time.monotonic() - self._began_at, value))

    async def _judge(self) -> None:
        report = self.report
        counters: Any = await self._client.job_store.redis.hgetall("rrq:counters")
        report.counters = {name.decode(): int(count) for name, count in counters.items()}
        if self._pod.children() != self._children:
            report.problems.append(
                "the supervisor replaced worker processes, so their series cannot be compared"
            )
        if report.counters.get("done", 0) < report.jobs * 0.8:
            report.problems.append(f"only {report.counters.get('done', 0)} of {report.jobs} jobs were done")
        for name, samples in sorted(self._series.items()):
            report.trends[name] = decide_trend(samples, ALLOWANCES[name.rpartition(" ")[2]])


def build_page(report: Report) -> str:
    """The report as Markdown."""
    counters = ", ".join(f"{count:,} {name}" for name, count in sorted(report.counters.items()))
    lines = [
        "# Steady load: what grows",
        "",
        f"`make soak` writes this page: a pod of {WORKERS} processes, {JOBS_PER_SECOND} jobs a second of every kind for",
        f"{report.seconds / 60:.0f} minutes, {report.jobs:,} jobs ({counters}). For each series the soak compares the median of",
        "the last third with that of the first, after a warm-up of a fifth of the run.",
        "",
        "| series | first third | last third | lowest | highest | per hour | verdict |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, trend in report.trends.items():
        figures = (trend.first_third, trend.last_third, trend.lowest, trend.highest, trend.per_hour)
        cells = " | ".join(f"{figure:,.0f}" for figure in figures)
        lines.append(f"| {name} | {cells} | {'**growing**' if trend.is_growing else 'flat'} |")
    return "\n".join([*lines, *(f"\nPROBLEM: {problem}" for problem in report.problems)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--report", type=Path, default=Path("dist/soak"), help="name without .json and .md")
    given = parser.parse_args()
    if given.seconds < SHORTEST_SECONDS:
        parser.error(f"{given.seconds:g} s show no growth; take at least {SHORTEST_SECONDS:g}.")
    print(f"soaking for {given.seconds:g} s", flush=True)  # noqa: T201  spoken to whoever started it
    with tempfile.TemporaryDirectory(prefix="rrq-soak-") as folder:
        report = asyncio.run(Soak(given.seconds, Path(folder)).run())
    page = build_page(report)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.with_suffix(".json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    given.report.with_suffix(".md").write_text(page)
    print(page)  # noqa: T201  as above
    return 0 if report.is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
