"""The figures in README.md are those of bench/results, and its programs do what it says."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# At the end of the path: the bench has modules whose names those of the tests must keep.
sys.path.append(str(ROOT / "bench"))
tables: Any = importlib.import_module("readme_tables")


def test_the_tables_are_what_the_benchmarks_measured() -> None:
    renewed = tables.insert_tables(README, tables.build_tables())
    assert renewed == README, "README.md differs from bench/results: run `python bench/readme_tables.py`"

    table = tables.build_tables()["speed"]
    figure = re.findall(r"\d[\d,.]*\d", table)[3]
    doctored = README.replace(table, table.replace(figure, "987654"))
    assert doctored != README
    assert tables.insert_tables(doctored, tables.build_tables()) == README


def test_the_pages_that_the_readme_leads_to_tell_of_the_same_runs() -> None:
    """By one figure each: these pages are written from the same results, but by other programs."""
    speed, faults, operator = (tables.read_results(name) for name in ("throughput", "faults", "operator"))
    rate = speed["sections"]["throughput"]["1"]["rrq_current"]["median"]
    (arq,) = [outcome["verdict"] for outcome in faults["long_watch"] if outcome["contender"] == "arq"]
    told = {
        "benchmarks": f"| rrq (this project) | {rate:,.0f} |",
        "fault-comparison": f" | {median(arq['rerun_seconds']):.1f} / {max(arq['rerun_seconds']):.1f} | ",
        "operator-benchmarks": f"enqueue | {operator['bulk']['from_start']['p50_ms']:.0f} |",
    }
    for page, figure in told.items():
        assert figure in (ROOT / "docs" / f"{page}.md").read_text(), page


def test_a_queue_that_lost_jobs_is_not_shown_as_done() -> None:
    faults = json.loads((ROOT / "bench" / "results" / "faults.json").read_text())
    lines = {line.split(" | ")[0].strip("| "): line for line in tables.build_faults(faults).splitlines()}
    for outcome in faults["outcomes"]:
        if outcome["contender"] == "taskiq_list" and outcome["fault"].startswith("redis"):
            assert f"**{outcome['verdict']['unfinished']} lost**" in lines["taskiq 0.13.0, list"]
    (pause,) = [o for o in faults["outcomes"] if (o["contender"], o["fault"]) == ("rrq", "pause")]
    assert f"{pause['verdict']['finished_repeated']} done twice" in lines["rrq (this project)"], (
        "ours neither"
    )


def test_the_jobs_of_the_readme_reach_the_queue_of_the_example(redis_dsn: str) -> None:
    (command,) = re.findall(r"\.venv/bin/python (-m examples\.\w+)", README)
    said = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT, env={**os.environ, "RRQ_REDIS_DSN": redis_dsn}, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert said.strip() == "450 jobs queued"
