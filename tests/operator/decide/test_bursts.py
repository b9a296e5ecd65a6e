"""When a burst pool starts a run: values in, a decision out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from rrq.broker.messages import Observation, QueueObservation
from rrq_operator.api.schedules import JobRuns
from rrq_operator.decide.bursts import BurstInput, BurstWork, RunDecision, RunMemory, decide_run, measure_work

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
HOURLY = {"start": "OnSchedule", "schedule": "0 * * * *"}


@dataclass(frozen=True)
class PastRun:
    run: int
    is_finished: bool = True
    has_succeeded: bool = True
    finished_at: float | None = NOON
    has_ttl: bool = False
    lacks_functions: bool = False

    @property
    def name(self) -> str:
        return f"emails-run-{self.run}"


def running(number: int) -> PastRun:
    return PastRun(number, is_finished=False, has_succeeded=False, finished_at=None)


def failed(number: int, finished_at: float = NOON) -> PastRun:
    return PastRun(number, has_succeeded=False, finished_at=finished_at)


def decide(
    *runs: PastRun,
    spec: dict[str, Any] | None = None,
    due: int | None = 0,
    blocked: int = 0,
    is_paused: bool = False,
    memory: RunMemory | None = None,
    now: float = NOON,
    is_pod_left: bool = False,
) -> RunDecision:
    work = BurstWork(due, blocked, is_paused)
    given = BurstInput(runs, work, created_at=NOON - 60, now=now, is_pod_left=is_pod_left)
    return decide_run(JobRuns.model_validate(spec or {}), given, memory or RunMemory())


@pytest.mark.parametrize(
    ("runs", "due", "memory", "start", "reason"),
    [
        ((), 0, RunMemory(), None, "Idle"),
        ((), None, RunMemory(), None, "QueueUnreadable"),
        ((), 3, RunMemory(), 1, "Backlog"),
        ((running(1),), 3, RunMemory(), None, "Running"),
        ((PastRun(1),), 3, RunMemory(), 2, "Backlog"),
        ((PastRun(1), running(2)), 3, RunMemory(), None, "Running"),
        # Jobs that were deleted by hand have had their numbers.
        ((), 3, RunMemory(runs=7), 8, "Backlog"),
        ((PastRun(9),), 3, RunMemory(runs=7), 10, "Backlog"),
    ],
)
def test_a_run_starts_when_work_is_due_and_none_is_under_way(
    runs: tuple[PastRun, ...], due: int | None, memory: RunMemory, start: int | None, reason: str
) -> None:
    decision = decide(*runs, due=due, memory=memory)
    assert (decision.start, decision.reason) == (start, reason)


def test_nothing_starts_beside_a_pod_that_its_job_has_left_behind() -> None:
    assert decide(due=3, is_pod_left=True).reason == "Stopping"
    waiting = decide(spec=HOURLY, is_pod_left=True)
    assert (waiting.start, waiting.schedule_at) == (None, None), "the tick waits, it is not lost"


@pytest.mark.parametrize(
    ("runs", "memory", "start", "reason"),
    [
        ((), RunMemory(), 1, "Once"),
        ((running(1),), RunMemory(), None, "Running"),
        ((PastRun(1),), RunMemory(), None, "Finished"),
        ((failed(1),), RunMemory(), None, "Finished"),
        ((), RunMemory(runs=1), None, "Finished"),
    ],
)
def test_once_is_once(runs: tuple[PastRun, ...], memory: RunMemory, start: int | None, reason: str) -> None:
    decision = decide(*runs, spec={"start": "Once"}, memory=memory, due=5)
    assert (decision.start, decision.reason) == (start, reason)


@pytest.mark.parametrize("spec", [{}, {"start": "Once"}, HOURLY])
def test_a_frozen_pool_starts_nothing(spec: dict[str, Any]) -> None:
    decision = decide(spec=spec | {"paused": True}, due=5)
    assert (decision.start, decision.reason) == (None, "Frozen")


def test_a_run_starts_on_its_tick_and_not_again() -> None:
    assert decide(spec=HOURLY, now=NOON - 1).reason == "Waiting"
    on_time = decide(spec=HOURLY, now=NOON + 0.2)
    assert (on_time.start, on_time.next_schedule_at) == (1, NOON + 3600)
    # As it is read back from the status, which knows whole seconds.
    served = RunMemory(runs=1, last_schedule_at=float(int(on_time.schedule_at or 0)))
    assert decide(PastRun(1), spec=HOURLY, memory=served, now=NOON + 2).reason == "Waiting"


def test_a_schedule_is_read_in_its_time_zone() -> None:
    spec = HOURLY | {"schedule": "30 8 * * *", "timeZone": "Europe/Berlin"}
    assert decide(spec=spec).next_schedule_at == datetime(2026, 3, 2, 7, 30, tzinfo=UTC).timestamp()
    in_summer = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    decision = decide(spec=spec, memory=RunMemory(last_schedule_at=in_summer), now=in_summer)
    assert decision.next_schedule_at == datetime(2026, 4, 1, 6, 30, tzinfo=UTC).timestamp()


def test_missed_ticks_are_made_up_for_once() -> None:
    memory = RunMemory(runs=4, last_schedule_at=NOON - 5 * 3600)
    late = decide(spec=HOURLY, memory=memory, now=NOON + 100)
    assert late.start == 5
    # Even if its Job is deleted at once.
    again = decide(spec=HOURLY, memory=RunMemory(runs=5, last_schedule_at=late.schedule_at), now=NOON + 101)
    assert (again.start, again.next_schedule_at) == (None, NOON + 3600)


def test_a_tick_that_comes_during_a_run_is_skipped() -> None:
    decision = decide(running(1), spec=HOURLY, now=NOON + 1)
    assert (decision.start, decision.schedule_at) == (None, NOON + 1)


def test_a_date_that_never_comes_starts_nothing() -> None:
    spec = JobRuns.model_construct(start="OnSchedule", schedule="0 0 30 2 *", paused=False, keep_finished=3)
    decision = decide_run(spec, BurstInput((), BurstWork(0), NOON - 60, NOON), RunMemory())
    assert (decision.start, decision.words) == (None, "no run is planned")


def test_the_pause_after_failures_grows_and_ends_with_a_success() -> None:
    waits = []
    for failures in range(1, 8):
        runs = [failed(number) for number in range(1, failures + 1)]
        seconds = next(
            second for second in range(400) if decide(*runs, due=1, now=NOON + second).start is not None
        )
        waits.append(seconds)
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert decide(failed(1), PastRun(2), due=1).start == 3


def test_the_pause_after_runs_that_lacked_functions_and_ran_all_else_does_not_grow() -> None:
    lacking = [PastRun(number, has_succeeded=False, lacks_functions=True) for number in range(3, 9)]
    runs = (failed(1), failed(2), *lacking)
    assert [decide(*runs, due=1, now=NOON + second).start for second in (9, 10)] == [None, 9]
    # One more failure does not make up for them.
    runs = (*runs, failed(9))
    assert [decide(*runs, due=1, now=NOON + second).start for second in (19, 20)] == [None, 10]


def test_finished_runs_beyond_those_kept_get_a_time_to_live() -> None:
    runs = [PastRun(1, has_ttl=True), PastRun(2), failed(3), PastRun(4), running(5)]
    assert decide(*runs, spec={"keepFinished": 2}).expire == ("emails-run-2",)
    assert decide(*runs, spec={"keepFinished": 9}).expire == ()


# Blocked jobs and paused pools


def test_no_run_starts_for_jobs_that_may_not() -> None:
    decision = decide(due=0, blocked=40)
    assert (decision.start, decision.reason) == (None, "Blocked")
    assert "40 due are blocked" in decision.words
    assert decide(due=1, blocked=40).start == 1


@pytest.mark.parametrize(
    ("runs", "spec", "due", "start", "reason"),
    [
        ((), {}, 0, None, "Paused"),
        ((PastRun(1),), {}, 0, None, "Paused"),
        ((running(1),), {}, 0, None, "Paused"),
        ((), {"start": "Once"}, 0, None, "Paused"),
        ((), HOURLY, 0, None, "Paused"),
        ((), {}, None, None, "Paused"),
        # What is said of a pool that would start nothing anyway.
        ((PastRun(1),), {"start": "Once"}, 0, None, "Finished"),
        ((), {"paused": True}, 0, None, "Frozen"),
    ],
)
def test_a_paused_pool_starts_no_run(
    runs: tuple[PastRun, ...], spec: dict[str, Any], due: int | None, start: int | None, reason: str
) -> None:
    decision = decide(*runs, spec=spec, due=due, blocked=7, is_paused=True)
    assert (decision.start, decision.reason) == (start, reason)


def test_orphaned_jobs_start_a_run() -> None:
    def decide_for(work: BurstWork) -> RunDecision:
        return decide_run(JobRuns.model_validate({}), BurstInput((), work, NOON - 60, NOON), RunMemory())

    alone = decide_for(BurstWork(0, blocked=3, orphaned=2))
    assert (alone.start, alone.reason) == (1, "Backlog")
    assert alone.words == "0 due and 2 orphaned: run 1 starts"
    assert decide_for(BurstWork(None, orphaned=2)).start is None, "what is due is unknown"


def test_ticks_that_pass_while_paused_are_not_made_up_for() -> None:
    paused = decide(spec=HOURLY, is_paused=True, memory=RunMemory(last_schedule_at=NOON - 7200))
    assert paused.schedule_at == NOON
    resumed = decide(spec=HOURLY, memory=RunMemory(last_schedule_at=NOON), now=NOON + 1)
    assert (resumed.start, resumed.reason) == (None, "Waiting")


def test_what_is_measured_of_the_queues_of_a_burst() -> None:
    queues = {
        "a": QueueObservation(5, 0, 0, None, None, blocked=3, orphaned=2),
        "b": QueueObservation(4, 0, 0, None, None),
        "of others": QueueObservation(100, 0, 0, None, None),
    }
    seen = Observation(0, queues)
    assert measure_work(seen, ["a", "b"], is_paused=False) == BurstWork(6, 3, orphaned=2)
    assert measure_work(seen, ["a", "b"], is_paused=True) == BurstWork(0, 9, is_paused=True)
    assert measure_work(seen, ["a", "unreadable"], is_paused=True) == BurstWork(None, is_paused=True)
    assert measure_work(None, ["a"], is_paused=False) == BurstWork(None)
