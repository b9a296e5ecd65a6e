"""The job model as applications see it."""

import dataclasses
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rrq.job import Job, JobResult, JobStatus, new_job_id


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


def test_a_job_without_a_function_is_refused() -> None:
    with pytest.raises(ValidationError):
        Job.model_validate({})


def test_jobs_do_not_share_their_defaults() -> None:
    first, second = Job(function_name="a"), Job(function_name="a")
    first.job_args.append(1)
    first.job_kwargs["k"] = 1

    assert first.id != second.id
    assert (second.job_args, second.job_kwargs) == ([], {})


def test_unknown_fields_are_ignored() -> None:
    job = Job.model_validate({"function_name": "send", "from_the_future": 1})

    assert not hasattr(job, "from_the_future")


def test_assignment_is_not_validated() -> None:
    job = Job(function_name="send")
    job.job_timeout_seconds = 0.5  # type: ignore[assignment]  # what applications really do

    assert job.job_timeout_seconds == 0.5


@pytest.mark.parametrize("status", JobStatus)
def test_a_status_is_text_equal_to_its_name(status: JobStatus) -> None:
    assert status == status.name
    assert JobStatus(status.name) is status
    assert isinstance(status, str)


def test_the_statuses_are_those_of_rrq_0_7_and_two_more() -> None:
    assert [status.value for status in JobStatus] == [
        "PENDING",
        "ACTIVE",
        "COMPLETED",
        "FAILED",
        "RETRYING",
        "CANCELLED",
        "UNKNOWN",
    ]


def test_a_job_result_cannot_be_changed() -> None:
    result = JobResult(JobStatus.COMPLETED, result=42)

    assert result.last_error is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.result = 43  # type: ignore[misc]  # the point of the test
