"""``rrq worker``: run workers, and run one that follows the source code."""

import click

from rrq.commands.worker_run import worker_run
from rrq.commands.worker_watch import worker_watch


@click.group()
def worker() -> None:
    """Manage RRQ workers (run, watch)."""


worker.add_command(worker_run)
worker.add_command(worker_watch)
