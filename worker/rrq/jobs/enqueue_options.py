"""What may be said about a job beside its arguments, in one place: as the typed API spells it, and as a producer.

The decorator says it for all jobs of a function, ``with_options`` for some of them; what was said last wins, field
by field. A new option is a line in a TypedDict, one in ``EnqueueOptions`` and one in ``build_request``. What an option
means is told by ``RRQClient.enqueue``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict

from rrq.client import Deferral, JobRequest
from rrq.jobs.options import NO_OPTIONS, JobOptions

__all__ = ["CallOptions", "EnqueueOptions", "FunctionOptions", "Key"]

#: A text, or a function that makes it from the arguments of the job.
Key = str | Callable[..., str]


class FunctionOptions(TypedDict, total=False):
    """What the decorator takes: true of every job of the function."""

    queue: str | None
    unique_key: Key | None
    max_retries: int | None
    timeout_seconds: int | None
    result_ttl_seconds: int | None
    priority: int | None
    limit_key: Key | None
    idempotency_key: Key | None
    idempotency_seconds: float | None
    debounce_key: Key | None
    debounce_max_seconds: float | None


class CallOptions(FunctionOptions, total=False):
    """What ``with_options`` takes: all of that, and what only makes sense for the jobs at hand."""

    job_id: str | None
    defer_by: Deferral | None
    defer_until: datetime | None
    replace_if_pending: bool
    then: Sequence[JobRequest]


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """The options of jobs to come. None leaves it to the settings."""

    queue: str | None = None
    unique_key: Key | None = None
    max_retries: int | None = None
    timeout_seconds: int | None = None
    result_ttl_seconds: int | None = None
    priority: int | None = None
    limit_key: Key | None = None
    idempotency_key: Key | None = None
    idempotency_seconds: float | None = None
    debounce_key: Key | None = None
    debounce_max_seconds: float | None = None
    job_id: str | None = None
    defer_by: Deferral | None = None
    defer_until: datetime | None = None
    replace_if_pending: bool = False
    then: Sequence[JobRequest] = ()

    def merged(self, options: CallOptions) -> "EnqueueOptions":
        """Return these with the given ones in their place; None takes back what was said before."""
        # Two ways to say the same: the later one replaces the earlier one, whichever it was.
        is_due_said = "defer_by" in options or "defer_until" in options
        base = replace(self, defer_by=None, defer_until=None) if is_due_said else self
        return replace(base, **options)

    def build_request(self, function_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobRequest:
        def resolve(key: Key | None) -> str | None:
            return key(*args, **kwargs) if callable(key) else key

        options = JobOptions(
            priority=self.priority,
            limit_key=resolve(self.limit_key),
            idempotency_key=resolve(self.idempotency_key),
            idempotency_seconds=_or_default(self.idempotency_seconds, NO_OPTIONS.idempotency_seconds),
            debounce_key=resolve(self.debounce_key),
            debounce_max_seconds=self.debounce_max_seconds,
            replaces_pending=self.replace_if_pending,
        )
        return JobRequest(
            function_name,
            args,
            kwargs,
            queue_name=self.queue,
            job_id=self.job_id,
            unique_key=resolve(self.unique_key),
            max_retries=self.max_retries,
            job_timeout_seconds=self.timeout_seconds,
            result_ttl_seconds=self.result_ttl_seconds,
            defer_until=self.defer_until,
            defer_by=self.defer_by,
            # The same object where nothing was asked for, by which the client knows it at once.
            options=NO_OPTIONS if options == NO_OPTIONS else options,
            then=self.then,
        )


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value
