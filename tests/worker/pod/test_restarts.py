"""Deaths and what follows from them, as tables."""

from __future__ import annotations

import pytest

from rrq.pod.restarts import (
    GIVE_UP_AFTER,
    LONGEST_DELAY_SECONDS,
    Death,
    End,
    count_failures,
    describe_cause,
    is_hopeless,
    judge_death,
    restart_delay_seconds,
)


@pytest.mark.parametrize(
    ("code", "facts", "end", "how"),
    [
        (-9, {}, End.CRASHED, "SIGKILL"),
        (-11, {}, End.CRASHED, "SIGSEGV"),
        (-40, {}, End.CRASHED, "signal 40"),
        (1, {}, End.CRASHED, "exit 1"),
        (0, {}, End.CRASHED, "exit 0"),
        (0, {"is_orderly": True}, End.ENDED, "exit 0"),
        (0, {"is_orderly": True, "asked": End.RETIRED}, End.RETIRED, "exit 0"),
        (-9, {"asked": End.RETIRED}, End.CRASHED, "SIGKILL"),
        (-9, {"asked": End.STOPPED}, End.STOPPED, "SIGKILL"),
        (-9, {"asked": End.HUNG}, End.HUNG, "SIGKILL"),
        (1, {"is_unfit": True}, End.UNFIT, "exit 1"),
        (1, {"is_unfit": True, "asked": End.STOPPED}, End.STOPPED, "exit 1"),
    ],
)
def test_deaths_are_judged_by_exit_code_and_intention(
    code: int, facts: dict[str, object], end: End, how: str
) -> None:
    death = judge_death(code, **{"is_orderly": False, "is_unfit": False, "asked": None, **facts})  # type: ignore[arg-type]  # a table
    assert (death.end, death.how) == (end, how)
    assert death.is_crash is (end in (End.CRASHED, End.HUNG))


CRASH = Death(End.CRASHED, "SIGKILL", None)


def test_failures_add_up_until_a_child_has_worked() -> None:
    assert count_failures(3, CRASH, finished_jobs=0, lived_seconds=1) == 4
    assert count_failures(3, CRASH, finished_jobs=1, lived_seconds=1) == 1
    assert count_failures(3, CRASH, finished_jobs=0, lived_seconds=61) == 1
    for end in (End.RETIRED, End.STOPPED):
        assert count_failures(3, Death(end, None, 0), finished_jobs=0, lived_seconds=1) == 0


def test_orderly_ends_without_any_work_count_as_failures() -> None:
    ended = Death(End.ENDED, None, 0)
    assert count_failures(3, ended, finished_jobs=0, lived_seconds=1) == 4
    assert count_failures(3, ended, finished_jobs=5, lived_seconds=1) == 0
    assert count_failures(3, ended, finished_jobs=0, lived_seconds=61) == 0


def test_the_restart_delay_grows_to_its_limit() -> None:
    pauses = [restart_delay_seconds(failures) for failures in range(12)]
    assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert restart_delay_seconds(10_000) == LONGEST_DELAY_SECONDS


def test_a_pod_gives_up_only_when_every_place_fails() -> None:
    assert not is_hopeless([GIVE_UP_AFTER, GIVE_UP_AFTER - 1])
    assert is_hopeless([GIVE_UP_AFTER, GIVE_UP_AFTER + 3])


def test_the_crash_history_of_a_job_has_signal_and_memory() -> None:
    cause = describe_cause(CRASH, worker_id="w1", rss_bytes=5, at="then")
    assert (cause["signal"], cause["exit_code"], cause["rss_bytes"]) == ("SIGKILL", None, 5)
    hung = describe_cause(Death(End.HUNG, "SIGKILL", None), worker_id="w1", rss_bytes=None, at="then")
    assert "hung" in hung["how"]
