"""Which cron entries are fired here, and which are left to workers."""

from __future__ import annotations

from local_mode import build_manifest
from rrq.broker.cron_table import CronTable
from rrq.cron import CronJob
from rrq_operator.api.spec import parse_pool
from rrq_operator.decide.cron_entries import build_cron_jobs, split_tables


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
