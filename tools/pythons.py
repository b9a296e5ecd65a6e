"""Run a make target on every supported Python: `pythons.py make test-fast`.

An interpreter is the one that runs this, one on PATH or of pyenv; where there is none, Debian's is unpacked
(debian_python.py). A version that cannot be had is said in one line, and is no failure. Each has an environment of its own
below .cache.

`pythons.py --lowest` prints the path of the oldest one, and ends with 3 where it cannot be had.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from debian_python import NoSuchPython, unpack
from tier_report import describe_not_run, note

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOWEST = VERSIONS[0]
NOT_HERE = 3
PYENV = Path.home() / ".pyenv" / "versions"


def find(version: str) -> Path | None:
    """Return an interpreter that runs and can make virtual environments."""
    is_this_one = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    on_path = shutil.which(f"python{version}")
    of_pyenv = PYENV.glob(f"{version}.*/bin/python{version}")
    own = [Path(sys.executable)] if is_this_one else []
    for candidate in [*own, *([Path(on_path)] if on_path else []), *sorted(of_pyenv)]:
        # A shim of pyenv is there for every version, and runs only those that are chosen.
        if (
            subprocess.run(
                [candidate, "-c", "import ensurepip, venv"], capture_output=True, check=False
            ).returncode
            == 0
        ):
            return candidate
    return None


def main(command: list[str]) -> int:
    lines, worst = [], 0
    for version in VERSIONS:
        try:
            python = find(version) or unpack(version)
        except NoSuchPython as reason:
            lines.append(describe_not_run(f"Python {version}", str(reason)))
            note(f"Python {version}", str(reason))
            continue
        began = time.monotonic()
        done = subprocess.run([*command, f"PYTHON={python}", f"VENV=.cache/python-{version}"], check=False)
        worst = max(worst, done.returncode)
        outcome = "FAILED" if done.returncode else "passed"
        lines.append(f"Python {version}: {outcome} in {time.monotonic() - began:.0f} s ({python})")
    sys.stdout.write("\n".join(lines) + "\n")
    return worst


def print_lowest() -> int:
    """The oldest versions of some packages have wheels of the oldest Python only."""
    try:
        sys.stdout.write(f"{find(LOWEST) or unpack(LOWEST)}\n")
    except NoSuchPython as reason:
        sys.stderr.write(f"{describe_not_run('lowest', str(reason))}\n")
        note("lowest", str(reason))
        return NOT_HERE
    return 0


if __name__ == "__main__":
    sys.exit(print_lowest() if sys.argv[1:] == ["--lowest"] else main(sys.argv[1:]))
