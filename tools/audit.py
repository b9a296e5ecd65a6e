"""What is known against the locked versions, asked by pip-audit: `make audit`.

Ends with 0 when every version is known to be clean, with 1 when something is known against one, and with 3 when the
service could not be reached or has no answer for some: that is not known, and no reason to stop a nightly run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tier_report import note

ROOT = Path(__file__).parents[1]
PIP_AUDIT = ROOT / ".venv-tools" / "bin" / "pip-audit"
# The other locks repeat versions of dev.lock.
LOCKS = ("dev", "tools")
OPTIONS = (
    "--disable-pip",
    "--require-hashes",
    "--progress-spinner=off",
    "--desc=off",
    "--aliases=on",
    "--format=json",
)
CLEAN, FOUND, UNKNOWN = 0, 1, 3

Answer = list[dict[str, Any]]


def ask(lock: str) -> Answer | str:
    """Return what the service says of each version of a lock, or why it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [
            *(str(PIP_AUDIT), *OPTIONS),
            *("--output", str(answer), "--requirement", f"requirements/{lock}.lock"),
        ]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if not answer.exists():
            return (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
        audited: Answer = json.loads(answer.read_text())["dependencies"]
        return audited


def report(audited: Answer, problems: list[str]) -> tuple[list[str], int]:
    """Return the lines for a person, and the exit code."""
    bad = [one for one in audited if one.get("vulns")]
    unknown = [one for one in audited if "skip_reason" in one]
    lines = [
        f"VULNERABLE {one['name']} {one['version']}: {', '.join([fault['id'], *fault['aliases']])}; "
        f"fixed in {', '.join(fault['fix_versions']) or 'no version yet'}"
        for one in bad
        for fault in one["vulns"]
    ]
    if unknown:
        lines.append(f"{len(unknown)} versions are unknown. The first: {unknown[0]['skip_reason']}")
    lines += [f"The vulnerability service did not answer: {problem}" for problem in problems]
    lines.append(
        f"{len(audited)} versions audited: {len(audited) - len(bad) - len(unknown)} clean, "
        f"{len(bad)} vulnerable, {len(unknown)} unknown"
    )
    return lines, FOUND if bad else UNKNOWN if unknown or problems else CLEAN


def main() -> int:
    answers = [ask(lock) for lock in LOCKS]
    audited = [one for answer in answers if not isinstance(answer, str) for one in answer]
    problems = list(dict.fromkeys(answer for answer in answers if isinstance(answer, str)))
    lines, code = report(audited, problems)
    for line in lines:
        print(f"audit: {line}")
    if code == UNKNOWN and all("skip_reason" in one for one in audited):
        note("audit", lines[0])
    return code


if __name__ == "__main__":
    sys.exit(main())
