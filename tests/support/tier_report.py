"""The last lines of `make test`: which tiers ran on this machine, which did not and why.

`make test` runs pytest several times, and other programs beside it. Each of them adds a line to the file that
`TIER_REPORT` names; this program, called last and also after a failure, puts them together. Who takes part in no
`make test` finds no such variable and adds nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REPORT_VARIABLE: Final = "TIER_REPORT"
# The last mark that a test has says where it belongs: what needs a cluster is slow as well.
TIERS: Final = ("fast", "slow", "cluster", "e2e", "docker")


@dataclass(frozen=True)
class TierRun:
    """What one program of a run did: tests by tier, and for what it left undone the reason."""

    run: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    skipped: Sequence[tuple[str, str, int]] = ()  # tier, reason, how many tests
    left_undone: Mapping[str, str] = field(default_factory=dict)  # no tests, such as a step as a whole


def append_run(run: TierRun, report: str | None) -> None:
    """Add what was done to the report, if there is one."""
    if report:
        with Path(report).open(
            "a"
        ) as file:  # one write, so that programs side by side do not mix their lines
            file.write(json.dumps(vars(run)) + "\n")


def read_runs(report: Path) -> list[TierRun]:
    if not report.exists():  # nobody came as far as that
        return []
    return [TierRun(**json.loads(line)) for line in report.read_text().splitlines()]


def build_lines(steps: Mapping[str, str], runs: Iterable[TierRun], about_kind: str) -> list[str]:
    """Say in plain lines what became of the steps of `make test`, and of the tests in them."""
    run: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    skipped: Counter[tuple[str, str]] = Counter()
    left_undone: dict[str, str] = {}
    for part in runs:
        run.update(part.run)
        failed.update(part.failed)
        skipped.update({(tier, reason): count for tier, reason, count in part.skipped})
        left_undone |= part.left_undone
    outcomes = {step: "not run" if step in left_undone else outcome for step, outcome in steps.items()}
    absent = [tier for tier in TIERS if not run[tier]]
    return [
        "make test, all together:",
        f"  steps: {', '.join(f'{step} {outcome}' for step, outcome in outcomes.items())}",
        f"  tests run: {tell_tiers(run) or 'none'}",
        *([f"  tests failed: {tell_tiers(failed)}"] if failed.total() else []),
        *([f"  tiers without a single test: {', '.join(absent)}"] if absent else []),
        *(
            f"  tests skipped: {tier} ({tell_tests(count)}): {reason}"
            for (tier, reason), count in sorted(skipped.items())
        ),
        *(f"  not run: {what}: {reason}" for what, reason in left_undone.items()),
        f"  kind: {about_kind}",
    ]


def tell_tiers(counts: Counter[str]) -> str:
    return ", ".join(f"{tier} ({tell_tests(counts[tier])})" for tier in TIERS if counts[tier])


def tell_tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"


def main() -> int:
    """`note WHAT REASON` adds to the report; `tell STEP=OUTCOME…` prints it."""
    match sys.argv[1:]:
        case ["note", what, reason]:
            append_run(TierRun(left_undone={what: reason}), os.environ.get(REPORT_VARIABLE))
        case ["tell", *steps]:
            from kind_cluster import tell_about_kind  # which needs more than who only notes something

            outcomes = dict(step.split("=", 1) for step in steps)
            runs = read_runs(Path(os.environ[REPORT_VARIABLE]))
            for line in build_lines(outcomes, runs, tell_about_kind()):
                print(line, flush=True)  # noqa: T201  speaks to the person who runs make
        case _:
            print(f"usage: {sys.argv[0]} note WHAT REASON | tell STEP=OUTCOME…")  # noqa: T201  as above
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
