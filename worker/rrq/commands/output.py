"""Everything a command prints: tables on a terminal, plain text into a pipe, JSON for a program, live views.

Only a terminal gets colours, boxes and wrapping. Job data is printed as text, never as markup, and without control
characters.
"""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rrq.commands.formatting import Table, printable
from rrq.commands.refusal import Refusal
from rrq.runtime.escaping import as_strict_json

if TYPE_CHECKING:
    from rich.console import OverflowMethod, RenderableType
    from rich.table import Table as RichTable

T = TypeVar("T")

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


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII, which every terminal and locale can show."""
    try:
        text = json.dumps(as_strict_json(value), indent=2, allow_nan=False)
    except RecursionError as error:
        raise Refusal(
            "ERROR: The data is nested too deeply to print. Try --raw, if the command has it."
        ) from error
    click.echo(text)


def print_line(text: str = "") -> None:
    click.echo(printable(text))


def print_note(text: str) -> None:
    """Print a remark about the answer on stderr, where it cannot spoil the output."""
    click.echo(printable(text), err=True)


def print_scan_note(max_scan: int) -> None:
    """Print that a command has not read everything."""
    print_note(f"Note: only {max_scan} jobs were read (--max-scan {max_scan}); --max-scan 0 reads all.")


def print_table(table: Table) -> None:
    if is_terminal():
        from rich.console import Console

        Console().print(build_rich_table(table))
    else:
        print_plain_table(table)


def print_plain_table(table: Table) -> None:
    """Print aligned columns, however wide, for programs like ``cut`` and ``awk``."""
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


@contextlib.contextmanager
def show_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal; yields a function that adds finished items."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Removed at the end: the line on stdout then says what was done.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda done: progress.advance(bar, done)


async def show_live(
    look: Callable[[], Awaitable[T]], draw: "Callable[[T, int], RenderableType]", refresh_seconds: float
) -> None:
    """Draw what ``look`` returns again and again until a signal ends it; ``draw`` gets the lines of the terminal."""
    from rich.console import Console
    from rich.live import Live

    stopping = asyncio.Event()
    # Signals instead of KeyboardInterrupt, so that the terminal is restored first.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while not stopping.is_set():
                looking = asyncio.ensure_future(look())
                # A server that hangs must not delay the end.
                await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():
                    looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    # The size is read each time, because the window may have changed.
                    live.update(draw(await looking, live.console.size.height), refresh=True)
                await asyncio.wait({stopped}, timeout=refresh_seconds)
    finally:
        stopped.cancel()
