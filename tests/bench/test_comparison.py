"""The figures in docs/comparison.md are those of bench/results."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparison.md").read_text()
# At the end of the path, so that modules of the tests win over modules of the bench with the same name.
sys.path.append(str(ROOT / "bench"))
tables: Any = importlib.import_module("comparison_tables")


def test_the_tables_are_what_the_benchmarks_measured() -> None:
    renewed = tables.insert_tables(PAGE, tables.build_tables())
    assert renewed == PAGE, (
        "docs/comparison.md differs from bench/results: run `python bench/comparison_tables.py`"
    )

    table = tables.build_tables()["speed"]
    figure = re.findall(r"\d[\d,.]*\d", table)[3]
    doctored = PAGE.replace(table, table.replace(figure, "987654"))
    assert doctored != PAGE
    assert tables.insert_tables(doctored, tables.build_tables()) == PAGE


def test_the_other_benchmark_pages_report_the_same_runs() -> None:
    """Compares one figure of each page: other programs write these pages from the same results."""
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
