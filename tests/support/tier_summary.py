"""The last lines of a test run: which tiers ran, which did not and why, and on which Redis.

A green line must not hide a tier that was left out. With tests in several processes each counts what only it
knows and hands it to the one that prints.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The last mark that a test has says where it belongs: what needs a cluster is slow as well.
TIERS: Final = ("fast", "slow", "cluster", "e2e", "docker")
# What builds images or runs pods takes minutes and more than this repository, so that one has to ask for it.
ON_DEMAND: Final = {"docker": "make images-test", "e2e": "make e2e"}
_OUTPUT: Final = "rrq_tiers"


def tier_of(marks: Iterable[str]) -> str:
    found = set(marks)
    return next((tier for tier in reversed(TIERS) if tier in found), TIERS[0])


class TierSummary:
    """A pytest plugin; `servers_used` is filled by who starts them."""

    def __init__(self) -> None:
        self.servers_used: set[str] = set()
        self._run: Counter[str] = Counter()
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._left_out.update(tier_of(mark.name for mark in item.iter_markers()) for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = tier_of(report.keywords)
        if report.skipped:
            # A skip is told as file, line and reason.
            told = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
            self._skipped[tier, str(told).removeprefix("Skipped: ")] += 1
        elif report.when == "call":
            self._run[tier] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {"servers": sorted(self.servers_used), "left_out": dict(self._left_out)}

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get(_OUTPUT)  # nothing of a process that crashed
        if told is not None:
            self.servers_used |= set(told["servers"])
            self._left_out |= Counter(told["left_out"])  # the larger: each process leaves out the same

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.build_lines():
            terminalreporter.write_line(line)

    def build_lines(self) -> list[str]:
        run = [f"{tier} ({_tests(self._run[tier])})" for tier in TIERS if self._run[tier]]
        left_out = [
            f"{tier} ({_tests(self._left_out[tier])}, {_why_left_out(tier)})"
            for tier in TIERS
            if self._left_out[tier]
        ]
        skipped = [
            f"tests skipped: {tier} ({_tests(count)}): {reason}"
            for (tier, reason), count in sorted(self._skipped.items())
        ]
        servers = ", ".join(sorted(self.servers_used)) or "none needed"
        return [
            *skipped,
            *([f"tiers left out: {', '.join(left_out)}"] if left_out else []),
            f"tiers run: {', '.join(run) or 'none'}; Redis: {servers}",
        ]


def _tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"


def _why_left_out(tier: str) -> str:
    return f"run by {ON_DEMAND[tier]}" if tier in ON_DEMAND else "not chosen"
