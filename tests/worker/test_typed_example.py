"""The example of the typed API, its own tests, and the pages that quote both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = "".join((ROOT / "examples" / name).read_text() for name in ("typed_jobs.py", "test_typed_jobs.py"))


def test_the_tests_of_the_example_pass_outside_of_this_project(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", tmp_path / "pytest.ini"),
            ROOT / "examples" / "test_typed_jobs.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^5 passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow  # starts a pod and ends it
def test_the_example_enqueues_and_a_worker_runs_it(redis_dsn: str) -> None:
    environment = os.environ | {"RRQ_REDIS_DSN": redis_dsn, "PYTHONPATH": _path_with(ROOT)}
    command = [sys.executable, "-m", "rrq", "worker", "run", "--settings", "examples.typed_jobs.settings"]
    worker = subprocess.Popen(
        [*command, "--num-workers", "1", "--queue", "default", "--queue", "mail"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "examples.typed_jobs"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    assert (done.returncode, done.stdout) == (0, "order 7: 12.50 EUR\n"), done.stderr


def test_what_the_pages_quote_is_in_the_example() -> None:
    for page in ("typed-api.md", "testing-jobs.md"):
        text = (ROOT / "docs" / page).read_text()
        quotes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert len(quotes) >= 3
        assert all(quote in EXAMPLES for quote in quotes)


def _path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
