"""The command line: which command lives where.

Commands are imported only when they are called: ``rrq check`` runs as a probe every few seconds and
should not pay for the live views.
"""

import importlib
import os
import signal
import sys

if os.getpid() == 1:
    # The kernel drops signals that process 1 has no handler for. Until the supervisor has its own, a pod that
    # is told to end while it still loads simply ends; nothing has begun yet. Hence before the other imports.
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: sys.exit(0))

import click

from rrq.version import __version__

__all__ = ["rrq"]

_COMMANDS = {
    "check": "rrq.commands.check",
    "completion": "rrq.commands.completion",
    "debug": "rrq.commands.debug",
    "dlq": "rrq.commands.dlq",
    "job": "rrq.commands.job",
    "monitor": "rrq.commands.monitor",
    "queue": "rrq.commands.queue",
    "worker": "rrq.commands.worker",
}


class _CommandsOnDemand(click.Group):
    """A group whose commands are modules that each define a command of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=_CommandsOnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def rrq() -> None:
    """RRQ: Reliable Redis Queue."""
