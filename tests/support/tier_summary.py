"""The last lines of a test run: which tiers ran, which did not and why, and on which Redis.

A green line must not hide a tier that was left out. With tests in several processes each counts what only it
knows and hands it to the one that prints.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from tier_report import append_lines, describe_not_run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

# The last mark that a test has says where it belongs: what needs a cluster is slow as well.
TIERS: Final = ("fast", "slow", "browser", "cluster", "e2e", "docker")
RUN_BY: Final = {
    **dict.fromkeys(("fast", "slow"), "make test"),
    **dict.fromkeys(("browser", "cluster"), "make test-cluster"),
    "e2e": "make e2e",
    "docker": "make images-test",
}
# What builds images or runs pods takes minutes and more than this repository, so that one has to ask for it.
ON_DEMAND: Final = ("docker", "e2e")
_OUTPUT: Final = "rrq_tiers"
_TIER: Final = "tier"


def tier_of(marks: Iterable[str]) -> str:
    found = set(marks)
    return next((tier for tier in reversed(TIERS) if tier in found), TIERS[0])


class TierSummary:
    """A pytest plugin; `servers_used` is filled by who starts them, `report` is the file of `tier_report`.

    `step` is the step of make that these tests are: with none run, the step is not run.
    """

    def __init__(self, report: str | None = None, step: str | None = None) -> None:
        self.servers_used: set[str] = set()
        self._report = report
        self._step = step
        self._run: Counter[str] = Counter()
        self._failed: dict[str, str] = {}  # tiers by test, which may fail in several phases
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._left_out.update(tier_of(mark.name for mark in item.iter_markers()) for item in items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write the tier down where the marks are known: the keywords of a report have the names of folders, too."""
        report = yield
        report.user_properties.append((_TIER, tier_of(mark.name for mark in item.iter_markers())))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = str(dict(report.user_properties).get(_TIER, TIERS[0]))  # a process that crashed told none
        if report.failed:
            self._failed[report.nodeid] = tier
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
        lines = self.build_lines()
        for line in lines:
            terminalreporter.write_line(line)
        append_lines([*lines, *self._describe_step()], self._report)

    def _describe_step(self) -> list[str]:
        """Return why this step of make ran no test, in one line: the reason of most of its tests."""
        if self._step is None or self._run or self._failed or not self._skipped:
            return []
        reasons: Counter[str] = Counter()
        for (_, reason), tests in self._skipped.items():
            reasons[reason] += tests
        return [describe_not_run(self._step, reasons.most_common(1)[0][0])]

    def build_lines(self) -> list[str]:
        skipped = [
            f"tests skipped: {tier} ({_count(tests)}): {reason}"
            for (tier, reason), tests in sorted(self._skipped.items())
        ]
        left_out = [
            f"{tier} ({_count(self._left_out[tier])}, run by {RUN_BY[tier]})"
            for tier in TIERS
            if self._left_out[tier]
        ]
        failed = Counter(self._failed.values())
        servers = ", ".join(sorted(self.servers_used)) or "none needed"
        return [
            *skipped,
            *([f"tiers left out: {', '.join(left_out)}"] if left_out else []),
            *([f"tests failed: {_list_tiers(failed)}"] if failed else []),
            f"tiers run: {_list_tiers(self._run) or 'none'}; server: {servers}",
        ]


def _list_tiers(counts: Counter[str]) -> str:
    return ", ".join(f"{tier} ({_count(counts[tier])})" for tier in TIERS if counts[tier])


def _count(tests: int) -> str:
    return f"{tests} test{'' if tests == 1 else 's'}"
