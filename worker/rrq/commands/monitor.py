"""``rrq monitor``: queues, workers and dead letters, live."""

import asyncio
import contextlib
import signal
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from rrq.broker.connection import REDIS_ERRORS
from rrq.commands.monitor_view import build_header, build_tables, to_json
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import is_terminal, print_json, print_line, print_table
from rrq.commands.redis_access import describe_trouble, open_store, run_with_store
from rrq.inspect.overview import Overview, OverviewReader
from rrq.settings_loading import load_settings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rich.live import Live


@click.command()
@click.option(
    "--refresh",
    "refresh_seconds",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--queues", "queue_names", multiple=True, help="Only this queue; may be repeated.")
@settings_option
@json_option
def monitor(
    refresh_seconds: float, queue_names: tuple[str, ...], settings_path: str | None, as_json: bool
) -> None:
    """Show a live monitoring dashboard of queues, workers, pods and dead letters.

    Ctrl-C ends it. Into a pipe or a file, and with --json, it prints one snapshot and ends.
    """
    if as_json or not is_terminal():
        overview = run_with_store(settings_path, lambda store: OverviewReader(store, queue_names).run_once())
        if as_json:
            print_json(to_json(overview))
        else:
            _print_snapshot(overview)
        return
    store = open_store(load_settings(settings_path))
    asyncio.run(_show_live(store, queue_names, refresh_seconds))


def _print_snapshot(overview: Overview) -> None:
    print_line(build_header(overview))
    for table in build_tables(overview):
        print_line()
        print_table(table)


async def _show_live(store: JobStore, queue_names: Collection[str], refresh_seconds: float) -> None:
    from rich.console import Console
    from rich.live import Live

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # As signals and not as KeyboardInterrupt: the terminal is put back in order first.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            view = _LiveView(live, store, queue_names)
            while not stopping.is_set():
                look = asyncio.create_task(view.run_once())
                # A Redis that hangs must not hold up the end.
                await asyncio.wait({look, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not look.done():
                    look.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await look
                await asyncio.wait({stopped}, timeout=refresh_seconds)
    finally:
        stopped.cancel()
        await store.aclose()


class _LiveView:
    """What is on the screen; keeps showing the last picture while Redis is away."""

    def __init__(self, live: "Live", store: JobStore, queue_names: Collection[str]) -> None:
        self._live = live
        self._store = store
        self._reader = OverviewReader(store, queue_names)
        self._overview: Overview | None = None
        self._away_since: datetime | None = None

    async def run_once(self) -> None:
        """Look once and show what was seen, or that nothing could be."""
        try:
            self._overview, self._away_since = await self._reader.run_once(), None
            self._show(None)
        except REDIS_ERRORS as error:
            self._away_since = self._away_since or datetime.now(UTC)
            trouble = describe_trouble(self._store.settings, error)
            self._show(f"No picture since {self._away_since:%H:%M:%S}Z, trying again. {trouble}")

    def _show(self, trouble: str | None) -> None:
        from rrq.commands.monitor_screen import build_screen

        # The size is asked for each time: the window may have changed.
        self._live.update(build_screen(self._overview, trouble, self._live.console.size.height), refresh=True)
