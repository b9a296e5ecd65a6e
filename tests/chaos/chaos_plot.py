"""Draws a run as an SVG: throughput and waiting jobs over time, with the faults marked. Pure: values in, text out."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from chaos_ledger import EFFECT
from fault_plan import BY_NAME, KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidence import Evidence

WIDTH, LEFT, RIGHT = 900, 56, 12
ROW_HEIGHT, PANEL_HEIGHT, GAP = 16, 130, 34
TOP = 34
#: The families from top to bottom, each a row of marks.
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS))
MOST_COLUMNS = 400
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 } .small { font-size: 11px }
  .rate { fill: #6b8cae } .backlog { fill: #e09f3e } .axis { stroke: #8b949e; stroke-width: 1 }
  .fault { fill: #6b8cae } .outage { fill: #d1495b } .shade { fill: #d1495b; opacity: .13 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""


def build_plot(evidence: Evidence) -> str:
    """Return two panels over one axis of time, and a row of marks for each family of faults."""
    end_at = max([evidence.load_ended_at, *(sample.at for sample in evidence.samples)])
    seconds = max(1.0, end_at - evidence.load_begun_at)
    scale = _Scale(evidence.load_begun_at, seconds)
    rates_top = TOP + 12
    backlog_top = rates_top + PANEL_HEIGHT + GAP
    marks_top = backlog_top + PANEL_HEIGHT + GAP
    height = marks_top + ROW_HEIGHT * len(FAMILIES) + 28
    bottom = marks_top + ROW_HEIGHT * len(FAMILIES)
    parts = [
        *_shades(evidence, scale, rates_top, bottom),
        *_panel("Jobs done per second", "rate", _rates(evidence, scale), rates_top),
        *_panel("Jobs that are due and wait", "backlog", _backlogs(evidence, scale), backlog_top),
        *_marks(evidence, scale, marks_top),
        *_axis(scale, bottom),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Throughput and waiting jobs of a chaos run">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Scale:
    """From moments to columns of the plot, a second or more wide."""

    def __init__(self, begun_at: float, seconds: float) -> None:
        self.begun_at = begun_at
        self.seconds = seconds
        self.column_seconds = max(1.0, seconds / MOST_COLUMNS)
        self.columns = int(seconds / self.column_seconds) + 1

    def column(self, at: float) -> int:
        return int((at - self.begun_at) / self.column_seconds)

    def x(self, at: float) -> float:
        share = min(1.0, max(0.0, (at - self.begun_at) / self.seconds))
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def _rates(evidence: Evidence, scale: _Scale) -> list[float]:
    counts = [0.0] * scale.columns
    for entry in evidence.ledger:
        if entry.event == EFFECT and 0 <= scale.column(entry.at) < scale.columns:
            counts[scale.column(entry.at)] += 1 / scale.column_seconds
    return counts


def _backlogs(evidence: Evidence, scale: _Scale) -> list[float]:
    most = [0.0] * scale.columns
    for sample in evidence.samples:
        column = scale.column(sample.at)
        # Unknown is not zero, but it cannot be drawn either: the shade behind it says that Redis was away.
        if sample.backlog is not None and 0 <= column < scale.columns:
            most[column] = max(most[column], sample.backlog)
    return most


def _panel(title: str, style: str, values: Sequence[float], top: float) -> list[str]:
    largest = max([1.0, *values])
    width = (WIDTH - LEFT - RIGHT) / len(values)
    points = [f"{LEFT:.1f},{top + PANEL_HEIGHT:.1f}"]
    for index, value in enumerate(values):
        y = top + PANEL_HEIGHT * (1 - value / largest)
        points += [f"{LEFT + index * width:.1f},{y:.1f}", f"{LEFT + (index + 1) * width:.1f},{y:.1f}"]
    points.append(f"{WIDTH - RIGHT:.1f},{top + PANEL_HEIGHT:.1f}")
    return [
        f'<text class="title" x="{LEFT}" y="{top - 8:.0f}">{escape(title)}</text>',
        f'<text class="small" x="{LEFT - 6}" y="{top + 9:.0f}" text-anchor="end">{largest:,.0f}</text>',
        f'<text class="small" x="{LEFT - 6}" y="{top + PANEL_HEIGHT:.0f}" text-anchor="end">0</text>',
        f'<polygon class="{style}" points="{" ".join(points)}"/>',
    ]


def _shades(evidence: Evidence, scale: _Scale, top: float, bottom: float) -> list[str]:
    return [
        f'<rect class="shade" x="{scale.x(fault.begun_at):.1f}" y="{top:.1f}" '
        f'width="{max(1.0, scale.x(fault.ended_at) - scale.x(fault.begun_at)):.1f}" height="{bottom - top:.1f}"/>'
        for fault in evidence.faults
        if fault.is_outage
    ]


def _marks(evidence: Evidence, scale: _Scale, top: float) -> list[str]:
    parts = [
        f'<text class="small" x="{LEFT - 6}" y="{top + row * ROW_HEIGHT + 11:.0f}" text-anchor="end">{family}</text>'
        for row, family in enumerate(FAMILIES)
    ]
    for fault in evidence.faults:
        y = top + FAMILIES.index(BY_NAME[fault.kind].family) * ROW_HEIGHT + 3
        x = scale.x(fault.begun_at)
        width = max(1.5, scale.x(fault.ended_at) - x)
        style = "outage" if fault.is_outage else "fault"
        parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="10">'
            f"<title>{escape(fault.kind)}</title></rect>"
        )
    return parts


def _axis(scale: _Scale, bottom: float) -> list[str]:
    step = next((step for step in (10, 30, 60, 120, 300, 600) if scale.seconds / step <= 12), 1200)
    parts = [
        f'<line class="axis" x1="{LEFT}" y1="{bottom + 4:.0f}" x2="{WIDTH - RIGHT}" y2="{bottom + 4:.0f}"/>'
    ]
    for second in range(0, int(scale.seconds) + 1, step):
        label = f"{second} s" if step < 60 else f"{second // 60} min"
        x = scale.x(scale.begun_at + second)
        parts.append(
            f'<text class="small" x="{x:.1f}" y="{bottom + 19:.0f}" text-anchor="middle">{label}</text>'
        )
    return parts
