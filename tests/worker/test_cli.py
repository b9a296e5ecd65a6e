"""The command line, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from fleet import all_done
from rrq.cli import rrq

if TYPE_CHECKING:
    import pytest

    from rrq.client import RRQClient

ROOT = Path(__file__).parents[2]


def test_help_says_what_this_is() -> None:
    result = CliRunner().invoke(rrq, ["-h"])
    assert result.exit_code == 0
    assert "RRQ: Reliable Redis Queue" in result.output
    assert "Manage RRQ workers" in result.output


async def test_a_burst_runs_what_is_due_and_exits(client: RRQClient, redis_dsn: str) -> None:
    jobs = [await client.enqueue("send_email", f"user{number}@example.org") for number in range(5)]
    command = [
        sys.executable,
        "-m",
        "rrq",
        "worker",
        "run",
        "--burst",
        "--settings",
        "examples.jobs.settings",
    ]
    environment = os.environ | {"RRQ_REDIS_DSN": redis_dsn, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "serves rrq:queue:default" in done.stdout
    await all_done(client.job_store, [job for job in jobs if job is not None], 1.0)


def test_settings_without_a_registry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RRQ_SETTINGS", raising=False)
    result = CliRunner().invoke(rrq, ["worker", "run"])
    assert result.exit_code == 1
    assert "ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings." in result.output


def test_a_settings_path_that_cannot_be_imported_is_named() -> None:
    result = CliRunner().invoke(rrq, ["worker", "run", "--settings", "no_such_module.settings"])
    assert result.exit_code == 1
    assert "Could not import settings object 'no_such_module.settings'" in result.output


def test_a_settings_path_without_such_an_object_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_SETTINGS", "os.no_such_thing")
    result = CliRunner().invoke(rrq, ["worker", "run"])
    assert result.exit_code == 1
    assert "Unexpected error processing settings object 'os.no_such_thing'" in result.output
