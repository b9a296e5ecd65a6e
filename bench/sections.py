"""The measurements, one function each; every one returns plain values for the report."""

from __future__ import annotations

import socket
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness import (
    BenchError,
    Child,
    Contender,
    PrivateRedis,
    delayed,
    read_cpu_ticks,
    running,
    stolen_share,
)
from roster import BASELINE, OURS, PODS, SUPERVISED, jobs_for

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_TIMEOUT_SECONDS = 90.0
# A run that lost more than this share of its processor time to other guests of the host is repeated.
STOLEN_AT_MOST = 0.05
RUNS_AT_MOST = 2
ONE_WAY_DELAY_MS = 0.5


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    contenders: tuple[Contender, ...]
    rounds: int
    # Jobs of a contender of weight 1, by concurrency.
    base_jobs: dict[int, int]
    enqueue_jobs: int
    latency_jobs: int
    idle_seconds: float
    memory_jobs: int

    def find(self, *names: str) -> list[Contender]:
        return [contender for contender in self.contenders if contender.name in names]


@dataclass
class Bench:
    """One run: its plan, its Redis, and what went wrong on the way."""

    plan: Plan
    redis: PrivateRedis
    failures: list[str] = field(default_factory=list)
    runs: int = 0
    repeated_runs: int = 0

    def attempt(self, contender: Contender, measure: Callable[[], Any]) -> Any:
        """Return the measurement, or None after noting why it could not be made.

        On a shared host other guests take the processor away in the middle of a run. Such a run is
        repeated, whoever it hits, and the one that lost least counts.
        """
        best: tuple[float, Any] | None = None
        for again in range(RUNS_AT_MOST):
            try:
                self.redis.wait_until_alone()
                self.redis.flush()
                before = read_cpu_ticks()
                measurement = measure()
            except BenchError as error:
                # One library that fails must not cost the figures of the others.
                self.failures.append(str(error))
                print(f"    FAILED {error}", flush=True)
                break
            self.runs += 1
            self.repeated_runs += again > 0
            stolen = stolen_share(before, read_cpu_ticks())
            if best is None or stolen < best[0]:
                best = (stolen, measurement)
            if stolen <= STOLEN_AT_MOST:
                break
        return None if best is None else best[1]


def measure_throughput(bench: Bench) -> dict[str, Any]:
    """Drain a prefilled queue of no-op jobs in one process, at several concurrencies."""
    table: dict[str, Any] = {}
    for number in range(bench.plan.rounds):
        for concurrency, base_jobs in bench.plan.base_jobs.items():
            print(f"  round {number + 1}, concurrency {concurrency}", flush=True)
            column = table.setdefault(str(concurrency), {})
            _one_round(bench, column, concurrency, base_jobs, bench.redis.dsn)
    return _with_medians(table)


