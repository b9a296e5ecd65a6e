"""How waiting jobs are chosen to be cancelled, for ``rrq job cancel`` and ``kubectl rrq cancel``."""

from collections.abc import Callable
from typing import Any

import click


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose among the jobs of a queue, and whether to ask first."""
    options = (
        click.option("--function", "function_name", help="Of the queue, only jobs of this function."),
        click.option(
            "--due-for",
            "due_for_seconds",
            type=click.IntRange(0, 1_000_000_000),
            metavar="SECONDS",
            help="Of the queue, only jobs that have been due for so long. Default: all, due or not.",
        ),
        click.option("--dry-run", is_flag=True, help="Only say how many would be cancelled."),
        click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask."),
    )
    for option in reversed(options):
        command = option(command)
    return command
