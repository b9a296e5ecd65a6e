"""Draws a run of the demo as an SVG: waiting jobs and the size of the pool over time. Pure: values in, text out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, LEFT, RIGHT = 760, 48, 16
PANEL_HEIGHT, TOP, GAP = 110, 34, 44
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .axis { stroke: #8b949e } .mark { stroke: #d1495b; stroke-dasharray: 4 3 }
  .waiting { fill: #e09f3e; opacity: .75 } .asked { fill: #6b8cae; opacity: .45 } .ready { fill: #6b8cae }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""


@dataclass(frozen=True)
class Sample:
    """The pool at one moment after the wave."""

    elapsed_seconds: float
    waiting: int
    replicas: int
    ready: int


def build_plot(samples: Sequence[Sample], killed_at_seconds: float | None) -> str:
    """Return two panels over one axis of time: jobs that wait, and replicas (the darker part is ready)."""
    end_seconds = max((sample.elapsed_seconds for sample in samples), default=0.0) or 1.0

    def column(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end_seconds

    waiting_bottom = TOP + PANEL_HEIGHT
    replicas_bottom = waiting_bottom + GAP + PANEL_HEIGHT
    parts = [
        *_panel("Jobs that wait", samples, {"waiting": lambda s: s.waiting}, column, waiting_bottom),
        *_panel(
            "Replicas: requested, and ready (darker)",
            samples,
            {"asked": lambda s: s.replicas, "ready": lambda s: s.ready},
            column,
            replicas_bottom,
        ),
    ]
    if killed_at_seconds is not None:
        x = column(killed_at_seconds)
        parts += [
            f'<line class="mark" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{replicas_bottom}"/>',
            f'<text x="{x + 6:.1f}" y="{TOP + 14}">kill -9 of a worker process</text>',
        ]
    for second in range(0, int(end_seconds) + 1, 5):
        parts.append(
            f'<text x="{column(second):.1f}" y="{replicas_bottom + 18}" text-anchor="middle">{second} s</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {replicas_bottom + 28}" role="img" '
        f'aria-label="Waiting jobs and replicas of a pool over a wave of jobs">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(
    title: str,
    samples: Sequence[Sample],
    series: dict[str, Callable[[Sample], int]],
    column: Callable[[float], float],
    bottom: float,
) -> list[str]:
    largest = max((value(sample) for sample in samples for value in series.values()), default=0) or 1
    top = bottom - PANEL_HEIGHT
    parts = [
        f'<text class="title" x="{LEFT}" y="{top - 10}">{title}</text>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{largest:,}</text>',
    ]
    for name, value in series.items():
        points = [f"{column(0):.1f},{bottom}"]
        height = 0.0
        for sample in samples:
            x, before = column(sample.elapsed_seconds), height
            height = PANEL_HEIGHT * value(sample) / largest
            # A step keeps its height until the next change; between two changes no point is needed.
            if height != before:
                points += [f"{x:.1f},{bottom - before:.1f}", f"{x:.1f},{bottom - height:.1f}"]
        points += [f"{WIDTH - RIGHT},{bottom - height:.1f}", f"{WIDTH - RIGHT},{bottom}"]
        parts.append(f'<polygon class="{name}" points="{" ".join(points)}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>')
    return parts
