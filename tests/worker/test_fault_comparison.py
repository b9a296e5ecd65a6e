"""The judge of `make bench-faults`: a ledger in which something is wrong must not pass."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

# At the end of the path: the bench has modules whose names those of the tests must keep.
sys.path.append(str(Path(__file__).parents[2] / "bench"))
judging: Any = importlib.import_module("faults_judge")
report: Any = importlib.import_module("faults_report")

FAULT_AT = 10.0
WATCHED_UNTIL = 100.0
VICTIM, SURVIVOR = 41, 42


def line(job: str, event: str, at: float, attempt: str = "", pid: int = SURVIVOR) -> Any:
    return judging.Line(job=job, event=event, attempt=attempt, pid=pid, at=at)


def attempt(job: str, name: str, start: float, pid: int = SURVIVOR, *, until: str = "finished") -> list[Any]:
    """An attempt of 0.2 s, cut after the step named last."""
    steps = [("started", start), ("effect", start + 0.1), ("finished", start + 0.2)]
    names = [event for event, _ in steps]
    return [line(job, event, at, name, pid) for event, at in steps[: names.index(until) + 1]]


def judge(lines: list[Any], victim_pid: int | None = VICTIM) -> Any:
    acknowledged = [line(job, "acknowledged", 1.0) for job in dict.fromkeys(line.job for line in lines)]
    return judging.judge(acknowledged + lines, judging.Fault(FAULT_AT, victim_pid, WATCHED_UNTIL))


def test_jobs_that_ran_once_are_neither_lost_nor_repeated() -> None:
    verdict = judge(attempt("job-0", "a", 5.0) + attempt("job-1", "b", 12.0))
    assert (verdict.acknowledged, verdict.unfinished, verdict.cut) == (2, 0, 0)
    assert (verdict.effects_repeated, verdict.finished_repeated) == (0, 0)
    assert verdict.all_done_seconds == pytest.approx(2.2)


def test_a_job_that_is_cut_and_never_comes_back_is_unfinished() -> None:
    verdict = judge(attempt("job-0", "a", 9.9, VICTIM, until="started") + attempt("job-1", "b", 12.0))
    assert (verdict.unfinished, verdict.unfinished_cut) == (1, 1)
    assert verdict.rerun_seconds == ()
    assert verdict.all_done_seconds is None


def test_a_job_that_vanishes_before_anybody_starts_it_is_unfinished() -> None:
    lines = [line("job-0", "acknowledged", 1.0)]
    verdict = judging.judge(lines, judging.Fault(FAULT_AT, None, WATCHED_UNTIL))
    assert (verdict.acknowledged, verdict.unfinished, verdict.unfinished_cut) == (1, 1, 0)


def test_a_job_cut_after_its_effect_has_the_effect_twice_but_finishes_once() -> None:
    lines = attempt("job-0", "a", 9.85, VICTIM, until="effect") + attempt("job-0", "b", 11.5)
    verdict = judge(lines)
    assert (verdict.cut, verdict.unfinished) == (1, 0)
    assert (verdict.effects_repeated, verdict.finished_repeated) == (1, 0)
    assert verdict.rerun_seconds == (pytest.approx(1.5),)


def test_a_job_that_two_processes_finish_is_counted_once_as_finished_twice() -> None:
    lines = attempt("job-0", "a", 9.9, VICTIM) + attempt("job-0", "b", 11.0) + attempt("job-0", "c", 12.0)
    assert judge(lines).finished_repeated == 1


def test_only_jobs_of_the_process_that_was_hit_count_as_in_hand() -> None:
    lines = attempt("job-0", "a", 9.9, VICTIM, until="started") + attempt("job-1", "b", 9.9, SURVIVOR)
    assert judge(lines).cut == 1
    assert judge(lines, victim_pid=None).cut == 2


def test_what_happens_after_the_watch_comes_too_late() -> None:
    lines = attempt("job-0", "a", 9.9, VICTIM, until="started") + attempt("job-0", "b", WATCHED_UNTIL + 1)
    assert judge(lines).unfinished == 1


def test_a_line_that_is_still_being_written_is_left_for_the_next_look() -> None:
    whole = json.dumps({"job": "job-0", "event": "started", "attempt": "a", "pid": 1, "at": 1.0})
    assert len(judging.parse_ledger(f"{whole}\n{whole[:20]}")) == 1


def outcome(unfinished: int, finished_by_new_workers: int = 0) -> dict[str, Any]:
    verdict = {
        "cut": 10,
        "unfinished": unfinished,
        "effects_repeated": 0,
        "finished_repeated": 0,
        "rerun_seconds": [],
        "all_done_seconds": None,
    }
    return {
        "verdict": verdict,
        "processes_after": 1,
        "finished_by_new_workers": finished_by_new_workers,
    }


def test_unfinished_jobs_are_lost_unless_their_queue_or_new_workers_bring_them_back() -> None:
    gone = report.build_row([outcome(unfinished=10)], returns=False)
    assert (gone.lost, gone.later) == (10, 0)
    late = report.build_row([outcome(unfinished=10)], returns=True)
    assert (late.lost, late.later) == (0, 10)
    waiting = report.build_row([outcome(unfinished=10, finished_by_new_workers=7)], returns=False)
    assert (waiting.lost, waiting.later) == (3, 7)


def test_a_table_shows_the_median_of_the_rounds() -> None:
    rounds = [outcome(unfinished=number) for number in (1, 9, 3)]
    assert report.build_row(rounds, returns=False).lost == 3


def test_the_page_says_what_the_results_and_the_roster_say() -> None:
    root = Path(__file__).parents[2]
    results = json.loads((root / "bench/results/faults.json").read_text())
    assert (root / "docs/fault-comparison.md").read_text() == report.build_page(results)
