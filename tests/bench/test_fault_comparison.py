"""The page of `make bench-faults` shows the measured results."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# At the end of the path, so that modules of the tests win over modules of the bench with the same name.
sys.path.append(str(ROOT / "bench"))
report: Any = importlib.import_module("faults_report")


def test_the_page_matches_the_results_and_the_roster() -> None:
    results = json.loads((ROOT / "bench/results/faults.json").read_text())
    assert (ROOT / "docs/fault-comparison.md").read_text() == report.build_page(results)
