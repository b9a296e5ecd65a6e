"""The job model as applications see it."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rrq.job import Job, JobStatus, new_job_id


def test_job_ids_are_random_uuids_in_text_form() -> None:
    ids = {new_job_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(str(uuid.UUID(job_id, version=4)) == job_id for job_id in ids)


def test_a_job_needs_only_the_name_of_its_function() -> None:
    before = datetime.now(UTC)
    job = Job(function_name="send")

    assert job.model_dump(exclude={"id", "enqueue_time"}) == {
        "function_name": "send",
        "job_args": [],
        "job_kwargs": {},
        "status": JobStatus.PENDING,
        "current_retries": 0,
        "next_scheduled_run_time": None,
        "max_retries": 3,
        "job_timeout_seconds": None,
        "result_ttl_seconds": None,
        "job_unique_key": None,
        "completion_time": None,
        "result": None,
        "last_error": None,
        "error_type": None,
        "queue_name": None,
        "dlq_name": None,
        "trace_context": None,
    }
    assert before <= job.enqueue_time <= datetime.now(UTC)
    assert job.enqueue_time.utcoffset() == timedelta(0)


def test_unknown_fields_are_ignored_and_assignment_is_not_validated() -> None:
    job = Job.model_validate({"function_name": "send", "from_the_future": 1})
    assert not hasattr(job, "from_the_future")
    job.job_timeout_seconds = 0.5  # type: ignore[assignment]  # what applications really do
    assert job.job_timeout_seconds == 0.5
    with pytest.raises(ValidationError):
        Job.model_validate({})


def test_the_statuses_are_the_words_of_rrq_0_7_and_two_more() -> None:
    words = ["PENDING", "ACTIVE", "COMPLETED", "FAILED", "RETRYING", "CANCELLED", "UNKNOWN"]
    assert [str.__str__(status) for status in JobStatus] == words
    assert list(JobStatus) == words
