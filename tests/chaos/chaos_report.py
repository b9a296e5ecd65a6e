"""Reports a run: as text for the terminal, as JSON, and as docs/reliability.md with its plot."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from chaos_plot import build_plot

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_config import ChaosConfig
    from evidence import Evidence
    from judged_times import Spread
    from verdict import KindReport, Report

NOTHING = "-"
FULL_JOBS = 100_000
BEGIN, END = "<!-- made by make chaos: begin -->", "<!-- made by make chaos: end -->"


def show(report: Report) -> str:
    """Return the report for a terminal."""
    lines = [f"{name:<24} {value}" for name, value in _figures(report)]
    lines += ["", f"{'fault':<34} {'times':>5} {'reruns':>6} {'rerun after p50 / p99 / max':>28}"]
    lines += [
        f"{kind.kind:<34} {kind.injected:>5} {kind.reruns:>6} {_spread(kind.rerun):>28}"
        for kind in report.kinds
    ]
    lines += [f"left out: {what}" for what in report.left_out]
    lines += [f"VIOLATION: {violation}" for violation in report.violations] or ["every promise held"]
    return "\n".join(lines)


def _figures(report: Report) -> list[tuple[str, object]]:
    return [
        (name.replace("_", " "), _spread_of(value) if isinstance(value, dict) else value)
        for name, value in asdict(report).items()
        if name not in ("kinds", "left_out", "violations")
    ]


def _spread_of(value: dict[str, float]) -> str:
    return f"p50 {value['p50']:g} s, p99 {value['p99']:g} s, max {value['most']:g} s, of {value['count']}"


def write_json(path: Path, config: ChaosConfig, evidence: Evidence, report: Report) -> None:
    """Write all figures, faults and samples of the run."""
    offset = evidence.load_begun_at
    told = {
        "config": asdict(config),
        "report": asdict(report),
        "faults": [
            {
                "number": fault.number,
                "kind": fault.kind,
                "part": fault.part,
                "begun_at": round(fault.begun_at - offset, 3),
                "ended_at": round(fault.ended_at - offset, 3),
                "pids": fault.pids,
            }
            for fault in evidence.faults
        ],
        "backlog": [[round(sample.at - offset, 2), sample.backlog] for sample in evidence.samples],
    }
    # One entry per line keeps a file with thousands of samples readable.
    lines = ",\n".join(_line(name, value) for name, value in told.items())
    path.write_text(f"{{\n{lines}\n}}\n")


def _line(name: str, value: object) -> str:
    if not isinstance(value, list):
        return f"{json.dumps(name)}: {json.dumps(value)}"
    entries = ",\n".join(f" {json.dumps(entry)}" for entry in value)
    return f"{json.dumps(name)}: [\n{entries}\n]"


def write_documents(folder: Path, config: ChaosConfig, evidence: Evidence, report: Report) -> None:
    """Write the figures as JSON, the plot, and the tables into the page between its two markers."""
    (folder / "img").mkdir(parents=True, exist_ok=True)
    write_json(folder / "reliability.json", config, evidence, report)
    (folder / "img" / "chaos.svg").write_text(build_plot(evidence))
    page = folder / "reliability.md"
    text = page.read_text() if page.exists() else f"# Reliability\n\n{BEGIN}\n{END}\n"
    page.write_text(insert_tables(text, build_tables(config, report)))


def insert_tables(page: str, tables: str) -> str:
    """Return the page with the text between the markers replaced; ValueError when a marker is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page lacks its markers: add a line {BEGIN} and a line {END}.")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def build_tables(config: ChaosConfig, report: Report) -> str:
    """Return the Markdown of one run."""
    command = f'make chaos ARGS="{"--full " if config.is_full else ""}--seed {config.seed}'
    if config.is_full and config.jobs != FULL_JOBS:
        command += f" --jobs {config.jobs} --faults {config.faults}"
    command += f' --durability {config.durability}"' if config.durability else '"'
    outcome = "Every promise held." if not report.violations else "**Promises were broken:**"
    size = "The full run" if config.is_full and config.jobs == FULL_JOBS else "A short run"
    room = "" if config.room == 1 else f" The time limits were multiplied by {config.room:g}."
    summary = (
        f"{size}, `{command}`: {report.jobs:,} acknowledged jobs in {report.load_seconds:.0f} s, "
        f"{report.faults} of {config.faults} planned faults, {report.outages} of them outages of Redis for all workers, "
        f"lease {config.lease_seconds:g} s.{room} {outcome}"
    )
    lines = [
        summary,
        "",
        *[f"- {violation}" for violation in report.violations],
        *([""] if report.violations else []),
        "| | |",
        "|---|---:|",
        f"| acknowledged jobs | {report.jobs:,} |",
        f"| **lost** | **{report.lost}** |",
        f"| forgotten by Redis itself after it had acknowledged them | {report.lost_by_redis} |",
        f"| lost by the RRQ 0.7.1 worker (of {report.legacy_jobs:,} it ran) | {report.lost_by_legacy} |",
        f"| attempts cut by a fault and repeated | {report.reruns_by_fault} |",
        f"| … after their effect had happened | {report.repeated_by_fault} |",
        f"| repeated because Redis had forgotten their outcome | {report.reruns_by_redis} |",
        f"| repeated without a cause | {report.unexplained_reruns} |",
        f"| abandoned by the RRQ 0.7.1 worker and repeated | {report.reruns_of_legacy} |",
        f"| repeated effects, for any reason | {report.repeated_effects} |",
        f"| late results refused | {report.fenced} |",
        f"| jobs that kill their process, and are in the dead letter queue | {report.poison_in_dead_letters} of {report.poison} |",
        f"| due again after a child's death, p50 / p99 / max{_count(report.due_again_child)} | {_spread(report.due_again_child)} |",
        f"| released after a supervisor's death{_count(report.due_again_supervisor)} | {_spread(report.due_again_supervisor)} |",
        f"| due again after a whole pod's death{_count(report.due_again_pod)} | {_spread(report.due_again_pod)} |",
        f"| backlog gone after a fault | {_spread(report.backlog_gone)} |",
        f"| enqueues that Redis refused or did not answer | {report.refused:,} |",
        f"| unplanned time in which the machine itself stood still | {report.stalled_seconds:g} s |",
        "",
        "By kind of fault. Rerun is the time from the fault to the next start of a cut job; throughput, in jobs",
        f"per second (usually {report.usual_throughput:g}), covers the fault and the ten seconds after it.",
        "",
        "| fault | times | cut and repeated | rerun p50 / p99 / max | throughput during | after | backlog gone, max |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *[_row(kind) for kind in report.kinds],
        "",
    ]
    lines += [f"Left out: {what}" for what in report.left_out]
    return "\n".join(lines) + "\n"


def _row(kind: KindReport) -> str:
    cells = [
        kind.kind,
        str(kind.injected),
        str(kind.reruns) if kind.reruns else NOTHING,
        _spread(kind.rerun),
        _number(kind.throughput_during),
        _number(kind.throughput_after),
        f"{kind.backlog_gone.most:.1f} s" if kind.backlog_gone is not None else NOTHING,
    ]
    return f"| {' | '.join(cells)} |"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.p50:.2f} / {spread.p99:.2f} / {spread.most:.2f} s"


def _count(spread: Spread | None) -> str:
    return " (none could be measured)" if spread is None else f" ({spread.count} measured)"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
