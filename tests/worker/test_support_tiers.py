"""The last lines of a test run, in one process and in several: what ran, what did not, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_quick(redis_dsn): pass
def test_half_a_surrogate_pair_is_printed(): print("\\udcff")
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.cluster
def test_cluster(): pytest.skip("no Kubernetes here")
@pytest.mark.docker
def test_docker(): pass
"""


def run_tests(folder: Path, *options: str, **environment: str) -> list[str]:
    """Run a few tests beside the configuration of this project, and return the last lines."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(TESTS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)),
            *("-c", str(ROOT / "pyproject.toml"), *options, str(folder)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests" / "support"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_run_in_two_processes_names_the_tiers_that_ran_and_those_that_did_not(tmp_path: Path) -> None:
    said = run_tests(tmp_path, "-n", "2", "-m", "not slow")
    assert "tests skipped: cluster (1 test): no Kubernetes here" in said
    assert "tiers left out: slow (1 test, not chosen), docker (1 test, run by make images-test)" in said
    [run] = [line for line in said if line.startswith("tiers run")]
    assert run.startswith("tiers run: fast (2 tests); Redis: redis ")
    assert run.endswith("(started here)")


def test_tests_on_a_given_redis_run_one_after_the_other(tmp_path: Path, redis_dsn: str) -> None:
    said = run_tests(tmp_path, "-n", "2", RRQ_REDIS_DSN=redis_dsn)
    assert not [line for line in said if line.startswith("bringing up nodes")]
    assert "tests skipped: cluster (1 test): no Kubernetes here" in said
    [run] = [line for line in said if line.startswith("tiers run")]
    assert run.startswith("tiers run: fast (2 tests), slow (1 test); Redis: redis ")
    assert run.endswith("(RRQ_REDIS_DSN)")
