"""The command line: which command lives where.

Commands are imported only when they are called: ``rrq check`` runs as a probe every few seconds and
should not pay for the live views.
"""

import click

from rrq.commands.lazy_group import CommandsOnDemand
from rrq.commands.options import version_option

__all__ = ["rrq"]

_MODULES = (
    "audit", "batch", "check", "completion", "dashboard", "debug", "dlq", "flow", "job", "limit", "monitor", "queue",
    "worker",
)  # fmt: skip
_COMMANDS = {name: f"rrq.commands.{name}:{name}" for name in _MODULES} | {
    name: f"rrq.commands.pause:{name}" for name in ("pause", "resume", "disable", "enable")
}


@click.group(cls=CommandsOnDemand, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def rrq() -> None:
    """RRQ: Reliable Redis Queue."""
