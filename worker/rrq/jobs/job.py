"""A job and where it stands: values that applications see.

``codec.py`` and ``job_hash.py`` know how Redis stores a job. Applications import these names from ``rrq.job``.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

from rrq.jobs.request import new_job_id

__all__ = ["Job", "JobResult", "JobStatus"]


class JobStatus(str, Enum):  # noqa: UP042  str() is "JobStatus.PENDING" in 0.7, which applications compare with
    """Where a job stands. The text stored in Redis is the member's name."""

    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRYING = "RETRYING"
    CANCELLED = "CANCELLED"
    # Only read, never stored: a newer version or another program wrote a word that we do not know.
    UNKNOWN = "UNKNOWN"


def _now() -> datetime:
    return datetime.now(UTC)


class Job(BaseModel):
    """One unit of work.

    Unknown input is ignored, so that fields written by newer versions never break a reader, and
    assignment is not validated, because applications of 0.7 assign freely.
    """

    id: str = Field(default_factory=new_job_id)
    function_name: str = Field(description="Name under which the handler is registered.")
    job_args: list[Any] = Field(default_factory=list)
    job_kwargs: dict[str, Any] = Field(default_factory=dict)
    enqueue_time: datetime = Field(default_factory=_now, description="Aware, UTC.")
    status: JobStatus = JobStatus.PENDING
    current_retries: int = Field(default=0, description="Failed attempts so far.")
    next_scheduled_run_time: datetime | None = Field(
        default=None, description="When the job becomes, or became, due."
    )
    max_retries: int = Field(default=3, description="Attempts in total: 0 and 1 both mean a single attempt.")
    job_timeout_seconds: int | None = Field(
        default=None, description="Limit of one attempt; None takes the setting of the worker."
    )
    result_ttl_seconds: int | None = Field(
        default=None, description="How long a result is kept; None takes the worker's setting."
    )
    job_unique_key: str | None = None
    completion_time: datetime | None = None
    result: Any | None = None
    last_error: str | None = None
    error_type: str | None = Field(
        default=None, description="The exception behind last_error, named as in a traceback."
    )
    queue_name: str | None = Field(default=None, description="As the producer wrote it.")
    dlq_name: str | None = None
    trace_context: dict[str, str] | None = Field(
        default=None, description="Headers that join the handler's trace to the producer's."
    )


@dataclass(frozen=True, slots=True)
class JobResult:
    """The public view of the outcome of a job, and of its status before it has one."""

    status: JobStatus
    result: Any | None = None
    last_error: str | None = None
    error_type: str | None = None
    """The exception behind ``last_error``, named as in a traceback; None where no handler raised one."""
