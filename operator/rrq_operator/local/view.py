"""What local mode shows, in a terminal and as lines. Pure."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rrq.commands.formatting import printable
from rrq_operator.local.pool_snapshot import LocalSnapshot, draw_chart

EVENTS_SHOWN = 8


def build_screen(pictures: Sequence[LocalSnapshot], events: Sequence[str], footer: str) -> RenderableType:
    parts: list[RenderableType] = []
    for picture in pictures:
        parts += [
            _build_figures(picture),
            Text(f"  {picture.words}", style="cyan"),
            _build_charts(picture),
            Text(),
        ]
    parts += [
        Text(printable(event), style="dim", no_wrap=True, overflow="ellipsis")
        for event in events[-EVENTS_SHOWN:]
    ]
    return Group(*parts, Text(footer, style="dim italic"))


def _build_figures(picture: LocalSnapshot) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row("pool", "ready", "wanted", "due", "later", "busy", "attempts done", style="dim")
    table.add_row(
        Text(picture.name, style="bold"),
        _describe_size(picture),
        str(picture.desired),
        "?" if picture.due is None else f"{picture.due:,}",
        f"{picture.later:,}",
        f"{picture.busy:,}",
        Text(f"{picture.done:,}", style="green"),
    )
    return table


def _build_charts(picture: LocalSnapshot) -> Table:
    depths = [sample.depth for sample in picture.history]
    sizes = [sample.replicas for sample in picture.history]
    table = Table.grid(padding=(0, 1))
    for label, values, style in (("  jobs", depths, "yellow"), ("  replicas", sizes, "green")):
        largest = max((value for value in values if value is not None), default=0)
        table.add_row(
            Text(label, style="dim"),
            Text(draw_chart(values), style=style),
            Text(f"max {largest:,}", style="dim"),
        )
    return table


def describe(picture: LocalSnapshot) -> str:
    """Return a pool as one line, for a log."""
    due = "?" if picture.due is None else picture.due
    return (
        f"{picture.name}: {_describe_size(picture)} ready, {picture.desired} wanted, {due} due, "
        f"{picture.later} later, {picture.busy} busy, {picture.done} attempts done: {picture.words}"
    )


def _describe_size(picture: LocalSnapshot) -> str:
    leaving = f" (+{picture.leaving} leaving)" if picture.leaving else ""
    return f"{picture.ready}/{picture.replicas}{leaving}"
