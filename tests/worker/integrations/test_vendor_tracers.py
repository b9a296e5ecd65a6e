"""Logfire and Datadog get their spans: tried with the real packages, which the lock leaves out for their size.

They are installed once into a folder under `.cache/`, which only a test process of its own sees. A download of 80 MB
is nothing for every run: `make nightly` asks for it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("logfire==5.2.0", "ddtrace==4.16.0")
CASE = ROOT / "tests" / "support" / "vendor_tracers_case.py"


def install_vendors() -> Path:
    folder = ROOT / ".cache" / "vendor-tracers"
    wanted, installed = "\n".join(PACKAGES), folder / "installed.txt"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        # Two test runs at once must not install into the same folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != wanted:
            options = ("--quiet", "--no-compile", "--upgrade", "--target", str(folder))
            subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, *PACKAGES], check=True, timeout=300
            )
            installed.write_text(wanted)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not os.environ.get("RRQ_VENDOR_TRACERS"),
    reason="RRQ_VENDOR_TRACERS=1 downloads logfire and ddtrace, 80 MB, and tries them; make nightly does",
)
def test_logfire_and_datadog_get_the_spans_of_a_job() -> None:
    # Last on the path: what the lock names is what runs, and only what is missing comes from the folder.
    last = f"import sys, pytest; sys.path.append({str(install_vendors())!r}); sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", last, "-q", "-p", "no:ddtrace", "-p", "no:cacheprovider", str(CASE)],
        cwd=ROOT,
        env=os.environ | {"DD_TRACE_AGENT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
