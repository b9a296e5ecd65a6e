"""The demo, shortened: `make demo` runs the same with more jobs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from commandline import ROOT, child_environment
from waiting import eventually

# Longer than the demo itself waits, which is some interpreters that take long to come up beside other tests.
PATIENCE_SECONDS = 360.0


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS + 30)
def test_the_demo_does_every_job_and_goes_back_to_zero() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--jobs", "600"],
        cwd=ROOT,
        env=child_environment({}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"600 jobs done, 0 lost, though process \d+ was killed", done.stdout)
    assert re.search(r"0 -> [1-6] -> 0 replicas in \d+ s", done.stdout)
    assert re.search(r"first job running \d+\.\d s after the wave; slowest start \d+\.\d s", done.stdout)


@pytest.mark.slow
async def test_the_demo_can_be_stopped() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=child_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shown: list[str] = []

    def has_begun() -> bool:
        assert demo.stdout is not None
        shown.append(demo.stdout.readline())
        return "grows from" in shown[-1]

    try:
        await eventually(has_begun, 60)
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == 130, rest
    assert "stopped before the end" in rest
    assert "Traceback" not in rest
