"""``rrq audit``: what people did to queues, functions and jobs."""

import click

from rrq.commands.formatting import format_time, format_value
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import Table, print_json, print_line, print_table
from rrq.commands.redis_access import run_with_store

_COLUMNS = ("At", "Who", "Action", "Object", "Detail")


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Most entries to show."
)
@settings_option
@json_option
def audit(limit: int, settings_path: str | None, as_json: bool) -> None:
    """Show who paused, limited, cancelled, requeued, edited or deleted what, the newest first."""
    entries = run_with_store(settings_path, lambda store: store.read_audit(limit))
    if as_json:
        print_json(
            [
                {
                    "id": entry.entry_id,
                    "at": entry.at.isoformat(),
                    "actor": entry.actor,
                    "action": entry.action,
                    "object": entry.object,
                    "detail": entry.detail,
                }
                for entry in entries
            ]
        )
    elif not entries:
        print_line("Nobody has done anything yet")
    else:
        rows = [
            (
                format_time(entry.at),
                entry.actor,
                entry.action,
                entry.object,
                format_value(entry.detail) if entry.detail else "",
            )
            for entry in entries
        ]
        print_table(Table("Audit", _COLUMNS, rows))
