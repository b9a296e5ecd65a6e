"""When pools are looked at, and which cron entries are looked after: pure."""

from __future__ import annotations

import pytest

from local_mode import build_manifest
from rrq.broker.cron_table import CronTable
from rrq.broker.messages import Observation, QueueObservation
from rrq.cron import CronJob
from rrq_operator.api.spec import parse_pool
from rrq_operator.decide.cron_entries import build_cron_jobs, split_tables
from rrq_operator.local.redis_group import seconds_to_next_look

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("next_due_seconds", "due_soon", "wait_seconds"),
    [
        (None, 0, 1.0),
        (3600, 0, 1.0),
        (2.4, 0, 0.41),
        (2.0, 0, 0.01),
        (1.0, 1, 1.0),
    ],
)
def test_a_look_comes_when_a_replica_has_to_start(
    next_due_seconds: float | None, due_soon: int, wait_seconds: float
) -> None:
    next_due_ms = None if next_due_seconds is None else int(NOW_MS + next_due_seconds * 1000)
    queue = QueueObservation(0, due_soon, 1, None, next_due_ms)
    seen = Observation(NOW_MS, {"jobs": queue})
    assert seconds_to_next_look(seen, {"jobs": 2.0}) == pytest.approx(wait_seconds)


def test_an_unreadable_redis_is_asked_again_in_a_second() -> None:
    assert seconds_to_next_look(None, {"jobs": 2.0}) == 1.0


def test_entries_of_a_manifest_go_to_its_first_queue_unless_they_name_one() -> None:
    entry = {"name": "tick", "schedule": "0 * * * *", "function": "note", "args": [1], "kwargs": {"x": 2}}
    spec = parse_pool(
        build_manifest(
            queues=["a", "b"],
            cron=[
                entry,
                entry
                | {"name": "tock", "queue": "b", "unique": True}
                | {"timeZone": "Europe/Berlin", "misfireGraceSeconds": 60},
            ],
        )
    ).spec
    first, second = build_cron_jobs(spec)
    assert (first.queue_name, first.args, first.kwargs, first.unique) == ("a", [1], {"x": 2}, False)
    assert (second.queue_name, second.unique) == ("b", True)
    assert (first.timezone, first.misfire_grace_seconds) == ("UTC", 300)
    assert (second.timezone, second.misfire_grace_seconds) == ("Europe/Berlin", 60)


def test_tables_of_other_applications_are_left_alone() -> None:
    def table(*queues: str) -> CronTable:
        entry = CronJob(function_name="-".join(queues), schedule="* * * * *")
        return CronTable(queues, 0, 0, (entry,))

    away, there = split_tables(
        [table("a", "b"), table("c"), table("foreign")],
        pools=[["b", "a"], ["c"], ["d"]],
        served=[["c"], ["foreign"]],
    )
    assert [entry.function_name for entry in away] == ["a-b"]
    assert [entry.function_name for entry in there] == ["c"]