def measure_delay(bench: Bench) -> dict[str, Any]:
    """Repeat concurrency 100 behind a proxy that adds a millisecond to each round trip."""
    column: dict[str, Any] = {}
    base_jobs = max(200, bench.plan.base_jobs[100] // 3)
    with delayed(bench.redis, ONE_WAY_DELAY_MS) as dsn:
        for number in range(bench.plan.rounds):
            print(f"  round {number + 1}, {2 * ONE_WAY_DELAY_MS:g} ms round trip", flush=True)
            _one_round(bench, column, 100, base_jobs, dsn)
    return _with_medians({"100": column})


def _one_round(bench: Bench, column: dict[str, Any], concurrency: int, base_jobs: int, dsn: str) -> None:
    for contender in bench.plan.contenders:
        jobs = jobs_for(contender, base_jobs, concurrency)

        def drain(contender: Contender = contender, jobs: int = jobs) -> dict[str, Any]:
            # Filled directly, whatever stands between the worker and Redis.
            enqueue(contender, bench.redis.dsn, jobs, "bulk")
            with running(contender, "work", dsn, jobs=jobs, concurrency=concurrency) as child:
                return child.wait_for("done", RUN_TIMEOUT_SECONDS)

        done = bench.attempt(contender, drain)
        if done is None:
            continue
        seconds = (done["recorded_ns"] - done["first_start_ns"]) / 1e9
        rate = jobs / seconds
        row = column.setdefault(contender.name, {"jobs": jobs, "rates": [], "distinct": [], "duplicates": 0})
        row["rates"].append(round(rate, 1))
        row["distinct"].append(done["distinct"])
        row["duplicates"] += done["duplicates"]
        exact = "" if done["distinct"] == jobs and not done["duplicates"] else "  NOT EXACT"
        print(f"    {contender.label:<20} {rate:>9,.0f} jobs/s{exact}", flush=True)


def _with_medians(table: dict[str, Any]) -> dict[str, Any]:
    for column in table.values():
        for row in column.values():
            row["median"] = statistics.median(row["rates"])
    return table


def enqueue(contender: Contender, dsn: str, jobs: int, mode: str) -> float:
    """Enqueue numbered jobs and return the rate in jobs per second."""
    if mode == "bulk" and not contender.has_bulk:
        mode = "concurrent"
    with running(contender, "enqueue", dsn, jobs=jobs, mode=mode) as child:
        answer = child.wait_for("enqueued", RUN_TIMEOUT_SECONDS)
    return float(answer["jobs"] / answer["seconds"])


def measure_enqueue(bench: Bench) -> dict[str, Any]:
    """Enqueue one at a time, sixteen at a time, and in bulk where the library can."""
    table: dict[str, Any] = {"single": {}, "concurrent": {}, "bulk": {}}
    for number in range(bench.plan.rounds):
        print(f"  round {number + 1}", flush=True)
        for mode, column in table.items():
            for contender in bench.plan.contenders:
                if contender.name == SUPERVISED or (mode == "bulk" and not contender.has_bulk):
                    continue  # a supervisor does not produce
                # Bulk is several times faster and needs more jobs for the same precision.
                jobs = bench.plan.enqueue_jobs * (5 if mode == "bulk" else 1)

                def send(contender: Contender = contender, jobs: int = jobs, mode: str = mode) -> float:
                    return enqueue(contender, bench.redis.dsn, jobs, mode)

                rate = bench.attempt(contender, send)
                if rate is not None:
                    row = column.setdefault(contender.name, {"jobs": jobs, "rates": []})
                    row["rates"].append(round(rate, 1))
                    print(f"    {mode:<10} {contender.label:<20} {rate:>9,.0f} jobs/s", flush=True)
    return _with_medians(table)


def measure_latency(bench: Bench) -> dict[str, Any]:
    """Time from enqueue to handler start of single jobs at an idle worker."""
    table: dict[str, Any] = {}
    jobs = bench.plan.latency_jobs
    for contender in bench.plan.contenders:

        def watch(contender: Contender = contender) -> dict[str, Any]:
            options = {"jobs": jobs, "stamped": True}
            dsn = bench.redis.dsn
            with (
                running(contender, "work", dsn, concurrency=10, **options) as worker,
                running(contender, "latency", dsn, jobs=jobs) as producer,
            ):
                worker.wait_for("started", 30)
                producer.say_go()
                return worker.wait_for("done", RUN_TIMEOUT_SECONDS)

        done = bench.attempt(contender, watch)
        if done is None:
            continue
        # The first job waited for the worker to start.
        samples_ms = sorted(ns / 1e6 for ns in done["latencies_ns"][1:])
        table[contender.name] = {
            "jobs": len(samples_ms),
            "p50_ms": round(percentile(samples_ms, 0.50), 3),
            "p99_ms": round(percentile(samples_ms, 0.99), 3),
            "max_ms": round(samples_ms[-1], 3),
            "duplicates": done["duplicates"],
        }
        row = table[contender.name]
        print(f"    {contender.label:<20} p50 {row['p50_ms']:8.2f} ms   p99 {row['p99_ms']:8.2f} ms")
    return table


def percentile(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the ordered samples does not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def measure_idle(bench: Bench) -> dict[str, Any]:
    """Count what an idle worker process sends to Redis and how many connections it holds."""
    table: dict[str, Any] = {}
    for contender in bench.plan.find(OURS, BASELINE):

        def watch(contender: Contender = contender) -> dict[str, Any]:
            with running(contender, "work", bench.redis.dsn, jobs=0, stamped=True) as worker:
                worker.wait_for("ready", 30)
                # Idle pauses grow step by step; this is about the state they settle in.
                time.sleep(5)
                sent = count_sent_commands(bench.redis, bench.plan.idle_seconds)
                return {
                    "commands_per_second": round(sent / bench.plan.idle_seconds, 2),
                    "connections": len(bench.redis.clients()),
                    "rss_mb": round(worker.rss_mb(), 1),
                }

        row = bench.attempt(contender, watch)
        if row is not None:
            table[contender.name] = row
            print(f"    {contender.label:<20} {row}", flush=True)
    return table


def count_sent_commands(redis: PrivateRedis, seconds: float) -> int:
    """Count the commands clients send during the given time; a script counts as one.

    MONITOR marks commands that a script ran by itself; INFO counts them like any other.
    """
    sent = 0
    deadline = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", redis.port)) as connection:
        connection.sendall(b"MONITOR\r\n")
        connection.settimeout(0.2)
        rest = b""
        while time.monotonic() < deadline:
            try:
                rest += connection.recv(1 << 20)
            except TimeoutError:
                continue
            *lines, rest = rest.split(b"\r\n")
            sent += sum(1 for line in lines if b"[" in line and b" lua] " not in line)
    return sent


PROCESSES = 8
CONTENTION_HANDLER_MS = 20


def measure_contention(bench: Bench) -> dict[str, Any]:
    """Let eight processes wait for jobs that come one at a time: who loses, and what it costs."""
    table: dict[str, Any] = {}
    for contender in bench.plan.find(OURS, BASELINE):

        def contend(contender: Contender = contender) -> dict[str, Any]:
            return _contend(bench, contender)

        row = bench.attempt(contender, contend)
        if row is not None:
            table[contender.name] = row
            print(f"    {contender.label:<20} {row}", flush=True)
    return table


def _contend(bench: Bench, contender: Contender) -> dict[str, Any]:
    dsn, jobs = bench.redis.dsn, bench.plan.latency_jobs
    options = {"jobs": 0, "stamped": True, "handler_ms": CONTENTION_HANDLER_MS}
    with ExitStack() as stack:
        workers = [stack.enter_context(running(contender, "work", dsn, **options)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.wait_for("ready", 60)
        time.sleep(1)
        before = bench.redis.commands_processed()
        begun = time.monotonic()
        with running(contender, "latency", dsn, jobs=jobs) as producer:
            producer.say_go()
            producer.wait_for("sent", RUN_TIMEOUT_SECONDS)
        time.sleep(0.5)
        seconds = time.monotonic() - begun
        commands = bench.redis.commands_processed() - before
        for worker in workers:
            worker.terminate()
        stopped = [worker.wait_for("stopped", 30) for worker in workers]
    total = {
        key: sum(answer[key] for answer in stopped) for key in ("ran", "claims", "lost_races", "slots_taken")
    }
    return {
        "processes": PROCESSES,
        "jobs": jobs,
        **total,
        # Each process only sees its own jobs, so what ran twice shows in the sum.
        "duplicates": total["ran"] - jobs + sum(answer["duplicates"] for answer in stopped),
        "slots_without_job": total["slots_taken"] - total["ran"],
        "redis_commands_per_second": round(commands / seconds),
    }


SCALING_ROUNDS = 5
SCALING_JOBS = 4000


def measure_scaling(bench: Bench) -> dict[str, Any]:
    """Run jobs of 1 ms processor time in a pod of one process and in a pod of two, in turns."""
    table: dict[str, Any] = {}
    for number in range(SCALING_ROUNDS if bench.plan.rounds > 1 else 1):
        print(f"  round {number + 1}", flush=True)
        for pod in PODS:

            def drain(pod: Contender = pod) -> float:
                return _drain_pod(bench, pod)

            rate = bench.attempt(pod, drain)
            if rate is not None:
                row = table.setdefault(pod.name, {"jobs": SCALING_JOBS, "rates": []})
                row["rates"].append(round(rate, 1))
                print(f"    {pod.label:<20} {rate:>9,.0f} jobs/s", flush=True)
    return _with_medians({"1 ms": table})


def _drain_pod(bench: Bench, pod: Contender) -> float:
    enqueue(pod, bench.redis.dsn, SCALING_JOBS, "bulk")
    with running(pod, "work", bench.redis.dsn, jobs=SCALING_JOBS, concurrency=10, burn_ms=1.0) as child:
        child.wait_for("started", 30)
        begun = time.monotonic()
        deadline = begun + RUN_TIMEOUT_SECONDS
        # Each process knows only its own jobs; Redis counts them all.
        while int(bench.redis.call("HGET", "rrq:counters", "done") or 0) < SCALING_JOBS:
            if time.monotonic() > deadline:
                raise BenchError(f"{pod.label} did not end its jobs within {RUN_TIMEOUT_SECONDS:.0f} s.")
            time.sleep(0.01)
        return SCALING_JOBS / (time.monotonic() - begun)


def measure_memory(bench: Bench) -> dict[str, Any]:
    """Resident memory of an idle worker process, and how much it grows over many jobs."""
    table: dict[str, Any] = {}
    jobs = bench.plan.memory_jobs
    for contender in bench.plan.find(OURS):

        def grow(contender: Contender = contender) -> dict[str, Any]:
            options = {"jobs": jobs, "concurrency": 100, "linger": True}
            with running(contender, "work", bench.redis.dsn, **options) as worker:
                worker.wait_for("ready", 30)
                time.sleep(2)
                idle_mb = worker.rss_mb()
                enqueue(contender, bench.redis.dsn, jobs, "bulk")
                worker.wait_for("done", RUN_TIMEOUT_SECONDS)
                time.sleep(1)
                after_mb = worker.rss_mb()
            return {
                "jobs": jobs,
                "example_app_idle_mb": round(_read_example_app_mb(bench), 1),
                "idle_mb": round(idle_mb, 1),
                "after_mb": round(after_mb, 1),
                "growth_mb": round(after_mb - idle_mb, 1),
            }

        row = bench.attempt(contender, grow)
        if row is not None:
            table[contender.name] = row
            print(f"    {contender.label:<20} {row}", flush=True)
    return table


def _read_example_app_mb(bench: Bench) -> float:
    """Return the resident memory of the worker in ``examples/jobs.py`` with nothing to do."""
    variables = {"RRQ_REDIS_DSN": bench.redis.dsn}
    app = Child("example app", [sys.executable, "-m", "examples.jobs"], variables)
    try:
        time.sleep(4)
        if app.process.poll() is not None:
            raise BenchError("The worker of examples/jobs.py ended by itself.")
        return app.rss_mb()
    finally:
        app.stop()


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "throughput": measure_throughput,
    "enqueue": measure_enqueue,
    "latency": measure_latency,
    "delay": measure_delay,
    "idle": measure_idle,
    "contention": measure_contention,
    "scaling": measure_scaling,
    "memory": measure_memory,
}
