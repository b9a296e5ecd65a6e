"""The page on `make bench-faults` says what was measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# At the end of the path: the bench has modules whose names those of the tests must keep.
sys.path.append(str(ROOT / "bench"))
report: Any = importlib.import_module("faults_report")


def test_the_page_says_what_the_results_and_the_roster_say() -> None:
    results = json.loads((ROOT / "bench/results/faults.json").read_text())
    assert (ROOT / "docs/fault-comparison.md").read_text() == report.build_page(results)
