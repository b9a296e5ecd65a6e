"""``rrq dlq``: jobs that failed for good."""

import click

from rrq.commands.dlq_delete import dlq_delete
from rrq.commands.dlq_edit import dlq_edit
from rrq.commands.dlq_inspect import dlq_inspect
from rrq.commands.dlq_list import dlq_list
from rrq.commands.dlq_requeue import dlq_requeue
from rrq.commands.dlq_stats import dlq_stats


@click.group()
def dlq() -> None:
    """Manage Dead Letter Queue (DLQ) jobs."""


dlq.add_command(dlq_list)
dlq.add_command(dlq_stats)
dlq.add_command(dlq_inspect)
dlq.add_command(dlq_requeue)
dlq.add_command(dlq_edit)
dlq.add_command(dlq_delete)
