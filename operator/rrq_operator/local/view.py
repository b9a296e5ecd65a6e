"""What local mode shows, in a terminal and as lines. Pure."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rrq.commands.formatting import printable
from rrq_operator.local.snapshot import LocalSnapshot, draw_chart

EVENTS_SHOWN = 8


def build_screen(snapshots: Sequence[LocalSnapshot], events: Sequence[str], footer: str) -> RenderableType:
    parts: list[RenderableType] = []
    for shown in snapshots:
        parts += [
            _build_figures(shown),
            Text(f"  {shown.words}", style="cyan"),
            _build_charts(shown),
            Text(),
        ]
    parts += [
        Text(printable(event), style="dim", no_wrap=True, overflow="ellipsis")
        for event in events[-EVENTS_SHOWN:]
    ]
    return Group(*parts, Text(footer, style="dim italic"))


def _build_figures(shown: LocalSnapshot) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row("pool", "ready", "wanted", "due", "later", "busy", "attempts done", style="dim")
    table.add_row(
        Text(shown.name, style="bold"),
        _describe_size(shown),
        str(shown.desired),
        _describe_count(shown.due),
        _describe_count(shown.later),
        _describe_count(shown.busy),
        Text(f"{shown.done:,}", style="green"),
    )
    return table


def _build_charts(shown: LocalSnapshot) -> Table:
    depths = [sample.depth for sample in shown.history]
    sizes = [sample.replicas for sample in shown.history]
    table = Table.grid(padding=(0, 1))
    for label, values, style in (("  jobs", depths, "yellow"), ("  replicas", sizes, "green")):
        largest = max((value for value in values if value is not None), default=0)
        table.add_row(
            Text(label, style="dim"),
            Text(draw_chart(values), style=style),
            Text(f"max {largest:,}", style="dim"),
        )
    return table


def describe(shown: LocalSnapshot) -> str:
    """Return a pool as one line, for a log."""
    due, later, busy = ("?" if known is None else known for known in (shown.due, shown.later, shown.busy))
    return (
        f"{shown.name}: {_describe_size(shown)} ready, {shown.desired} wanted, {due} due, "
        f"{later} later, {busy} busy, {shown.done} attempts done: {shown.words}"
    )


def _describe_count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _describe_size(shown: LocalSnapshot) -> str:
    leaving = f" (+{shown.leaving} leaving)" if shown.leaving else ""
    return f"{shown.ready}/{shown.replicas}{leaving}"
