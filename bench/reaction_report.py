"""Turn the figures of the operator's benchmark into a page and a plot. Pure: values in, text out."""

from __future__ import annotations

from typing import Any

Results = dict[str, Any]

REACTIONS = {
    "bulk": "2,000 jobs in one bulk enqueue",
    "silent": "2,000 jobs of a producer without announcements (RRQ 0.7)",
    "beside_50": "2,000 jobs in bulk, beside 50 busy pools",
}
PANELS = (
    ("tick_ms", "one round, ms"),
    ("api_calls_per_tick", "API calls per round"),
    ("redis_calls_per_tick", "Redis calls per round"),
    ("rss_mb", "memory, MB"),
)
PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_ROW = 370, 190, 2
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .line { fill: none; stroke: #d1495b; stroke-width: 2 } .dot { fill: #d1495b } .axis { stroke: #8b949e }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""


def build_page(results: Results) -> str:
    """Return docs/operator-benchmarks.md."""
    lines = [
        "# Operator benchmarks",
        "",
        "`make bench-operator` writes this page. It uses a real API server without a node, a real Redis, and the operator as",
        "a separate process. A second client watches the Deployment and records when the operator requests 20 replicas. Each",
        "measurement starts from zero replicas, at another moment of the operator's second. Absolute figures depend on the",
        "machine.",
        "",
        f"Run of {results['date']}, {results['runs']} measurements each, 2 cores shared by all processes.",
        "",
        "| from 0 to 20 replicas requested, ms | p50 | p95 | max | p95 from the end of the enqueue |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, words in REACTIONS.items():
        if name in results:
            start, end = results[name]["from_start"], results[name]["from_end"]
            lines.append(
                f"| {words} | {start['p50_ms']:.0f} | {start['p95_ms']:.0f} | {start['max_ms']:.0f} "
                f"| {end['p95_ms']:.0f} |"
            )
    lines += [
        "",
        "The time starts when the producer starts to enqueue, so it includes the enqueue.",
        "",
    ]
    if results.get("crowd"):
        lines += [
            "## Many pools",
            "",
            "Idle pools on one Redis. Once a second, one round reads all of them.",
            "",
            "![Cost by number of pools](img/operator.svg)",
            "",
            "| pools | one round, ms | rounds over 1 s | API calls per round | Redis calls per round | CPU, % of a core | memory, MB |",
            "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {row['pools']:,} | {row['tick_ms']:.0f} | {row['ticks_over_1_s']} | {row['api_calls_per_tick']:.2f} "
            f"| {row['redis_calls_per_tick']:.2f} | {row['cpu_percent']:.0f} | {row['rss_mb']:.0f} |"
            for row in results["crowd"]
        ]
        lines.append("")
    return "\n".join(lines)


def build_plot(rows: list[dict[str, Any]]) -> str:
    """Return four small charts over the number of pools."""
    height = PANEL_HEIGHT * ((len(PANELS) + PANELS_PER_ROW - 1) // PANELS_PER_ROW)
    size = f"0 0 {PANEL_WIDTH * PANELS_PER_ROW} {height}"
    label = "Cost of the operator by number of pools"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
    ]
    for index, (field, title) in enumerate(PANELS):
        left, top = PANEL_WIDTH * (index % PANELS_PER_ROW), PANEL_HEIGHT * (index // PANELS_PER_ROW)
        parts += _build_panel(rows, field, title, left, top)
    return "\n".join([*parts, "</svg>", ""])


def _build_panel(rows: list[dict[str, Any]], field: str, title: str, left: int, top: int) -> list[str]:
    room_x, room_y = PANEL_WIDTH - 110, PANEL_HEIGHT - 80
    base_x, base_y = left + 20, top + 40 + room_y
    most_pools = max(row["pools"] for row in rows)
    most = max(max(float(row[field]) for row in rows), 1.0) * 1.15
    points = [
        (base_x + room_x * row["pools"] / most_pools, base_y - room_y * float(row[field]) / most, row)
        for row in rows
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    parts = [
        f'<text class="title" x="{left + 20}" y="{top + 24}">{title}</text>',
        f'<line class="axis" x1="{base_x}" y1="{base_y}" x2="{base_x + room_x}" y2="{base_y}"/>',
        f'<polyline class="line" points="{line}"/>',
    ]
    for x, y, _row in points:
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    last_x, last_y, last = points[-1]
    parts.append(f'<text x="{last_x + 8:.1f}" y="{last_y + 4:.1f}">{float(last[field]):,.1f}</text>')
    parts.append(f'<text x="{last_x:.1f}" y="{base_y + 18}" text-anchor="middle">{most_pools:,} pools</text>')
    return parts
