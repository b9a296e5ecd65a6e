"""`rrq-operator`: which command lives where.

Commands are imported only when they are called: local mode must not wait for a Kubernetes client to load.
"""

import importlib
from typing import Final

import click

from rrq.version import __version__

__all__ = ["main"]

_COMMANDS: Final = {
    "run": ("rrq_operator.run_command", "run_command"),
    "local": ("rrq_operator.local.command", "local_command"),
}


class _CommandsOnDemand(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_CommandsOnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """The operator for RRQ worker pools."""
