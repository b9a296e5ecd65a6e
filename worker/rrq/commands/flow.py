"""``rrq flow``: everything that holds jobs back now."""

import click

from rrq.commands.flow_words import build_limit_table, build_parked_table, build_pause_table, flow_json
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line, print_table
from rrq.commands.redis_access import run_with_store
from rrq.store import JobStore


@click.command()
@settings_option
@json_option
def flow(settings_path: str | None, as_json: bool) -> None:
    """Show what holds jobs back: pauses with who and why, limits, and the jobs that wait for them."""
    state = run_with_store(settings_path, JobStore.read_flow)
    if as_json:
        print_json(flow_json(state))
        return
    tables = [build_pause_table(state), build_limit_table(state), build_parked_table(state)]
    shown = [table for table in tables if table.rows]
    for table in shown:
        print_table(table)
    if not shown:
        print_line("Nothing is paused, limited or held back")
