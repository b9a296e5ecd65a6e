"""What the page is sent: nothing invented, nothing unbounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from rrq.broker.cron_table import CronTable
from rrq.broker.keys import Keys
from rrq.broker.messages import QueueObservation, WorkerObservation
from rrq.cron import CronJob, cron_digest
from rrq.dashboard.dead_groups import build_dead_letters, build_group_page, group_dead_letters
from rrq.dashboard.job_views import ValueRules, build_job
from rrq.dashboard.samples import MinuteDepths, build_history, build_sample
from rrq.dashboard.values import (
    DashboardSnapshot,
    FoundJob,
    JobQuery,
    matches,
)
from rrq.dashboard.views import (
    build_controls,
    build_cron_rows,
    build_pool_rows,
    build_queue_rows,
)
from rrq.flow import FlowState, Limit, MinuteStats, Pause, PoolReport
from rrq.jobs.stored_job import StoredJob

KEYS = Keys()
NOW = datetime(2026, 11, 1, 12, 0, 30, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MINUTE = NOW_MS // 60_000


def snapshot(**changes: Any) -> DashboardSnapshot:
    values: dict[str, Any] = {
        "now_ms": NOW_MS,
        "queues": {},
        "workers": {},
        "counters": {},
        "dead_letters": 0,
        "flow": FlowState(),
        "minutes": (),
    }
    return DashboardSnapshot(**values | changes)


def worker(worker_id: str, *queues: str, busy: int = 0) -> WorkerObservation:
    return WorkerObservation(worker_id, "", busy, 4, False, queues, NOW_MS + 5000, "1")


def stored(job_id: str = "1", **fields: Any) -> StoredJob:
    return StoredJob(
        job_id, {"function_name": "charge", "queue_name": "payments", "status": "FAILED"} | fields
    )


# Samples


def test_rates_are_relative_to_the_previous_snapshot() -> None:
    before = snapshot(now_ms=NOW_MS - 2000, counters={"done": 100, "dead": 1})
    sample = build_sample(before, snapshot(counters={"done": 160, "dead": 1, "retry": 4}))
    assert sample["rates"]["done"] == 30
    assert sample["rates"]["retry"] == 2
    assert sample["rates"]["dead"] == 0


def test_an_unknown_rate_is_not_zero() -> None:
    assert build_sample(None, snapshot(counters={"done": 5}))["rates"] is None
    emptied = snapshot(now_ms=NOW_MS - 1000, counters={"done": 500})
    assert build_sample(emptied, snapshot(counters={"done": 3}))["rates"] is None
    assert build_sample(None, snapshot())["oldest_seconds"] is None
    assert build_sample(None, snapshot())["wait_seconds"] is None


def test_the_wait_covers_jobs_that_started_since_the_previous_snapshot() -> None:
    def minutes(started: int, wait_ms: int) -> tuple[MinuteStats, ...]:
        return (MinuteStats(MINUTE, {}, {"a": {"started": started, "wait_ms": wait_ms}}),)

    before = snapshot(now_ms=NOW_MS - 1000, minutes=minutes(10, 1000))
    assert build_sample(before, snapshot(minutes=minutes(14, 3000)))["wait_seconds"] == 0.5
    assert build_sample(before, snapshot(minutes=minutes(10, 1000)))["wait_seconds"] is None


def test_a_sample_adds_up_queues_and_workers_and_names_the_deepest() -> None:
    queues = {f"q{number:02}": QueueObservation(number, 1, 2, float(number), None) for number in range(12)}
    seen = snapshot(queues=queues, workers={"w": worker("w", "q01", busy=3)}, dead_letters=7)
    sample = build_sample(None, seen)
    assert (sample["due"], sample["later"], sample["oldest_seconds"]) == (66, 36, 11.0)
    assert (sample["running"], sample["capacity"], sample["workers"], sample["dead_letters"]) == (3, 4, 1, 7)
    assert [row["name"] for row in sample["queues"]] == [f"q{number:02}" for number in range(11, 3, -1)]
    assert sample["queue_count"] == 12


def test_the_history_has_the_depth_of_sampled_minutes_only() -> None:
    depths = MinuteDepths()
    depths.add(snapshot(queues={"a": QueueObservation(9, 0, 0, 1.0, None)}))
    minutes = tuple(MinuteStats(minute, {"done": 3}, {}) for minute in (MINUTE - 1, MINUTE))
    history = build_history(snapshot(minutes=minutes), [build_sample(None, snapshot())], depths)
    assert [minute["due"] for minute in history["minutes"]] == [None, 9]
    assert [minute["done"] for minute in history["minutes"]] == [3, 3]
    # An hour of them is kept.
    for later in range(100):
        depths.add(snapshot(now_ms=NOW_MS + later * 60_000))
    assert depths.get(MINUTE + 39) is None
    assert depths.get(MINUTE + 40) is not None


# Queues and controls


def test_a_queue_shows_its_pause_and_its_workers() -> None:
    flow = FlowState(
        pauses={"queue:a": Pause("paused", "anna", NOW, "moving house")},
        limits={"queue:a": Limit(concurrency=2)},
    )
    seen = snapshot(
        queues={"a": QueueObservation(1, 0, 0, 2.0, None), "b": QueueObservation(0, 0, 0, None, None)},
        workers={"w": worker("w", "a")},
        flow=flow,
        minutes=(MinuteStats(MINUTE, {}, {"a": {"started": 30, "wait_ms": 600, "dead": 2}}),),
    )
    one, other = build_queue_rows(seen)
    assert one["pause"] == {"state": "paused", "by": "anna", "at_ms": NOW_MS, "reason": "moving house"}
    assert (one["workers"], one["limit"]["concurrency"], one["dead_last_hour"]) == (1, 2, 2)
    assert one["started_per_minute"] == 20
    assert one["wait_seconds"] == 0.02
    assert other["pause"] is other["limit"] is other["wait_seconds"] is None


def test_orphaned_jobs_are_counted_by_queue_and_in_total() -> None:
    queues = {name: QueueObservation(0, 0, 0, None, None, orphaned=2) for name in ("mail", "reports")}
    seen = snapshot(queues=queues)
    assert [row["orphaned"] for row in build_queue_rows(seen)] == [2, 2]
    assert build_sample(None, seen)["orphaned"] == 4


def test_functions_are_those_that_ran_recently_or_are_controlled() -> None:
    flow = FlowState(
        pauses={"function:send": Pause("disabled", "omar", NOW)},
        limits={"function:charge": Limit(key="customer", per_key=1)},
        blocked={"f:charge": 1, "k:charge:7": 2, "k:charger:7": 9},
    )
    controls = build_controls(flow, [stored(), stored(), None, stored(function_name="render")])
    assert [(row["name"], row["recent"], row["blocked"]) for row in controls["functions"]] == [
        ("charge", 2, 3),
        ("render", 1, 0),
        ("send", 0, 0),
    ]
    assert controls["pauses"][0]["target"] == "function:send"


# Jobs


def test_the_timeline_has_every_attempt_in_order() -> None:
    first = {"start": "2026-11-01T11:00:00Z", "end": "2026-11-01T11:00:02Z", "worker": "w1"}
    second = {"start": "2026-11-01T11:01:00Z", "end": "2026-11-01T11:01:05Z", "worker": "w2"}
    attempts = [first | {"outcome": "retry", "error": "no"}, second | {"outcome": "back"}, "nonsense"]
    job = stored(
        status="COMPLETED",
        enqueue_time="2026-11-01T10:59:00Z",
        start_time="2026-11-01T11:02:00Z",
        completion_time="2026-11-01T11:02:01Z",
        worker_id="w3",
        attempts=json.dumps(attempts),
    )
    told = build_job(FoundJob(job, False), KEYS, NOW, ValueRules())["timeline"]
    assert [(event["kind"], event["worker"], event["error"]) for event in told] == [
        ("enqueued", None, None),
        ("retry", "w1", "no"),
        ("back", "w2", None),
        ("done", "w3", None),
    ]
    assert told[1]["ended_ms"] - told[1]["at_ms"] == 2000


def test_the_timeline_ends_with_the_state_of_the_job() -> None:
    def last(**fields: Any) -> str:
        job = stored(next_scheduled_run_time=NOW.isoformat(), completion_time=NOW.isoformat(), **fields)
        kind: str = build_job(FoundJob(job, False), KEYS, NOW, ValueRules())["timeline"][-1]["kind"]
        return kind

    assert last(status="FAILED") == "dead"
    assert last(status="CANCELLED") == "cancelled"
    assert last(status="RETRYING") == "due"
    assert last(status="PENDING", parked_in="f:charge") == "blocked"
    assert last(status="ACTIVE", start_time=NOW.isoformat()) == "running"


def test_large_values_are_cut() -> None:
    job = stored(job_args=json.dumps(["x" * 200_000]))
    told = build_job(FoundJob(job, False), KEYS, NOW, ValueRules())["args"]
    assert told["is_cut"]
    assert len(told["text"]) < 70_000


def test_invalid_parts_of_progress_are_left_out() -> None:
    def progress(text: str) -> Any:
        return build_job(FoundJob(stored(progress=text), False), KEYS, NOW, ValueRules())["progress"]

    assert progress('{"done": 3, "total": null, "note": "rows", "at": "2026-11-01T12:00:30+00:00"}') == {
        "done": 3,
        "total": None,
        "note": "rows",
        "at_ms": NOW_MS,
    }
    assert progress("[]") is None


def test_a_filter_matches_function_error_queue_and_id() -> None:
    job = stored("abc-1", last_error="Card declined", queue_name="rrq:queue:payments")

    def found(**query: Any) -> bool:
        return matches(JobQuery("recent", **query), KEYS, "abc-1", job)

    assert found()
    assert found(text="DECLINED")
    assert found(text="abc-")
    assert found(text="charge")
    assert not found(text="render")
    assert found(queue="payments", status="FAILED")
    assert not found(queue="pay")
    assert not found(status="COMPLETED")
    assert matches(JobQuery("recent"), KEYS, "gone", None)
    assert not matches(JobQuery("recent", status="FAILED"), KEYS, "gone", None)


# Dead letters


def test_dead_letters_with_one_error_are_one_group() -> None:
    ended = [(NOW - timedelta(minutes=minutes)).isoformat() for minutes in (1, 5, 9)]
    jobs = [
        stored("1", last_error="order 17 not found", completion_time=ended[0]),
        stored(
            "2", last_error="order 4711 not found", completion_time=ended[2], queue_name="rrq:queue:other"
        ),
        stored("3", last_error="order 17 not found", function_name="refund"),
        stored("4", last_error="timeout at 0xdeadbeef", completion_time=ended[1]),
        stored("5", last_error="order 18 not found", error_type="KeyError"),
    ]
    groups = group_dead_letters(jobs, KEYS)
    assert [(group.function, group.pattern, group.job_ids) for group in groups] == [
        ("charge", "order # not found", ["1", "2"]),
        ("charge", "KeyError: order # not found", ["5"]),
        ("charge", "timeout at #", ["4"]),
        ("refund", "order # not found", ["3"]),
    ]
    told = build_dead_letters(jobs, 9, KEYS)
    assert (told["total"], told["looked_at"], told["group_count"]) == (9, 5, 4)
    first = told["groups"][0]
    assert first["queues"] == {"payments": 1, "other": 1}
    assert first["last_ms"] - first["first_ms"] == 8 * 60_000


def test_a_group_is_shown_page_by_page() -> None:
    jobs = [stored(str(number), last_error="no") for number in range(5)]
    (group,) = group_dead_letters(jobs, KEYS)
    page = build_group_page(jobs, group.group_id, 2, 2, KEYS, NOW)
    assert page is not None
    assert [job["id"] for job in page["jobs"]] == ["2", "3"]
    assert page["next_offset"] == 4
    last = build_group_page(jobs, group.group_id, 4, 2, KEYS, NOW)
    assert last is not None
    assert last["next_offset"] is None
    assert build_group_page(jobs, "unheard of", 0, 2, KEYS, NOW) is None


# Cron and pools


def test_the_next_cron_entry_comes_first() -> None:
    hourly = CronJob(function_name="hourly", schedule="0 * * * *")
    often = CronJob(
        function_name="often", schedule="*/5 * * * *", queue_name="rrq:queue:fast", timezone="Asia/Kolkata"
    )
    never = CronJob(function_name="never", schedule="0 0 30 2 *")
    table = CronTable(("default",), 0, NOW_MS, (hourly, never, often))
    rows = build_cron_rows([table], {cron_digest(often, "fast"): 77}, KEYS, "rrq:queue:default", NOW)
    assert [(row["function"], row["queue"], row["time_zone"], row["last_ms"]) for row in rows] == [
        ("often", "fast", "Asia/Kolkata", 77),
        ("hourly", "default", "UTC", None),
        ("never", "default", "UTC", None),
    ]
    assert rows[0]["next_ms"] == int(datetime(2026, 11, 1, 12, 5, tzinfo=UTC).timestamp() * 1000)
    assert rows[2]["next_ms"] is None


def test_a_pool_is_paused_by_its_report_or_by_a_user() -> None:
    flow = FlowState(pauses={"pool:shop/a": Pause("paused", "anna", NOW)})
    reports = [
        PoolReport(
            f"shop/{name}", "Deployment", ("x",), 2, 1, 3, None, None, 4, "Backlog", "", NOW_MS, name == "b"
        )
        for name in ("a", "b", "c")
    ]
    rows = build_pool_rows(reports, flow)
    assert [row["is_paused"] for row in rows] == [True, True, False]
    # What is not known stays so.
    assert (rows[0]["ready"], rows[0]["desired"], rows[0]["due"], rows[0]["busy"]) == (1, 3, None, 4)
