"""Asks the package index what is known against every version in requirements/*.lock: `make audit`.

The index answers for one version where it can, and for the newest one always; of a version for which it answers
neither way nothing is known, and that is what is said. Ends with 0 when all are known to be clean, with 1 when
something is known against one, with 3 when the index could not tell for all of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI  # no public name tells it

LOCKS = Path(__file__).parents[1] / "requirements"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_TIMEOUT_SECONDS = 20.0
CLEAN, FOUND, UNKNOWN = 0, 1, 3


@dataclass(frozen=True)
class Finding:
    """What is known about one version; `faults` is None when nothing is."""

    name: str
    version: str
    faults: tuple[str, ...] | None
    reason: str = ""


def parse_pins(text: str) -> set[tuple[str, str]]:
    return {(name.lower(), version) for name, version in _PIN.findall(text)}


def judge(name: str, version: str, of_version: Any, of_newest: Any) -> Finding:
    """Make a finding of the two answers of the index, each None when there was none."""
    for answer in (of_version, of_newest):
        if not isinstance(answer, dict) or "vulnerabilities" not in answer:
            continue
        if (answer.get("info") or {}).get("version") != version:
            continue
        faults = [fault for fault in answer["vulnerabilities"] if not fault.get("withdrawn")]
        return Finding(name, version, tuple(_describe(fault) for fault in faults))
    newest = ((of_newest or {}).get("info") or {}).get("version")
    reason = f"the index tells of {newest} alone" if newest else "the index has no answer"
    return Finding(name, version, None, reason)


def _describe(fault: dict[str, Any]) -> str:
    names = ", ".join([str(fault.get("id")), *map(str, fault.get("aliases") or ())])
    mended = ", ".join(map(str, fault.get("fixed_in") or ())) or "no version yet"
    return f"{names}; mended in {mended}"


def read_index_url() -> str:
    """Where pip looks, without the last part of the path, which is that of its own pages."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    # What pip does without any setting is for pip to know.
    url = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or PyPI.simple_url
    return url.rstrip("/").removesuffix("/simple")


def ask(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def audit(pin: tuple[str, str], index: str) -> Finding:
    name, version = pin
    of_version = ask(f"{index}/pypi/{name}/{version}/json")
    of_newest = None if of_version else ask(f"{index}/pypi/{name}/json")
    return judge(name, version, of_version, of_newest)


def report(findings: list[Finding]) -> tuple[str, int]:
    """Return the words for a person, and the exit code."""
    bad = [finding for finding in findings if finding.faults]
    unknown = [finding for finding in findings if finding.faults is None]
    lines = [f"VULNERABLE {one.name} {one.version}: {fault}" for one in bad for fault in one.faults or ()]
    lines += [f"unknown    {one.name} {one.version}: {one.reason}" for one in unknown]
    clean = len(findings) - len(bad) - len(unknown)
    lines.append(f"{len(findings)} versions: {clean} clean, {len(bad)} vulnerable, {len(unknown)} unknown")
    return "\n".join(lines), FOUND if bad else UNKNOWN if unknown else CLEAN


def main() -> int:
    pins = sorted(set().union(*(parse_pins(lock.read_text()) for lock in LOCKS.glob("*.lock"))))
    index = read_index_url()
    with ThreadPoolExecutor(4) as pool:
        words, code = report(list(pool.map(lambda pin: audit(pin, index), pins)))
    sys.stdout.write(words + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
