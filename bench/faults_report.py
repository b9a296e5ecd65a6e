"""Turn the outcomes of the fault comparison into a page: a table per fault, notes per queue.

Pure: values in, text out. ``faults.py`` writes the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from faults_roster import CONTENDERS

Results = dict[str, Any]
NONE = "-"
TITLES = {
    "kill": "kill -9 of a worker process",
    "redis_shutdown": "Redis stopped, and started again after 2 s",
    "redis_kill": "Redis killed with -9, and started again after 2 s",
    "pause": "A worker process stopped for 30 s (SIGSTOP, SIGCONT)",
}
HEAD = (
    "",
    "running",
    "lost",
    "later",
    "effect twice",
    "finished twice",
    "rerun p50 / max, s",
    "all done, s",
    "processes after",
)


@dataclass(frozen=True)
class Row:
    """The median of one queue's rounds under one fault."""

    in_hand: float
    # Not finished by the end of the watch: gone, or to come back on its own or with new workers.
    lost: float
    later: float
    finished_by_new_workers: float
    effects_repeated: float
    finished_repeated: float
    rerun_seconds: tuple[float, ...]
    all_done_seconds: float | None
    processes_after: float


def build_row(outcomes: list[dict[str, Any]], *, returns: bool) -> Row:
    """Return the medians over the rounds.

    An unfinished job counts as lost, unless its library is known to bring such jobs back or workers that
    were started anew brought this one back.
    """
    verdicts = [outcome["verdict"] for outcome in outcomes]
    done = [verdict["all_done_seconds"] for verdict in verdicts]
    again = median(outcome["finished_by_new_workers"] for outcome in outcomes)
    unfinished = median(verdict["unfinished"] for verdict in verdicts)
    return Row(
        in_hand=median(verdict["cut"] for verdict in verdicts),
        lost=0 if returns else unfinished - again,
        later=unfinished if returns else again,
        finished_by_new_workers=again,
        effects_repeated=median(verdict["effects_repeated"] for verdict in verdicts),
        finished_repeated=median(verdict["finished_repeated"] for verdict in verdicts),
        rerun_seconds=tuple(sorted(second for verdict in verdicts for second in verdict["rerun_seconds"])),
        all_done_seconds=None if None in done else median(done),
        processes_after=median(outcome["processes_after"] for outcome in outcomes),
    )


def build_tables(results: Results) -> str:
    """Return a table for each fault, and one for the long watch where there was one."""
    parts = []
    for fault, title in TITLES.items():
        rows = []
        for contender in CONTENDERS:
            outcomes = _select(results.get("outcomes", []), contender.name, fault)
            if outcomes:
                row = build_row(outcomes, returns=fault in contender.returns)
                rows.append([contender.label, *_cells(row)])
        if rows:
            parts += [f"### {title}", _markdown(HEAD, rows)]
    if results.get("long_watch"):
        parts += [
            f"### After kill -9, watched for up to {results['long_watch_seconds'] / 60:.0f} minutes",
            "Meanwhile 20 new jobs come every 15 s, because some libraries look for the jobs of dead workers only then.",
            _build_long_table(results),
        ]
    return "\n\n".join(parts) + "\n"


def _build_long_table(results: Results) -> str:
    rows = []
    for contender in CONTENDERS:
        for outcome in _select(results["long_watch"], contender.name, "kill"):
            verdict = outcome["verdict"]
            rows.append(
                [
                    contender.label,
                    _number(verdict["cut"]),
                    _number(verdict["unfinished"]),
                    _spread(tuple(verdict["rerun_seconds"])),
                    _seconds(verdict["all_done_seconds"]),
                ]
            )
    return _markdown(("", "running", "never finished", "rerun p50 / max, s", "all done, s"), rows)


def _select(outcomes: list[dict[str, Any]], name: str, fault: str) -> list[dict[str, Any]]:
    return [outcome for outcome in outcomes if outcome["contender"] == name and outcome["fault"] == fault]


def _cells(row: Row) -> list[str]:
    later = _number(row.later)
    if row.finished_by_new_workers:
        later += f" ({_number(row.finished_by_new_workers)} with new workers)"
    return [
        _number(row.in_hand),
        f"**{_number(row.lost)}**" if row.lost else "0",
        later,
        _number(row.effects_repeated),
        _number(row.finished_repeated),
        _spread(row.rerun_seconds),
        _seconds(row.all_done_seconds),
        f"{_number(row.processes_after)} of 2",
    ]


def _number(value: float) -> str:
    return f"{value:g}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _spread(seconds: tuple[float, ...]) -> str:
    return f"{median(seconds):.1f} / {seconds[-1]:.1f}" if seconds else NONE


def _rounds(number: int) -> str:
    return "one round" if number == 1 else f"median of {number} rounds"


def _markdown(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def build_page(results: Results) -> str:
    """Return the whole page of the docs."""
    machine = results["machine"]
    notes = "\n".join(f"- **{contender.label}**: {contender.note}" for contender in CONTENDERS)
    return f"""\
# Fault comparison

`make bench-faults` writes this page. It shows what rrq and other Redis queues for Python do when a worker process is
killed or stopped in the middle of a job, and when Redis is away for two seconds. Each queue runs with its defaults and
is started as its documentation says.

Run of {machine["date"]}: Redis {machine["redis"]} with its append-only file on, Python {machine["python"]},
{machine["cores"]} cores, {_rounds(results["rounds"])}.{" " + results["remark"] if results.get("remark") else ""}

{EXPLANATION.format(jobs=results["jobs"], watch=results["watch_seconds"])}
## Results

{build_tables(results)}
## Defaults, and what a setting would change

{notes}

{LIMITS}"""


EXPLANATION = """\
## Method

Two worker processes have ten slots each; a producer enqueues {jobs} jobs of 200 ms. When all are acknowledged and a fifth
is done, the benchmark injects the fault. It watches the jobs for {watch:.0f} s after that and restarts nothing that the
library does not restart itself. Every step of every job writes a line to a file outside Redis, and the verdict uses only
that file.

| column | meaning |
| --- | --- |
| running | running jobs of the victim; when Redis is the victim, those of both processes |
| lost | acknowledged jobs that had not finished when the watch ended, and that nothing we know of brings back |
| later | jobs that had not finished when the watch ended, but return: after a longer time that the notes name, or when new workers start because none was left |
| effect twice, finished twice | jobs whose effect happened more than once; whose handler ran to its end more than once |
| rerun | from the fault to the next start of a job that was running |
| all done | from the fault until every job had finished once |
| processes after | worker processes that took new jobs within 20 s after the watch |

With at-least-once delivery, a job that is cut after its effect has that effect twice when it runs again. So "effect twice"
is the price of a zero under "lost", not an error. "finished twice" should be rare.
"""

LIMITS = """\
## Limits of this comparison

Two processes on one machine and a few faults are a small sample; a queue may lose nothing here and something elsewhere.
Chance decides how many jobs run when the fault comes, and how many of them a restart of Redis catches between two steps.
Other work on the machine adds tenths of seconds. Redis came back with everything that it had acknowledged, so no loss here
is its own. The comparison does not cover jobs that block, crash or use memory, networks that fail in part, and fail-over.
A job counts as finished when its handler has ended, whatever the queue's own record says.
"""
