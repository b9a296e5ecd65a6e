"""Draw the throughput of all contenders as an SVG that reads well on light and dark pages.

Pure: values in, text out.
"""

from __future__ import annotations

from html import escape
from typing import Any

from roster import LABELS, OURS, SUPERVISED

WIDTH = 760
LABEL_WIDTH = 150
BAR_HEIGHT = 20
ROW_HEIGHT = 28
TOP = 46
PANEL_GAP = 30
NUMBER_WIDTH = 80
# The rest is in the table; more panels would hide the point.
SHOWN_CONCURRENCIES = ("100", "10")

# One colour for us, one for the others, both with enough contrast on white and on near-black. The
# text follows the reader's colour scheme, because an embedded image does not inherit the page's.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 15px; font-weight: 600 }
  .ours { fill: #d1495b } .peer { fill: #6b8cae }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""


def build_plot(table: dict[str, Any]) -> str:
    """Return one panel of bars for each concurrency that is shown."""
    keys = [key for key in SHOWN_CONCURRENCIES if table.get(key)]
    parts: list[str] = []
    top = 0
    for key in keys:
        panel, height = _build_panel(table[key], int(key), top)
        parts += panel
        top += height + PANEL_GAP
    height = max(top - PANEL_GAP + 10, 10)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Jobs per second of one worker process">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _build_panel(column: dict[str, Any], concurrency: int, top: int) -> tuple[list[str], int]:
    order = sorted(column, key=lambda name: float(column[name]["median"]), reverse=True)
    largest = max(float(column[name]["median"]) for name in order)
    title = f"Jobs per second, one process, concurrency {concurrency}"
    parts = [f'<text class="title" x="8" y="{top + 26}">{title}</text>']
    room = WIDTH - LABEL_WIDTH - NUMBER_WIDTH
    for index, name in enumerate(order):
        rate = float(column[name]["median"])
        y = top + TOP + index * ROW_HEIGHT
        baseline = y + BAR_HEIGHT - 5
        width = max(1.0, room * rate / largest)
        kind = "ours" if name in (OURS, SUPERVISED) else "peer"
        end = LABEL_WIDTH + width
        box = f'x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"'
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{baseline}" text-anchor="end">{escape(LABELS[name])}</text>',
            f'<rect class="{kind}" {box} rx="2"/>',
            f'<text x="{end + 6:.1f}" y="{baseline}">{rate:,.0f}</text>',
        ]
    return parts, TOP + len(order) * ROW_HEIGHT
