"""The status of an RRQWorkerPool as the operator writes it: the one source of that part of the schema.

Every field may be absent: what could not be read is left out rather than written as zero. ``decide/status.py`` decides
which values go in, ``control/reporting.py`` writes them.
"""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

#: In UTC and whole seconds, as Kubernetes writes it, so that an unchanged status stays the same text.
Time = AwareDatetime
Count = Annotated[int, Field(ge=0)]
LONGEST_REASON = 1024
LONGEST_MESSAGE = 32_768


class _StatusPart(BaseModel):
    """Ignores what it does not know: a newer operator may have written it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Condition(_StatusPart):
    """One condition, in the form that all of Kubernetes shares."""

    type: str = Field(max_length=316, description="What it is about, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(min_length=1, max_length=LONGEST_REASON, description="Why, in one word for programs.")
    message: str = Field(max_length=LONGEST_MESSAGE, description="Why, in words for people.")
    last_transition_time: Time = Field(description="When status last changed.")
    observed_generation: Count | None = Field(
        default=None, description="The generation of the pool that this speaks of."
    )


class LastDecision(_StatusPart):
    """The last decision about the size of the pool."""

    time: Time | None = Field(default=None, description="When it was made.")
    reason: str | None = Field(default=None, description="Why, in one word for programs.")
    words: str | None = Field(default=None, description="Inputs and outcome in a sentence.")
    replicas: Count | None = Field(default=None, description="The size that was chosen.")


class RunsStatus(_StatusPart):
    """The runs of a pool of type: Job."""

    active: str | None = Field(default=None, description="Name of the Job that runs now.")
    runs: Count | None = Field(default=None, description="Number of the last run that was started.")
    last_schedule_time: Time | None = Field(
        default=None, description="Up to when times of the schedule have been served or skipped."
    )
    last_start_time: Time | None = Field(default=None, description="When the last run started.")
    last_finish_time: Time | None = Field(default=None, description="When the last run ended.")
    last_result: str | None = Field(default=None, description="How the last run ended.")
    next_schedule_time: Time | None = Field(
        default=None, description="When the schedule comes due the next time."
    )


class PoolStatus(_StatusPart):
    """The observed state of a pool."""

    observed_generation: Count | None = Field(
        default=None, description="The generation of the pool that was last acted on."
    )
    replicas: Count | None = Field(default=None, description="Pods of the pool.")
    ready_replicas: Count | None = Field(default=None, description="Pods that are ready.")
    desired_replicas: Count | None = Field(default=None, description="Pods that the pool should have.")
    due: Count | None = Field(default=None, description="Jobs that are due and wait.")
    blocked: Count | None = Field(
        default=None, description="Of those due, jobs that a pause or a limit keeps from starting."
    )
    orphaned: Count | None = Field(
        default=None,
        description="Jobs of workers whose lease has ended; they are about to be requeued.",
    )
    due_soon: Count | None = Field(
        default=None, description="Jobs that come due before a new pod would be ready."
    )
    later: Count | None = Field(default=None, description="Jobs that come due after that.")
    busy: Count | None = Field(default=None, description="Jobs that run.")
    oldest_due_time: Time | None = Field(
        default=None, description="When the job that has waited longest came due."
    )
    queues: str | None = Field(default=None, description="The queues, joined for reading.")
    reason: str | None = Field(default=None, description="Why the pool has its size, in one word.")
    selector: str | None = Field(default=None, description="Label selector of the pods.")
    startup_seconds: float | None = Field(
        default=None, ge=0, description="How long a new pod takes to be ready, as measured."
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=20,
        description="Ready, QueueReachable, ScalingActive, ScalingLimited, Draining.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    last_decision: LastDecision | None = Field(
        default=None, description="The last decision about the size of the pool."
    )
    job: RunsStatus | None = Field(default=None, description="The runs of a pool of type: Job.")
