"""Measure rrq beside other queues: one run, one private Redis, every library in its own environment.

Arguments in, sections run, results out: ``bench/results/throughput.json``, the tables in
``docs/benchmarks.md`` and the plot ``docs/img/throughput.svg``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import time
from typing import Any

from harness import BENCH, BenchError, PrivateRedis, python_of
from plot import build_plot
from report import build_report, insert_report
from roster import CONTENDERS
from sections import SECTIONS, Bench, Plan

RESULTS = BENCH / "results" / "throughput.json"
PAGE = BENCH.parent / "docs" / "benchmarks.md"
PLOT = BENCH.parent / "docs" / "img" / "throughput.svg"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--quick", action="store_true", help="one short round, files not written")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--sections", default=",".join(SECTIONS), help="separated by commas")
    parser.add_argument("--jobs", type=int, help="jobs per run of a contender of weight 1")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", action="store_true", help="write the files of a partial run too")
    given = parser.parse_args()
    given.sections = given.sections.split(",")
    unknown = set(given.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    return given


def build_plan(given: argparse.Namespace) -> Plan:
    """Return the amounts: a full run takes about a quarter of an hour on two cores."""
    base_jobs = {1: 800, 10: 3000, 32: 3000, 100: 4000}
    if given.quick:
        base_jobs = {10: 600, 100: 600}
    if given.jobs:
        base_jobs = dict.fromkeys(base_jobs, given.jobs)
    return Plan(
        contenders=tuple(c for c in CONTENDERS if not given.only or c.name in given.only),
        rounds=given.rounds or (1 if given.quick else 3),
        base_jobs=base_jobs,
        enqueue_jobs=500 if given.quick else 1500,
        latency_jobs=50 if given.quick else 200,
        idle_seconds=10.0,
        memory_jobs=10_000 if given.quick else 100_000,
    )


def run_sections(plan: Plan, names: list[str]) -> dict[str, Any]:
    """Run the named sections one after the other and return everything the report needs."""
    redis = PrivateRedis()
    try:
        bench = Bench(plan, redis)
        machine = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "redis": redis.version(),
        }
        sections = {}
        for name in names:
            begun = time.monotonic()
            print(f"{name}:", flush=True)
            sections[name] = SECTIONS[name](bench)
            print(f"  took {time.monotonic() - begun:.0f} s", flush=True)
    finally:
        redis.stop()
    return {
        "machine": machine,
        "rounds": plan.rounds,
        "sections": sections,
        "failures": bench.failures,
        "runs": bench.runs,
        "repeated_runs": bench.repeated_runs,
    }


def write_files(results: dict[str, Any], report: str) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    PAGE.write_text(insert_report(PAGE.read_text(), report))
    if results["sections"].get("throughput"):
        PLOT.parent.mkdir(exist_ok=True)
        PLOT.write_text(build_plot(results["sections"]["throughput"]))


def main() -> int:
    given = parse_arguments()
    plan = build_plan(given)
    # As an exception it stops the servers and workers started here; the default would leave them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for contender in plan.contenders:
            python_of(contender)
        results = run_sections(plan, given.sections)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    report = build_report(results)
    print("\n" + report)
    # A partial or short run would leave gaps or chance figures in the published table.
    is_whole = not given.only and set(given.sections) == set(SECTIONS) and plan.rounds >= 3
    if given.write or (is_whole and not given.quick):
        write_files(results, report)
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
