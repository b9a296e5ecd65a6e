"""Looking at a job hash: whatever is in it, something sensible comes out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from rrq.inspect.counts import DeadLetterCounts, QueueCounts, error_pattern
from rrq.jobs.stored_job import LISTED_FIELDS, StoredJob, parse_listed_job, parse_stored_job

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def stored(**fields: str) -> StoredJob:
    return StoredJob("job-1", fields)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-04T12:00:00Z", NOON),
        ("2026-05-04T12:00:00+00:00", NOON),
        ("2026-05-04T14:00:00+02:00", NOON),
        ("2026-05-04T12:00:00", NOON),
        (str(NOON.timestamp()), NOON),
        ("noon", None),
        ("1e300", None),
        ("", None),
    ],
)
def test_times_are_read_in_every_form_that_was_ever_written(text: str, moment: datetime | None) -> None:
    assert stored(completion_time=text).completed_at == moment


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("3.0", 3), ("three", None), ("inf", None), ("", None)]
)
def test_numbers_that_are_none_are_none(text: str, number: int | None) -> None:
    assert stored(max_retries=text).number("max_retries") == number


def test_status_is_upper_case_and_pending_when_missing() -> None:
    assert stored(status="completed").status == "COMPLETED"
    assert stored().status == "PENDING"


def test_arguments_may_be_one_object() -> None:
    assert stored(job_params='{"to": "me"}').kwargs == {"to": "me"}
    assert stored(job_kwargs='{"to": "you"}', job_params="{}").kwargs == {"to": "you"}
    assert stored().args is None


def test_bytes_that_are_no_text_are_spelled_out() -> None:
    job = parse_stored_job("job-1", {b"last_error": b"caf\xe9"})
    assert job.last_error == "caf\\xe9"
    listed = parse_listed_job("job-1", [b"add", *([None] * (len(LISTED_FIELDS) - 1))])
    assert listed.fields == {"function_name": "add"}


def test_the_time_a_job_took() -> None:
    start = {"start_time": NOON.isoformat()}
    later = NOON + timedelta(seconds=5)
    assert stored(status="ACTIVE", **start).run_seconds(later) == 5
    assert stored(status="RETRYING", **start).run_seconds(later) is None
    assert stored(status="COMPLETED", **start).run_seconds(later) is None
    ended = stored(status="COMPLETED", completion_time=later.isoformat(), **start)
    assert ended.run_seconds(later + timedelta(hours=1)) == 5
    assert stored(status="ACTIVE").run_seconds(later) is None


def test_the_time_a_job_waited() -> None:
    enqueued = {"enqueue_time": NOON.isoformat()}
    later = (NOON + timedelta(seconds=5)).isoformat()
    assert stored(start_time=later, **enqueued).wait_seconds() == 5
    assert stored(**enqueued).wait_seconds() is None
    # A retry that waits for its time is due after its latest start.
    assert stored(start_time=NOON.isoformat(), next_scheduled_run_time=later).wait_seconds() is None


def test_the_counts_of_a_queue_cover_the_last_hour() -> None:
    counts = QueueCounts()
    assert counts.average_wait_seconds is None
    for minutes in (1, 30, 90):
        ended_at = (NOON - timedelta(minutes=minutes)).isoformat()
        counts.add(stored(status="COMPLETED", completion_time=ended_at), NOON)
    counts.add(stored(status="COMPLETED"), NOON)
    assert counts.statuses["COMPLETED"] == 4
    assert counts.completed_per_minute == pytest.approx(2 / 60)


def test_the_counts_of_dead_letters_have_the_oldest_and_the_newest() -> None:
    counts = DeadLetterCounts()
    assert counts.average_retries is None
    for hours in (2, 5, 3):
        failed_at = (NOON - timedelta(hours=hours)).isoformat()
        counts.add(stored(completion_time=failed_at, current_retries=str(hours)), "default")
    assert (counts.oldest, counts.newest) == (NOON - timedelta(hours=5), NOON - timedelta(hours=2))
    assert counts.average_retries == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"last_error": "order 17 of 23 failed\nmore"}, "order # of # failed"),
        ({"last_error": "no file 0x7fa6 in 3f2b8c9e-1111-2222-3333-444455556666"}, "no file # in #"),
        ({"last_error": "x" * 200}, "x" * 80),
        ({"last_error": "'user_7'", "error_type": "KeyError"}, "KeyError: 'user_#'"),
        ({"last_error": "x" * 200, "error_type": "shop.Error404"}, "shop.Error404: " + "x" * 80),
        ({"last_error": "", "error_type": "ValueError"}, "ValueError"),
        ({"last_error": "", "error_type": ""}, "(no error text)"),
        ({}, "(no error text)"),
    ],
)
def test_errors_of_one_kind_have_one_pattern(fields: dict[str, str], pattern: str) -> None:
    assert error_pattern(stored(**fields)) == pattern


def test_what_is_read_of_an_error_type_has_an_end() -> None:
    attempt = {"outcome": "retry", "error": "boom", "error_type": "x" * 5000}
    job = stored(error_type="x" * 5000, last_error="boom", attempts=json.dumps([attempt]))
    assert job.described_error == job.attempts[0].described_error == "x" * 200 + ": boom"
