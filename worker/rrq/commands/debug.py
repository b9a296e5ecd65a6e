"""``rrq debug``: make jobs and workers up, submit real jobs by hand, clear away what is left."""

import click

from rrq.commands.debug_clear import debug_clear
from rrq.commands.debug_generate import debug_generate_jobs, debug_generate_workers
from rrq.commands.debug_submit import debug_stress_test, debug_submit


@click.group()
def debug() -> None:
    """Debug and testing tools: not for a Redis that others rely on."""


debug.add_command(debug_generate_jobs)
debug.add_command(debug_generate_workers)
debug.add_command(debug_submit)
debug.add_command(debug_clear)
debug.add_command(debug_stress_test)
