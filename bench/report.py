"""Turn the results into text: tables for the terminal and the docs page, ratios, the plot.

Pure: values in, text out. ``throughput.py`` writes the files.
"""

from __future__ import annotations

from typing import Any

from roster import BASELINE, LABELS, OURS, SUPERVISED

Results = dict[str, Any]
NOT_MEASURED = "-"
START_MARK = "<!-- results: written by bench/throughput.py -->"
END_MARK = "<!-- end of results -->"


def build_report(results: Results) -> str:
    """Return all tables of a run as Markdown."""
    sections = results["sections"]
    parts = [_describe_machine(results)]
    if "throughput" in sections:
        parts.append("### Jobs per second, prefilled queue, one process\n")
        parts.append(_rate_table(sections["throughput"], "concurrency "))
    if "delay" in sections:
        parts.append("### Jobs per second, concurrency 100, 1 ms round trip to Redis\n")
        parts.append(_rate_table(sections["delay"], "concurrency "))
    if "enqueue" in sections:
        parts.append("### Enqueued jobs per second, one producer\n")
        parts.append(_rate_table(sections["enqueue"], ""))
    if "latency" in sections:
        parts.append("### Idle worker: enqueue to handler start, ms\n")
        parts.append(_row_table(sections["latency"], ("p50_ms", "p99_ms", "max_ms")))
    if "scaling" in sections:
        parts.append("### Jobs per second of one pod, 1 ms of CPU time per job\n")
        parts.append(_rate_table(sections["scaling"], "handler of "))
    for name, title in (
        ("idle", "### Idle worker process"),
        ("contention", "### Eight processes, one job at a time"),
        ("memory", "### Memory, MB (10^6 bytes)"),
    ):
        if sections.get(name):
            parts.append(title + "\n")
            columns = tuple(next(iter(sections[name].values())))
            parts.append(_row_table(sections[name], columns))
    parts.append("### Ratios\n")
    parts.append("\n".join(f"- {line}" for line in build_ratios(sections)) or "- none")
    parts.append(_describe_delivery(sections))
    if results["failures"]:
        parts.append("Not measured:\n")
        first_lines = dict.fromkeys(text.splitlines()[0] for text in results["failures"])
        parts.append("\n".join(f"- {line}" for line in first_lines))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _describe_machine(results: Results) -> str:
    machine = results["machine"]
    return (
        f"Run of {machine['date']}: {machine['cores']} cores, Redis {machine['redis']} without "
        f"persistence, Python {machine['python']}, median of {results['rounds']} "
        f"interleaved round(s). {results['repeated_runs']} of {results['runs']} runs were repetitions of "
        "one that had lost CPU time to other guests of the host."
    )


def build_ratios(sections: dict[str, Any]) -> list[str]:
    """Return our medians against RRQ 0.7.1 and against the fastest of all others."""
    lines = []
    for name, prefix in (
        ("throughput", "throughput, concurrency "),
        ("delay", "1 ms round trip, concurrency "),
        ("enqueue", "enqueue, "),
    ):
        for key, column in sections.get(name, {}).items():
            if name == "enqueue" and key == "bulk":
                # Most peers have no bulk call; they compete with the best they have.
                column = best_of(sections[name])
            lines += _ratio_lines(prefix + key, column)
    return lines + _scaling_lines(sections.get("scaling", {}))


def best_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return for each contender its best row over all columns."""
    best: dict[str, Any] = {}
    for column in table.values():
        for name, row in column.items():
            if name not in best or row["median"] > best[name]["median"]:
                best[name] = row
    return best


def _ratio_lines(title: str, column: dict[str, Any]) -> list[str]:
    others = {name: row["median"] for name, row in column.items() if name not in (OURS, SUPERVISED)}
    if not others:
        return []
    fastest = max(others, key=lambda name: others[name])
    lines = []
    for name in (OURS, SUPERVISED):
        if name not in column:
            continue
        ours = column[name]["median"]
        text = f"{title}, {LABELS[name]}: {ours / others[fastest]:.1f} x the fastest peer ({LABELS[fastest]})"
        if BASELINE in others:
            text += f", {ours / others[BASELINE]:.1f} x {LABELS[BASELINE]}"
        lines.append(text)
    return lines


def _scaling_lines(table: dict[str, Any]) -> list[str]:
    rates = [row["median"] for row in table.get("1 ms", {}).values()]
    if len(rates) < 2:
        return []
    return [f"two worker processes on two cores, 1 ms of CPU time per job: {rates[1] / rates[0]:.2f} x one"]


def _describe_delivery(sections: dict[str, Any]) -> str:
    wrong = []
    for table in (sections.get("throughput", {}), sections.get("delay", {})):
        for key, column in table.items():
            for name, row in column.items():
                missing = sum(row["jobs"] - distinct for distinct in row["distinct"])
                if missing or row["duplicates"]:
                    wrong.append(
                        f"{LABELS[name]} at concurrency {key}: {missing} missing, "
                        f"{row['duplicates']} repeated"
                    )
    if not wrong:
        return "Delivery was exact in every run: each job ran once."
    return "Delivery was not exact: " + "; ".join(wrong) + "."


def _rate_table(table: dict[str, Any], prefix: str) -> str:
    columns = [key for key in table if table[key]]
    names = [name for name in LABELS if any(name in table[key] for key in columns)]
    rows = []
    for name in names:
        cells = [
            f"{table[key][name]['median']:,.0f}" if name in table[key] else NOT_MEASURED for key in columns
        ]
        rows.append([LABELS[name], *cells])
    return _markdown(["", *(prefix + key for key in columns)], rows)


def _row_table(table: dict[str, Any], columns: tuple[str, ...]) -> str:
    rows = [[LABELS[name], *(_cell(row.get(column)) for column in columns)] for name, row in table.items()]
    return _markdown(["", *(column.replace("_", " ") for column in columns)], rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else NOT_MEASURED


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def insert_report(page: str, report: str) -> str:
    """Return the docs page with the text between its two markers replaced."""
    before, found_start, rest = page.partition(START_MARK)
    _, found_end, after = rest.partition(END_MARK)
    if not found_start or not found_end:
        raise ValueError(f"The page lacks the lines {START_MARK!r} and {END_MARK!r}; put them back.")
    return f"{before}{START_MARK}\n\n{report}\n{END_MARK}{after}"
