"""The last lines of a test run, in one process and in several, and of `make test`: what ran, what did not, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tier_report import TierRun, append_run, build_lines, read_runs

ROOT = Path(__file__).parents[2]
SERVER = r"(Redis|Valkey) \d+\.\d+\.\d+"
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

GROUPED = """
import os, pytest

@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("number", range(6))
def test_grouped(number): print("in", os.environ["PYTEST_XDIST_WORKER"])
"""


def run_tests(
    folder: Path, *options: str, tests: str = TESTS, exit_code: int = 0, **environment: str
) -> list[str]:
    """Run a few tests beside the configuration of this project, and return the last lines."""
    folder.mkdir(exist_ok=True)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(tests)
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
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_run_in_two_processes_names_the_tiers_that_ran_and_those_that_did_not(tmp_path: Path) -> None:
    said = run_tests(tmp_path, "-n", "2", "-m", "not slow")
    assert "tests skipped: cluster (1 test): no Kubernetes here" in said
    assert "tiers left out: slow (1 test, not chosen), docker (1 test, run by make images-test)" in said
    [run] = [line for line in said if line.startswith("tiers run")]
    assert re.fullmatch(rf"tiers run: fast \(2 tests\); server: {SERVER} \(started here\)", run)


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    said = run_tests(tmp_path, "-n", "2", "--dist", "loadgroup", "-rP", tests=GROUPED)
    assert len({line for line in said if line.startswith("in gw")}) == 1


def test_tests_on_a_given_redis_run_one_after_the_other(tmp_path: Path, redis_dsn: str) -> None:
    said = run_tests(tmp_path, "-n", "2", RRQ_REDIS_DSN=redis_dsn)
    assert not [line for line in said if line.startswith("bringing up nodes")]
    assert "tests skipped: cluster (1 test): no Kubernetes here" in said
    [run] = [line for line in said if line.startswith("tiers run")]
    assert re.fullmatch(
        rf"tiers run: fast \(2 tests\), slow \(1 test\); server: {SERVER} \(RRQ_REDIS_DSN\)", run
    )


def test_a_folder_that_is_called_like_a_tier_makes_no_test_belong_to_it(tmp_path: Path) -> None:
    said = run_tests(tmp_path / "docker")
    [run] = [line for line in said if line.startswith("tiers run")]
    assert run.startswith("tiers run: fast (2 tests), slow (1 test); server: ")


FAILING = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError("twice is once")
@pytest.mark.slow
def test_fails(broken): assert False
@pytest.mark.slow
def test_passes(): pass
@pytest.mark.cluster
def test_cluster(): pytest.skip("no Kubernetes here")
"""


def test_runs_one_after_the_other_are_told_together(tmp_path: Path) -> None:
    report = tmp_path / "report"
    run_tests(tmp_path / "one", "-n", "2", TIER_REPORT=str(report))
    run_tests(tmp_path / "two", tests=FAILING, exit_code=1, TIER_REPORT=str(report))
    append_run(TierRun(left_undone={"stories": "Nodes need root."}), str(report))
    steps = {"tests": "FAILED", "chaos": "not reached", "stories": "passed"}
    assert build_lines(steps, read_runs(report), "not run, say") == [
        "make test, all together:",
        "  steps: tests FAILED, chaos not reached, stories not run",
        "  tests run: fast (2 tests), slow (3 tests)",
        "  tests failed: slow (1 test)",
        "  tiers without a single test: cluster, e2e, docker",
        "  tests skipped: cluster (2 tests): no Kubernetes here",
        "  not run: stories: Nodes need root.",
        "  kind: not run, say",
    ]


def test_a_run_that_nobody_asks_for_a_report_writes_none(tmp_path: Path) -> None:
    append_run(TierRun(run={"fast": 1}), None)
    assert read_runs(tmp_path / "report") == []


# `make test` itself, with steps that do nothing but what is said here.
STEPS = """
include Makefile
test-counted:
	@echo '{"run": {"fast": 1}}' >>"$$TIER_REPORT"
test-broken:
	@false
"""


def test_make_test_ends_with_all_steps_also_those_that_a_failure_kept_from_running(tmp_path: Path) -> None:
    (tmp_path / "steps.mk").write_text(STEPS)
    make = f"make --no-print-directory -f {tmp_path}/steps.mk"
    environment = Path(sys.executable).parents[1]
    done = subprocess.run(
        [
            *(*make.split(), "test", f"MAKE={make}", "STEPS=counted broken unreached"),
            *(f"VENV={environment}", "--assume-old", f"{environment}/.ready"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    said = done.stdout.splitlines()
    told = said[said.index("make test, all together:") :]
    assert told[1:4] == [
        "  steps: counted passed, broken FAILED, unreached not reached",
        "  tests run: fast (1 test)",
        "  tiers without a single test: slow, cluster, e2e, docker",
    ]
    assert told[-1].startswith("  kind: ")
