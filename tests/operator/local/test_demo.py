"""The demo, shortened: `make demo` runs the same with more jobs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from commandline import ROOT, child_environment
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "examples.demo", "--jobs", "200"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=child_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_the_demo_does_every_job_and_goes_back_to_zero(demo: subprocess.Popen[str]) -> None:
    told, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, told
    assert re.search(r"200 jobs done, 0 lost, though process \d+ was killed", told)
    assert re.search(r"0 -> [12] -> 0 replicas in \d+ s", told)
    assert re.search(r"first job running \d+\.\d s after the wave; slowest start \d+\.\d s", told)


async def test_the_demo_can_be_stopped(demo: subprocess.Popen[str]) -> None:
    shown: list[str] = []

    def has_begun() -> bool:
        assert demo.stdout is not None
        shown.append(demo.stdout.readline())
        return "grows from" in shown[-1]

    await eventually(has_begun, 60)
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, rest
    assert "stopped before the end" in rest
    assert "Traceback" not in rest
