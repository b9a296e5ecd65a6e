"""The monitor on a terminal: everything fits, whatever the size of the window."""

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rrq.commands.formatting import printable
from rrq.commands.monitor_view import build_header, build_tables
from rrq.commands.output import Table, build_rich_table
from rrq.inspect.overview import Overview

# Each table has a line above it, a title and its column names; boxes would take twice as many.
_LINES_AROUND_ROWS = 3
# The first line of the screen, which a narrow window folds.
_HEADER_LINES = 2
# Columns up to this width, which is that of a status or a number, are the last to be cut.
_SHORT_COLUMN = 12


def build_screen(overview: Overview | None, trouble: str | None, height: int) -> RenderableType:
    """Return what to draw; ``trouble`` comes first and the last picture stays below it, dimmed."""
    parts: list[RenderableType] = []
    if trouble is not None:
        parts.append(Text(printable(trouble), style="bold red"))
    if overview is not None:
        style = "bold" if trouble is None else "dim"
        parts.append(Text(build_header(overview), style=style))
        for table, rows in _share_out(build_tables(overview), height):
            parts += [Text(), _fit(table, rows)]
    return Group(*parts)


def _share_out(tables: list[Table], height: int) -> list[tuple[Table, int]]:
    """Divide the lines of the screen: short tables get what they need, long ones share the rest."""
    left = max(len(tables), height - _HEADER_LINES - _LINES_AROUND_ROWS * len(tables))
    shares: dict[str, int] = {}
    by_length = sorted(tables, key=lambda table: len(table.rows))
    for number, table in enumerate(by_length):
        share = max(1, left // (len(by_length) - number))
        shares[table.title] = min(len(table.rows), share)
        left -= shares[table.title]
    return [(table, shares[table.title]) for table in tables]


def _fit(table: Table, most_rows: int) -> RichTable:
    hidden = len(table.rows) - most_rows
    title = table.title if hidden <= 0 else f"{table.title} ({hidden} more not shown)"
    drawn = build_rich_table(Table(title, table.columns, table.rows[:most_rows]), one_line=True)
    drawn.box, drawn.pad_edge = None, False
    for number, column in enumerate(drawn.columns):
        longest = max(len(row[number]) for row in (table.columns, *table.rows))
        # Columns that may wrap are the first to give way; their cells are cut all the same.
        column.no_wrap = longest <= _SHORT_COLUMN
    return drawn
