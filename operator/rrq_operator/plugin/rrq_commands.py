"""Runs commands of ``rrq`` on the Redis of a pool.

They take their settings by dotted path, so the settings of the pool get one: that of ``chosen`` below.
"""

import os
from typing import Any

import click

from rrq.commands.settings_loading import ENVIRONMENT_WINS
from rrq.settings import RRQSettings

chosen: RRQSettings | None = None


def run_rrq_command(command: click.Command, settings: RRQSettings, **options: Any) -> None:
    """Call a command of ``rrq`` with options by the names of its parameters."""
    global chosen
    # Set for workers; here the variables of a shell must not win over the pool.
    os.environ[ENVIRONMENT_WINS] = "0"
    chosen = settings
    assert command.callback is not None
    command.callback(**options, settings_path=f"{__name__}.chosen")
