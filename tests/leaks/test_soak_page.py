"""The page of a soak says what was run, and of every series whether it grew."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
soak: Any = importlib.import_module("soak")


def test_a_series_that_grows_and_a_problem_stand_out() -> None:
    flat = soak.decide_trend([(float(n), 100.0) for n in range(60)], soak.Allowance(0.05, 1))
    growing = soak.decide_trend([(float(n), 100.0 + n) for n in range(60)], soak.Allowance(0.05, 1))
    report = soak.Report(600.0, 120_000, {"done": 119_990}, {"redis keys": flat, "supervisor tasks": growing})
    page = soak.build_page(report)
    assert page.startswith("# Steady load")
    assert "10 minutes, 120,000 jobs (119,990 done)" in page
    assert "| redis keys | 100 | 100 | 100 | 100 | 0 | flat |" in page
    assert "| supervisor tasks |" in page
    assert page.count("**growing**") == 1
    assert not report.is_flat
    report.problems.append("worker processes were replaced")
    assert "PROBLEM: worker processes were replaced" in soak.build_page(report)
