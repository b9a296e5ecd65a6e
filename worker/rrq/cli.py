"""The command line: which command lives where.

Commands are imported only when they are called: ``rrq check`` runs as a probe every few seconds and
should not pay for the live views.
"""

import os
import signal
import sys

if os.getpid() == 1:
    # The kernel drops signals that process 1 has no handler for. Until the supervisor has its own, a pod that
    # is told to end while it still loads simply ends; nothing has begun yet. Hence before the other imports.
    # Not by an exception, which would be lost where Python lets none pass, as while it collects garbage. A burst
    # that has not run is not done.
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(os.EX_TEMPFAIL if "--burst" in sys.argv else 0))

import click

from rrq.commands.on_demand import CommandsOnDemand
from rrq.version import __version__

__all__ = ["rrq"]

_MODULES = (
    "audit", "batch", "check", "completion", "dashboard", "debug", "dlq", "flow", "job", "limit", "monitor", "queue",
    "worker",
)  # fmt: skip
_COMMANDS = {name: f"rrq.commands.{name}:{name}" for name in _MODULES} | {
    name: f"rrq.commands.pause:{name}" for name in ("pause", "resume", "disable", "enable")
}


@click.group(cls=CommandsOnDemand, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def rrq() -> None:
    """RRQ: Reliable Redis Queue."""
