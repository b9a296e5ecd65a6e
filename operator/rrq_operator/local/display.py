"""Shows a session while it runs: live in a terminal, as lines elsewhere."""

import asyncio
import contextlib
from collections import deque
from time import monotonic

import click
from rich.console import Console, RenderableType
from rich.live import Live

from rrq.commands.formatting import printable
from rrq_operator.local.session import LocalSession
from rrq_operator.local.view import EVENTS_SHOWN, build_screen, describe

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 2.0


class Display:
    """Takes events as they come, and looks at the session now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began_at = monotonic()
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._last_lines: list[str] = []

    def tell(self, pool: str, text: str) -> None:
        """Show one line about what has happened to a pool, or to all of them."""
        elapsed_seconds = monotonic() - self._began_at
        line = f"{elapsed_seconds:6.1f} s  {pool}{': ' if pool else ''}{text}"
        self._events.append(line)
        if not self.console.is_terminal:
            self._print(line)

    async def run(self, session: LocalSession) -> None:
        """Show the session until cancelled, and once more then."""
        if not self.console.is_terminal:
            while True:
                self._print_changes(session)
                await asyncio.sleep(_LINE_SECONDS)
        with Live(console=self.console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self._draw(session), refresh=True)
                    await asyncio.sleep(_REFRESH_SECONDS)
            finally:
                live.update(self._draw(session), refresh=True)

    def _draw(self, session: LocalSession) -> RenderableType:
        footer = "Ctrl+C drains and ends"
        if session.is_stopping:
            footer = "ended" if session.is_gone else "draining; Ctrl+C again hurries"
        return build_screen(session.snapshots(), list(self._events), footer)

    def _print_changes(self, session: LocalSession) -> None:
        lines = [describe(shown) for shown in session.snapshots()]
        for line in lines:
            if line not in self._last_lines:
                self._print(f"{monotonic() - self._began_at:6.1f} s  {line}")
        self._last_lines = lines

    def _print(self, line: str) -> None:
        # Not with rich, which ends the program when a reader such as head has gone; replicas have to be drained.
        with contextlib.suppress(OSError):
            click.echo(printable(line))
