"""What the command line says about itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rrq.cli import rrq

HELP = {
    (): "RRQ: Reliable Redis Queue",
    ("worker",): "Manage RRQ workers",
    ("worker", "run"): "Run worker processes until a signal ends them",
    ("worker", "watch"): "restart it gracefully",
    ("check",): "health check",
    ("queue",): "Manage and inspect queues",
    ("queue", "list"): "List all active queues",
    ("queue", "stats"): "Show detailed statistics",
    ("job",): "Inspect and manage jobs",
    ("job", "show"): "Show detailed information",
    ("job", "list"): "List jobs with filters",
    ("dlq",): "Manage Dead Letter Queue (DLQ) jobs",
    ("dlq", "list"): "List jobs in the Dead Letter Queue",
    ("dlq", "stats"): "Show DLQ statistics and error patterns",
    ("dlq", "requeue"): "Requeue jobs from DLQ back to a live queue",
    ("dashboard",): "Serve a web page",
    ("dlq", "edit"): "Change the arguments of a dead letter",
    ("dlq", "delete"): "Delete dead letters for good",
    ("job", "cancel"): "Cancel jobs.",
    ("batch",): "Inspect batches",
    ("batch", "show"): "how many jobs of a batch have ended",
    ("pause",): "TARGET is queue:NAME, function:NAME or pool:NAMESPACE/NAME",
    ("resume",): "Resume a paused queue, function or pool",
    ("disable",): "Disable a function without a deployment",
    ("enable",): "Enable a function again",
    ("limit",): "Limit how many jobs run at once",
    ("limit", "list"): "List the limits",
    ("limit", "set"): "rrq limit set function:send --concurrency 5",
    ("limit", "remove"): "Remove a limit that was set by hand",
    ("flow",): "Show the pauses with who and why",
    ("audit",): "Show who paused, limited, cancelled",
    ("monitor",): "monitoring dashboard",
    ("debug",): "Debug and testing tools",
    ("debug", "submit"): "Submit one real job",
    ("completion",): "fish/completions/rrq.fish",
}


def test_help_says_what_a_command_does_and_lists_all_groups() -> None:
    for command, phrase in HELP.items():
        result = CliRunner().invoke(rrq, [*command, "-h"])
        assert result.exit_code == 0
        assert phrase in result.output
    shown = CliRunner().invoke(rrq, ["--help"]).output
    groups = {command[0] for command in HELP if command}
    assert groups == set(rrq.list_commands(click.Context(rrq)))
    for name in groups:
        assert f"\n  {name} " in shown


def test_usage_errors_exit_with_2() -> None:
    for arguments in (
        [],
        ["stats"],
        ["queue"],
        ["job", "show"],
        ["worker", "nothing"],
        ["completion", "tcsh"],
    ):
        assert CliRunner().invoke(rrq, arguments).exit_code == 2


def test_the_completion_script_names_our_variable() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_RRQ_COMPLETE" in CliRunner().invoke(rrq, ["completion", shell]).output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("dlq re", "requeue"), ("job cancel --due", "--due-for")],
)
def test_bash_completes_commands(typed: str, completed: str, tmp_path: Path) -> None:
    script = tmp_path / "rrq"
    script.write_text(CliRunner().invoke(rrq, ["completion", "bash"]).output)
    # What bash does when TAB is pressed after "rrq dlq re".
    ask = (
        f"source {script}; COMP_WORDS=(rrq {typed}); COMP_CWORD={len(typed.split())}; _rrq_completion rrq; "
        "echo ${COMPREPLY[*]}"
    )
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", ask],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == completed, done.stderr
