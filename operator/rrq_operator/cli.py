"""`rrq-operator`: which command lives where.

Commands are imported only when they are called: local mode must not wait for a Kubernetes client to load.
"""

from typing import Final

import click

from rrq.commands.lazy_group import LazyGroup
from rrq.commands.options import version_option

__all__ = ["main"]

_COMMANDS: Final = {
    "run": "rrq_operator.run_command:run_command",
    "local": "rrq_operator.local.command:local_command",
}


@click.group(cls=LazyGroup, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def main() -> None:
    """The operator for RRQ worker pools."""
