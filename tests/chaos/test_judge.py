"""The judge of a chaos run: ledgers that were doctored to break one promise each, and the fault that would excuse it.

Also that a plan has every kind of fault within its time, and that the report hides nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_config import full_config, quick_config, short_config
from chaos_ledger import EFFECT, KILLED, RAISED, STARTED, TAKEN, Entry
from chaos_processes import read_producers
from chaos_report import BEGIN, END, insert_tables, show, write_documents
from evidence import MAIN, SENTINEL, STALL, DueAgain, Evidence, Injected, PartState, Sample
from fault_plan import BY_NAME, KINDS, QUICK_KINDS, PlanDoesNotFit, draw_plan
from judged_times import build_bars
from verdict import find_shortfalls, judge

if TYPE_CHECKING:
    from pathlib import Path

CHILD, OTHER, LEGACY = 11, 12, 99
POD = (21, 22)
LEASE_SECONDS = 3.0


def run_of(job: str, at: float, pid: int = CHILD, attempt: int = 1, *, event: str = EFFECT) -> list[Entry]:
    return [Entry(STARTED, job, attempt, pid, at), Entry(event, job, attempt, pid, at + 0.2)]


def begin(at: float = 2.0, pid: int = CHILD, job: str = "j") -> list[Entry]:
    return [Entry(STARTED, job, 1, pid, at)]


def fault(
    kind: str, begun_at: float, ended_at: float | None = None, *, part: str = MAIN, **more: Any
) -> Injected:
    return Injected(1, kind, part, begun_at, begun_at if ended_at is None else ended_at, **more)


def killed(at: float, pid: int = CHILD) -> Injected:
    return fault("child killed", at, pids=(pid,), cuts=True, ends=True)


def build(
    entries: list[Entry] | None = None,
    *faults: Injected,
    jobs: tuple[str, ...] = ("j",),
    acknowledged_at: float = 0.4,
    status: str | None = "COMPLETED",
    dead: tuple[str, ...] = (),
    left_keys: tuple[str, ...] = (),
    waits: tuple[int, int] | None = None,
    **more: Any,
) -> Evidence:
    """Two good jobs, and `entries` of `jobs`; `waits` is from and until when a backlog was there."""
    jobs = () if entries is None else jobs
    good = {"good-1": 0.5, "good-2": 0.6}
    ledger = [*run_of("good-1", 1.0), *run_of("good-2", 1.1, OTHER), *(entries or [])]
    statuses = {**dict.fromkeys(good, "COMPLETED"), **dict.fromkeys(jobs, status)}
    samples = [Sample(float(at), 500 if waits and waits[0] <= at < waits[1] else 0) for at in range(180)]
    options: dict[str, Any] = {
        "legacy_pids": frozenset({LEGACY}),
        "pids_by_part": {MAIN: frozenset({CHILD, OTHER, LEGACY, *POD})},
        "samples": samples,
        "load_ended_at": 180.0,
        "jobs_per_second": 50.0,
        "lease_seconds": LEASE_SECONDS,
    }
    return Evidence(
        {MAIN: good | dict.fromkeys(jobs, acknowledged_at)},
        sorted(ledger, key=lambda entry: entry.at),
        faults,
        {MAIN: PartState(statuses, dead, left_keys)},
        **options | more,
    )


def due(kind: str, seconds: float | None, *faults: Injected) -> Evidence:
    return build(None, *faults, due_again=[DueAgain(kind, 10.0, seconds, 3, POD)])


def crash(*, part: str = MAIN, kind: str = "Redis killed") -> Injected:
    """Redis is away from 2.9 to 6.0 and may have lost what it acknowledged from 1.5 to 3.0."""
    return fault(kind, 2.9, 6.0, is_outage=True, loses=(1.5, 3.0), part=part)


LOST, AGAIN, STUCK = "acknowledged jobs are lost: j", "ran again without a cause", "never ended"
TWICE = [*run_of("j", 2.0), *run_of("j", 9.0, OTHER)]
CUT = [*begin(), *run_of("j", 4.0, OTHER)]
FAILED = run_of("j", 2.0, OTHER, event=RAISED)
PAUSE = fault("Redis paused past the lease", 10.0, 20.0, is_outage=True)
DEADLY = fault("handler exits", 1.5, jobs=("bad",), poison=("bad",), cuts=True, ends=True)
STOP = fault("child stopped past its lease", 2.1, 6.6, pids=(CHILD,), cuts=True, cuts_from=4.1)
DRAINED = fault("supervisor killed", 2.5, pids=(CHILD,), cuts=True, cuts_from=12.3)
GRUDGE = fault("handler ignores cancellation", 9.0, jobs=("bad",), poison=("bad",))
DEATHS = [fault("pod killed", float(at), pids=(at,), cuts=True, ends=True) for at in (10, 20, 30)]

# What was broken, or "" where the fault excuses it, and what was found.
CASES: dict[str, tuple[str, Evidence]] = {
    "all went well": ("", build()),
    # Nothing acknowledged is lost, unless Redis forgot it or the 0.7.1 worker was the last to have it.
    "lost": (LOST, build([], status="PENDING")),
    "lost, and Redis says it is done": (LOST, build([])),
    "lost when its process was killed": (LOST, build(begin(), killed(2.2), status=None)),
    "forgotten": ("", build([], crash(), acknowledged_at=2.0, status=None)),
    "acknowledged before": (LOST, build([], crash(), acknowledged_at=1.0, status=None)),
    "acknowledged after": (LOST, build([], crash(), acknowledged_at=3.1, status=None)),
    "Redis still has it": (LOST, build([], crash(), acknowledged_at=2.0, status="PENDING")),
    "started after Redis was back": (LOST, build(begin(6.1), crash(), acknowledged_at=2.0, status=None)),
    "another Redis": (LOST, build([], crash(part=SENTINEL), acknowledged_at=2.0, status=None)),
    "lost by the old worker": ("", build([Entry(TAKEN, "j", 0, LEGACY, 2.1)], status="PENDING")),
    "lost by ours after the old one": (LOST, build([Entry(TAKEN, "j", 0, LEGACY, 2.1), *begin(3.0)])),
    # An attempt runs again only if a fault cut it: that process, while it ran.
    "twice": (AGAIN, build(TWICE)),
    "retried after a failure": ("", build([*FAILED, *run_of("j", 4.0, attempt=2)])),
    "a retry was skipped": (AGAIN, build([*FAILED, *run_of("j", 4.0, attempt=3)])),
    "killed": ("", build(CUT, killed(2.1))),
    "another was killed": (AGAIN, build(CUT, killed(2.1, OTHER))),
    "killed before": (AGAIN, build(CUT, killed(1.0))),
    "killed long after its effect": (AGAIN, build(TWICE, killed(3.5))),
    "killed before its effect was told": ("", build(TWICE, killed(2.5))),
    "killed when an outage had kept it from telling": (
        "",
        build(TWICE, fault("Redis shut down", 2.1, 6.0, is_outage=True), killed(6.5)),
    ),
    "an outage of another Redis": (
        AGAIN,
        build(TWICE, fault("Redis shut down", 2.1, 6.0, is_outage=True, part=SENTINEL), killed(6.5)),
    ),
    "the machine stood still meanwhile": ("", build(TWICE, killed(6.5), stalls=[fault(STALL, 2.1, 4.0)])),
    "an outage alone": (AGAIN, build(CUT, fault("Redis shut down", 2.1, 3.0, is_outage=True))),
    "a cut network alone": (AGAIN, build(CUT, fault("network cut", 2.1, 2.3, pids=(CHILD,)))),
    "stopped, and its lease cannot have ended": (AGAIN, build(CUT, STOP)),
    "stopped until its lease had ended": ("", build([*begin(), *run_of("j", 5.5, OTHER)], STOP)),
    "an orphan with time to end": (AGAIN, build(CUT, DRAINED)),
    "an orphan that outlasts its time": ("", build([*begin(), *run_of("j", 13.0, OTHER)], DRAINED)),
    "beside a deadly job": ("", build([*begin(job="bad"), *CUT], DEADLY, dead=("bad",))),
    "away from a deadly job": (AGAIN, build([*begin(pid=OTHER, job="bad"), *CUT], DEADLY, dead=("bad",))),
    "in a container that a job killed": (
        "",
        build([*begin(2.05, OTHER, "bad"), Entry(KILLED, "bad", 1, CHILD, 2.1), *CUT], DEADLY, dead=("bad",)),
    ),
    "beside a job that only ignores its end": (
        AGAIN,
        build(
            [*begin(10.0, job="bad"), *run_of("j", 20.0), *run_of("j", 100.5, OTHER)],
            GRUDGE,
            killed(100.0),
            dead=("bad",),
        ),
    ),
    "run twice by the old worker": ("", build([*run_of("j", 2.0, LEGACY), *run_of("j", 4.0, OTHER)])),
    "run again by the old worker": (AGAIN, build([*run_of("j", 2.0), *run_of("j", 4.0, LEGACY)])),
    # Or if Redis forgot its outcome, and who knew it was kept from saying it again.
    "its owner was there": (AGAIN, build(TWICE, crash())),
    "its owner died before": ("", build(TWICE, crash(), fault("child killed", 5.0, pids=(CHILD,), ends=True))),
    "its owner died later": (AGAIN, build(TWICE, crash(), fault("child killed", 8.0, pids=(CHILD,), ends=True))),
    "held up for long": ("", build(TWICE, crash(), fault("network slow", 5.0, 8.5, pids=(CHILD,)))),
    "held up for a moment": (AGAIN, build(TWICE, crash(), fault("network slow", 5.0, 7.5, pids=(CHILD,)))),
    "forgotten with the failure before it": (
        "",
        build([*FAILED, *run_of("j", 2.5, attempt=2), *run_of("j", 9.0, OTHER, 2)], crash()),
    ),
    "both were its own": (
        AGAIN,
        build([*run_of("j", 2.0, event=RAISED), *run_of("j", 2.5, attempt=2), *run_of("j", 9.0, OTHER, 2)], crash()),
    ),
    # What is left.
    "an innocent dead letter": ("1 innocent jobs", build(dead=("good-1",))),
    "a poison that is none": ("1 poison jobs are not among", build(None, DEADLY)),
    "stuck": (STUCK, build(run_of("j", 2.0), status="ACTIVE")),
    "stuck with the old worker": (
        "",
        build([Entry(TAKEN, "j", 0, LEGACY, 2.1), *run_of("j", 3.0, LEGACY)], status="ACTIVE"),
    ),
    "left keys": ("left over", build(left_keys=("rrq:active:jobs:w",))),
    "a complaint": ("outlived", build(complaints=["processes outlived pod-1: [7]"])),
    # Jobs of the dead are due again in time.
    "child late": ("due again after 1.40 s (p99), 1 s are allowed", due("child killed", 1.4)),
    "child late in an outage": (
        "",
        due("child killed", 1.4, fault("Redis shut down", 10.5, 11.0, is_outage=True)),
    ),
    "child late, its supervisor died": ("", due("child killed", 3.9, fault("pod killed", 10.4, pids=POD))),
    "supervisor late": ("supervisor killed: jobs were due again", due("supervisor killed", 20.5)),
    "pod late": ("pod killed: jobs were due again", due("pod killed", 21.0)),
    "pod late, its network was slow": ("", due("pod killed", 21.0, fault("network slow", 12.0, 14.0, pids=POD))),
    "pod late, another network": (
        "pod killed",
        due("pod killed", 21.0, fault("network slow", 12.0, 14.0, pids=(CHILD,))),
    ),
    "never due again": ("never given back", due("child killed", None)),
    "never measured": ("3 were injected away from every outage", build(None, *DEATHS)),
    # A backlog goes.
    "a backlog after a fault": ("backlog of 1 faults was not gone", build(None, killed(2.0, 7), waits=(2, 60))),
    "a backlog long after it": ("more jobs waited than 25 for 34 s from 10 s", build(waits=(10, 45))),
    "a backlog of an outage": ("", build(None, PAUSE, waits=(10, 45))),
    "a backlog of an outage stays": ("1 (Redis paused past the lease)", build(None, PAUSE, waits=(10, 55))),
    "one outage after the other": (
        "for 159 s from 10 s on, 70 s are allowed",
        build(
            None,
            *(fault("Redis killed", at, at + 1.0, is_outage=True) for at in map(float, range(10, 160, 15))),
            waits=(10, 170),
        ),
    ),
    "a backlog when the machine stood still": (
        "",
        build(None, killed(10.0, 7), waits=(10, 48), stalls=[fault(STALL, 20.0, 24.5)]),
    ),
    "nobody knows the backlog": (
        "backlog",
        build(None, killed(2.0, 7), samples=[Sample(float(at), None) for at in range(60)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_judge_finds_what_was_broken_and_excuses_what_a_fault_explains(case: str) -> None:
    broken, evidence = CASES[case]
    violations = judge(evidence, build_bars(15.0)).violations
    assert any(broken in violation for violation in violations) if broken else violations == []


def test_with_durability_redis_may_forget_nothing() -> None:
    evidence = build([], crash(kind="fail-over"), acknowledged_at=2.0, status=None)
    assert judge(evidence, build_bars(15.0)).lost_by_redis == 1
    (violation,) = judge(evidence, build_bars(15.0, durable_parts=frozenset({MAIN}))).violations
    assert "durability" in violation


def test_a_run_that_did_less_than_planned_or_whose_producers_failed_says_so() -> None:
    assert list(find_shortfalls(40, 35, 5, 100, 100)) == []
    assert list(find_shortfalls(40, 37, 0, 100, 99)) == [
        "only 37 of 40 planned faults were injected",
        "only 99 of 100 planned jobs were acknowledged",
    ]
    assert read_producers(MAIN, '{"refused": 7, "crashes": []}', []) == (7, [])
    assert len(read_producers(MAIN, '{"refused": 0, "crashes": ["KeyError"]}', [-11])[1]) == 2
    assert "did not say" in read_producers(MAIN, "", [])[1][0]


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_a_plan_has_every_kind_of_fault_in_its_time_and_outages_within_their_cap(seed: int) -> None:
    for config in (quick_config(seed), short_config(seed), full_config(seed)):
        size = (config.seconds, config.faults, config.lease_seconds, config.most_outages)
        plan = draw_plan(seed, *size, is_quick=config.is_quick)
        assert plan == draw_plan(seed, *size, is_quick=config.is_quick)
        assert len(plan) == config.faults
        kinds = QUICK_KINDS if config.is_quick else KINDS
        assert {fault.kind for fault in plan} == {kind.name for kind in kinds}
        assert all(0 <= fault.at_seconds <= config.seconds for fault in plan)
        assert sum(BY_NAME[fault.kind].is_outage for fault in plan) <= config.most_outages
    with pytest.raises(PlanDoesNotFit, match="Ask for fewer faults or a longer run"):
        draw_plan(seed, 10.0, 40, 3.0, 10)


def test_the_report_shows_every_violation_and_changes_only_the_text_between_its_markers(
    tmp_path: Path,
) -> None:
    config, evidence = (
        full_config(7),
        build([], killed(2.0), PAUSE, left_out=["clock faults: no libfaketime"]),
    )
    report = judge(evidence, build_bars(15.0))
    assert "VIOLATION: 1 acknowledged jobs are lost: j" in show(report)
    assert "left out: clock faults: no libfaketime" in show(report)
    (tmp_path / "reliability.md").write_text(f"# Title\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    write_documents(tmp_path, config, evidence, report)
    page = (tmp_path / "reliability.md").read_text()
    assert page.startswith(f"# Title\n\nBefore.\n\n{BEGIN}\n\nThe full run, `make chaos ARGS=")
    assert page.endswith(f"{END}\n\nAfter.\n")
    assert "**Promises were broken:**" in page
    assert "| **lost** | **1** |" in page
    told = json.loads((tmp_path / "reliability.json").read_text())
    assert (told["report"]["lost"], told["faults"][1]["begun_at"]) == (1, 10.0)
    plot = ElementTree.parse(tmp_path / "img" / "chaos.svg").getroot()
    assert [one.text for one in plot.iter("{http://www.w3.org/2000/svg}title")] == [
        "child killed",
        PAUSE.kind,
    ]
    with pytest.raises(ValueError, match="lacks its markers"):
        insert_tables("# Title\n", "new")
