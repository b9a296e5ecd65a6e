"""What a schedule is for: the runs of a pool of type Job, and jobs that the operator enqueues. Part of ``spec.py``."""

from typing import Any, Literal

from pydantic import Field, JsonValue

from rrq_operator.api.field_types import EntryName, QueueName, Schedule, TimeZone
from rrq_operator.api.rules import Part, Rule

#: For fields that are newer than the first release: with a default in the schema the API server would add them to every
#: stored pool, and an operator that is not upgraded yet refuses fields that it does not know.
NO_SCHEMA_DEFAULT: dict[str, JsonValue] = {"default": None}

JobStart = Literal["WhenDue", "OnSchedule", "Once"]


class JobRuns(Part):
    """When the Job of a burst pool runs and what is kept of it."""

    start: JobStart = Field(
        default="WhenDue",
        description="WhenDue: whenever work is due. OnSchedule: at the times of schedule. Once: a single run.",
    )
    schedule: Schedule | None = Field(
        default=None, description="minute hour day month weekday; with start: OnSchedule."
    )
    time_zone: TimeZone = Field(
        default="UTC",
        description="IANA name of the time zone of schedule, such as Europe/Berlin. Default: UTC.",
        json_schema_extra=NO_SCHEMA_DEFAULT,
    )
    paused: bool = Field(default=False, description="Freeze the pool: start no further run.")
    linger_seconds: int = Field(
        default=30,
        ge=0,
        le=3_600,
        description="How long a run waits for more work, such as retries, before it ends.",
    )
    backoff_limit: int = Field(
        default=3, ge=0, le=100, description="Failed pods after which a run counts as failed."
    )
    active_deadline_seconds: int | None = Field(
        default=None, ge=1, le=2_592_000, description="A run is ended after this time. Unset: never."
    )
    keep_finished: int = Field(
        default=3, ge=1, le=20, description="The last finished runs that are kept for reading."
    )
    ttl_seconds_after_finished: int = Field(
        default=600, ge=0, le=2_592_000, description="How long older finished runs are kept."
    )

    RULES = (
        Rule(
            "has(self.schedule) == (self.start == 'OnSchedule')",
            lambda runs: (runs.schedule is not None) == (runs.start == "OnSchedule"),
            "schedule goes with start: OnSchedule, and start: OnSchedule needs a schedule",
        ),
    )


class CronEntry(Part):
    """A job that is enqueued at the times of its schedule, also while the pool has no pod."""

    name: EntryName = Field(description="Name of the entry; no other entry of the pool has it.")
    schedule: Schedule = Field(description="minute hour day month weekday.")
    time_zone: TimeZone = Field(
        default="UTC",
        description="IANA name of the time zone of schedule, such as Europe/Berlin. Default: UTC.",
        json_schema_extra=NO_SCHEMA_DEFAULT,
    )
    function: str = Field(min_length=1, max_length=500, description="Name of the handler in the registry.")
    args: list[Any] = Field(default_factory=list, max_length=100, description="Positional arguments.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Named arguments.")
    queue: QueueName | None = Field(default=None, description="Default: the first queue of the pool.")
    unique: bool = Field(
        default=False, description="Skip a tick while the job of an earlier one is unfinished."
    )
    misfire_grace_seconds: int = Field(
        default=300,
        ge=1,
        le=2_592_000,
        description="How many seconds late a tick may fire after an outage. Of several missed ticks the last one fires. "
        "Default: 300.",
        json_schema_extra=NO_SCHEMA_DEFAULT,
    )
