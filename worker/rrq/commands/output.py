"""Everything a command prints: tables for a terminal, plain text for a pipe, JSON for a program.

Only a terminal gets colours, boxes and wrapping. Whatever comes from a job is printed as text, never
as markup, and cannot send control characters.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rrq.commands.formatting import as_strict_json, printable
from rrq.commands.refusal import Refusal

if TYPE_CHECKING:
    from rich.console import OverflowMethod
    from rich.table import Table as RichTable

_STYLES = {
    "COMPLETED": "green",
    "ACTIVE": "cyan",
    "RETRYING": "yellow",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "MISSING": "red",
    "lost": "red",
    "draining": "yellow",
}


@dataclass(frozen=True)
class Table:
    """What a listing shows, whichever way it is printed."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII so that every terminal and locale can take it."""
    try:
        text = json.dumps(as_strict_json(value), indent=2, allow_nan=False)
    except RecursionError as error:
        raise Refusal(
            "ERROR: The data is nested too deeply to be printed. Try --raw, if there is one."
        ) from error
    click.echo(text)


def print_line(text: str = "") -> None:
    click.echo(printable(text))


def print_note(text: str) -> None:
    """Tell something about the answer that is no part of it."""
    click.echo(printable(text), err=True)


def print_scan_note(max_scan: int) -> None:
    """Tell that a command has not looked at everything."""
    print_note(f"Note: only {max_scan} jobs were looked at (--max-scan {max_scan}); 0 looks at all.")


def print_table(table: Table) -> None:
    if is_terminal():
        from rich.console import Console

        Console().print(build_rich_table(table))
    else:
        print_plain_table(table)


def print_plain_table(table: Table) -> None:
    """Print aligned columns, however wide; programs like ``cut`` and ``awk`` read them."""
    lines = [list(table.columns), *([printable(cell) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    click.echo(printable(table.title))
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def build_rich_table(table: Table, *, one_line: bool = False) -> "RichTable":
    """Return the table for a terminal; ``one_line`` cuts what is too long instead of folding it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(title=Text(printable(table.title)), title_justify="left", title_style="bold")
    for name in table.columns:
        rich_table.add_column(Text(name, no_wrap=one_line))
    overflow: OverflowMethod = "ellipsis" if one_line else "fold"
    for row in table.rows:
        rich_table.add_row(
            *(
                Text(printable(cell), style=_STYLES.get(cell, ""), no_wrap=one_line, overflow=overflow)
                for cell in row
            )
        )
    return rich_table


def print_panel(title: str, fields: Iterable[tuple[str, str]]) -> None:
    """Print named values, one per line; a value of several lines keeps them, indented."""
    lines = [line for name, value in fields for line in _field_lines(name, value)]
    if not is_terminal():
        click.echo(printable(title))
        for line in lines:
            click.echo(line)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console().print(Panel(Text("\n".join(lines)), title=Text(printable(title)), title_align="left"))


def _field_lines(name: str, value: str) -> list[str]:
    parts = [printable(line) for line in value.splitlines()] or [""]
    if len(parts) == 1:
        return [f"{name}: {parts[0]}"]
    return [f"{name}:", *(f"  {part}" for part in parts)]
