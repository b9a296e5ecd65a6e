"""Write the tables of docs/comparison.md from bench/results, between their markers: `python bench/comparison_tables.py`.

A test compares the page with what this program would write, so that no figure differs from what was measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from faults_report import Row, build_row
from faults_roster import CONTENDERS as FAULT_CONTENDERS
from report import best_of
from roster import CONTENDERS, LABELS, OURS, SUPERVISED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "comparison.md"
NOT_MEASURED = "-"

Results = dict[str, Any]


def build_speed(results: Results) -> str:
    """Build the table of jobs and enqueues per second, with the ratio to the fastest other queue of the same run."""
    sections = results["sections"]
    rates = {
        "concurrency 1": sections["throughput"]["1"],
        "10": sections["throughput"]["10"],
        "100": sections["throughput"]["100"],
        "100, Redis 1 ms away": sections["delay"]["100"],
        "enqueue/s, one by one": sections["enqueue"]["single"],
        "enqueue/s, best way": best_of(sections["enqueue"]),
    }
    latency = sections["latency"]
    rows = [
        [
            LABELS[contender.name],
            *(_rate(column.get(contender.name)) for column in rates.values()),
            f"{latency[contender.name]['p50_ms']:.1f}",
        ]
        for contender in CONTENDERS
    ]
    rows.append(["*rrq beside the fastest other*", *(f"*{_ratio(column)}*" for column in rates.values()), ""])
    machine = results["machine"]
    return f"""\
{_markdown(["no-op jobs/s of one process", *rates, "idle latency p50, ms"], rows)}

{machine["date"]}: {machine["cores"]} cores, Redis {machine["redis"]} without persistence, Python {machine["python"]}, median of \
{results["rounds"]} rounds."""


def _rate(row: Results | None) -> str:
    return NOT_MEASURED if row is None else f"{row['median']:,.0f}"


def _ratio(column: Results) -> str:
    others = [row["median"] for name, row in column.items() if name not in (OURS, SUPERVISED)]
    return f"{column[OURS]['median'] / max(others):.1f} x"


def build_faults(results: Results) -> str:
    """Build the table of what happened to the jobs under four faults."""
    rows = []
    for contender in FAULT_CONTENDERS:
        cells = {}
        for fault in ("redis_shutdown", "redis_kill", "pause"):
            cells[fault] = _outcome(
                build_row(
                    _select(results["outcomes"], contender.name, fault), returns=fault in contender.returns
                )
            )
        (watched,) = _select(results["long_watch"], contender.name, "kill")
        rows.append(
            [contender.label, _rerun(watched["verdict"], results["long_watch_seconds"]), *cells.values()]
        )
    machine = results["machine"]
    head = [
        "",
        "`kill -9` of a worker: its jobs run again after",
        "Redis stopped for 2 s",
        "Redis killed, back after 2 s",
        "worker stopped for 30 s",
    ]
    rounds = "one round" if results["rounds"] == 1 else f"median of {results['rounds']} rounds"
    return f"""\
{_markdown(head, rows)}

{machine["date"]}: Redis {machine["redis"]} with its append-only file, {results["jobs"]} jobs of 200 ms, {rounds}, every queue \
with its defaults."""


def _select(outcomes: list[Results], name: str, fault: str) -> list[Results]:
    return [outcome for outcome in outcomes if outcome["contender"] == name and outcome["fault"] == fault]


def _rerun(verdict: Results, watched_seconds: float) -> str:
    if verdict["unfinished"]:
        return (
            f"**never** ({verdict['unfinished']} of {verdict['cut']}, watched {watched_seconds / 60:.0f} min)"
        )
    return f"{median(verdict['rerun_seconds']):.1f} s"


def _outcome(row: Row) -> str:
    """Return what went wrong, or when all jobs were done."""
    if row.lost:
        return f"**{row.lost:g} lost**"
    if row.finished_by_new_workers:
        return f"{row.finished_by_new_workers:g} wait until workers are started again"
    if row.later:
        return f"{row.later:g} return later"
    repeated = f", {row.finished_repeated:g} done twice" if row.finished_repeated else ""
    return f"all done after {row.all_done_seconds:.1f} s{repeated}"


def build_reaction(operator: Results, keda: Results) -> str:
    """Build the table of how long a wave of jobs waits until its replicas are requested."""
    words = {
        "bulk": "rrq operator, one bulk enqueue",
        "beside_50": "the same, beside 50 busy pools",
        "silent": "rrq operator, producer of RRQ 0.7 without announcements",
    }
    rows = []
    for name, label in words.items():
        figures = operator[name]["from_start"]
        rows.append([label, f"{figures['p50_ms'] / 1000:.2f}", f"{figures['p95_ms'] / 1000:.2f}"])
    rows += [
        [f"KEDA {keda['keda']}, {how}", f"{seconds:g}", NOT_MEASURED]
        for how, seconds in keda["seconds"].items()
    ]
    head = [f"0 → {keda['replicas']} replicas requested for {keda['jobs']:,} jobs, seconds", "p50", "p95"]
    return f"""\
{_markdown(head, rows)}

{operator["date"]}, {operator["runs"]} measurements for each line of rrq, on a real API server without nodes."""


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def read_results(name: str) -> Results:
    results: Results = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def build_tables() -> dict[str, str]:
    """Return the table for each pair of markers, by name."""
    return {
        "speed": build_speed(read_results("throughput")),
        "faults": build_faults(read_results("faults")),
        "reaction": build_reaction(read_results("operator"), read_results("keda")),
    }


def insert_tables(page: str, tables: dict[str, str]) -> str:
    """Return the page with the text between the markers replaced."""
    for name, table in tables.items():
        start, end = f"<!-- {name}: written by bench/comparison_tables.py -->", f"<!-- end of {name} -->"
        before, found_start, rest = page.partition(start)
        _, found_end, after = rest.partition(end)
        if not found_start or not found_end:
            raise ValueError(f"{PAGE.name} lacks the lines {start!r} and {end!r}; put them back.")
        page = f"{before}{start}\n\n{table}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(insert_tables(PAGE.read_text(), build_tables()))
    print(f"Wrote the tables of {PAGE.name}.")
