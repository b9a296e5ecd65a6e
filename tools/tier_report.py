"""The last lines of a run of several steps, such as `make test`: what became of each step, and what the tests in them said.

Every program of the run adds its lines to the file that `TIER_REPORT` names; this one, called last and also after a
failure, prints them. Without that variable nobody adds anything. `TIER_STEP` names the step to the programs in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

REPORT_VARIABLE: Final = "TIER_REPORT"
STEP_VARIABLE: Final = "TIER_STEP"
PASSED: Final = "passed"


def append_lines(lines: list[str], report: str | None) -> None:
    if report:
        with Path(report).open(
            "a"
        ) as file:  # one write, so that programs side by side do not mix their lines
            file.write("".join(f"{line}\n" for line in lines))


def describe_not_run(what: str, reason: str) -> str:
    return f"not run: {what}: {' '.join(reason.split())}"


def note(what: str, reason: str) -> None:
    """Tell why something was left undone that is no test, such as a step as a whole."""
    append_lines([describe_not_run(what, reason)], os.environ.get(REPORT_VARIABLE))


def tell(outcomes: list[str], report: Path) -> str:
    """Return what became of the steps, given as STEP=OUTCOME; one that says why it was not run is no success.

    A step that failed stays failed: something of it was run.
    """
    lines = report.read_text().splitlines() if report.exists() else []  # nobody came as far as that
    steps = [outcome.split("=", 1) for outcome in outcomes]
    not_run = [step for step, _ in steps if any(line.startswith(f"not run: {step}:") for line in lines)]
    told = ", ".join(
        f"{step} {'not run' if step in not_run and outcome == PASSED else outcome}" for step, outcome in steps
    )
    return "\n  ".join(["all together:", f"steps: {told}", *lines])


def main() -> int:
    """`tell STEP=OUTCOME…` prints the report."""
    match sys.argv[1:]:
        case ["tell", *outcomes]:
            print(tell(outcomes, Path(os.environ[REPORT_VARIABLE])), flush=True)
        case _:
            print(f"usage: {sys.argv[0]} tell STEP=OUTCOME…")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
