"""Run a make target on every supported Python: `pythons.py make test-fast`.

An interpreter is one on PATH or of pyenv; where there is none, Debian's is unpacked (debian_python.py). A version that
cannot be had is said in one line, and is no failure. Each has an environment of its own below .cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from debian_python import NoSuchPython, unpack

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYENV = Path.home() / ".pyenv" / "versions"


def find(version: str) -> Path | None:
    """Return an interpreter that runs and can make virtual environments."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = PYENV.glob(f"{version}.*/bin/python{version}")
    for candidate in [*([Path(on_path)] if on_path else []), *sorted(of_pyenv)]:
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
            lines.append(f"Python {version}: not run. {reason}")
            continue
        began = time.monotonic()
        done = subprocess.run([*command, f"PYTHON={python}", f"VENV=.cache/python-{version}"], check=False)
        worst = max(worst, done.returncode)
        outcome = "FAILED" if done.returncode else "passed"
        lines.append(f"Python {version}: {outcome} in {time.monotonic() - began:.0f} s ({python})")
    sys.stdout.write("\n".join(lines) + "\n")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
