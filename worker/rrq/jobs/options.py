"""The options of a job, once. Values only.

A new option is one line here, in ``OptionsOfFunction`` or in ``OptionsOfCall``, and one in ``lua/shared/enqueue.lua``.
``RRQClient.enqueue`` (with an underscore in front), ``JobRequest``, ``App.job`` and ``with_options`` all take it from
here. ``RRQClient.enqueue`` explains each option; ``request.py`` writes them for Redis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from rrq.runtime.suggestions import suggest

if TYPE_CHECKING:
    from rrq.jobs.request import JobRequest

__all__ = [
    "CALL_OPTIONS",
    "FUNCTION_OPTIONS",
    "JOB_OPTIONS",
    "CallOptions",
    "Deferral",
    "FunctionOptions",
    "JobOptions",
    "Key",
    "check_names",
    "merge_options",
    "resolve_keys",
]

#: How long from now: numbers are seconds.
Deferral = timedelta | int | float
#: A text; the typed API also takes a function that makes it from the arguments of the job.
Key = str | Callable[..., str]


class OptionsOfFunction(TypedDict, total=False):
    """Options that may apply to all jobs of a function. None stands for the default."""

    unique_key: Key | None
    max_retries: int | None
    result_ttl_seconds: int | None
    priority: int | None
    limit_key: Key | None
    idempotency_key: Key | None
    idempotency_seconds: float | None
    debounce_key: Key | None
    debounce_max_seconds: float | None


class OptionsOfCall(TypedDict, total=False):
    """Options that only make sense for the jobs of one call."""

    job_id: str | None
    defer_by: Deferral | None
    defer_until: datetime | None
    replace_if_pending: bool
    then: "Sequence[JobRequest]"
    """A chain: the step that ends a job well queues the next one."""


class JobOptions(OptionsOfFunction, OptionsOfCall, total=False):
    """All options of a ``JobRequest``."""

    queue_name: str | None
    job_timeout_seconds: int | None
    trace_context: Mapping[str, str] | None
    batch_id: str | None
    takes_result: bool
    """Of a follow-up in a chain: gets the result of the job before as its first argument."""


class FunctionOptions(OptionsOfFunction, total=False):
    """The options of ``@app.job()``, where two have shorter names."""

    queue: str | None
    timeout_seconds: int | None


class CallOptions(FunctionOptions, OptionsOfCall, total=False):
    """The options of ``with_options``."""


FUNCTION_OPTIONS: Final = FunctionOptions.__optional_keys__
CALL_OPTIONS: Final = CallOptions.__optional_keys__
JOB_OPTIONS: Final = JobOptions.__optional_keys__
_SHORT_NAMES: Final = {"queue": "queue_name", "timeout_seconds": "job_timeout_seconds"}


def check_names(owner: str, given: Iterable[str], known: frozenset[str]) -> None:
    """Raise TypeError for an option that ``owner`` does not have."""
    for name in given:
        if name not in known:
            raise TypeError(f"{owner} has no option {name!r}.{suggest(name, known)}")


def merge_options(before: JobOptions, options: Mapping[str, Any]) -> JobOptions:
    """Return ``before`` with the options of a call or function in their place; None takes an option back.

    ``defer_by`` and ``defer_until`` say the same thing in two ways, so each replaces the other.
    """
    is_due_given = "defer_by" in options or "defer_until" in options
    merged = {
        name: value
        for name, value in before.items()
        if not (is_due_given and name in ("defer_by", "defer_until"))
    }
    merged |= {_SHORT_NAMES.get(name, name): value for name, value in options.items()}
    return cast(JobOptions, {name: value for name, value in merged.items() if value is not None})


def resolve_keys(options: JobOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobOptions:
    """Return the options with each key that is a function replaced by what it makes of the arguments."""
    resolved = {name: value(*args, **kwargs) if callable(value) else value for name, value in options.items()}
    return cast(JobOptions, resolved)
