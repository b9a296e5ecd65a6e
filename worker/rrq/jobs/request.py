"""What a producer asks for: a job, and the options that it may have. Values only.

An option is one line here, in ``OptionsOfFunction`` or in ``OptionsOfCall``, and one in ``lua/shared/enqueue.lua``.
``RRQClient.enqueue`` (with an underscore in front), ``JobRequest``, ``App.job`` and ``with_options`` all take it from
here. ``RRQClient.enqueue`` explains each option; ``encoding.py`` writes a request for Redis.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict, Unpack, cast

from rrq.exc import InvalidJob
from rrq.runtime.suggestions import find_meant, suggest

__all__ = [
    "CALL_OPTIONS",
    "FUNCTION_OPTIONS",
    "CallOptions",
    "Deferral",
    "FunctionOptions",
    "JobOptions",
    "JobRequest",
    "Key",
    "check_names",
    "merge_options",
    "new_job_id",
    "resolve_keys",
    "split_keywords",
]

#: How long from now: numbers are seconds.
Deferral = timedelta | int | float
#: A text; the typed API also takes a function that makes it from the arguments of the job.
Key = str | Callable[..., str]


def new_job_id() -> str:
    """Return a random id (UUID4), so that producers need not coordinate."""
    return str(uuid.uuid4())


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
_JOB_OPTIONS: Final = JobOptions.__optional_keys__
#: What ``RRQClient.enqueue`` takes, as callers write it. The rest is for requests.
_ENQUEUE_OPTIONS: Final = frozenset(
    f"_{name}" for name in _JOB_OPTIONS - {"trace_context", "batch_id", "takes_result"}
)
# What comes to mind first and is not near enough to be found by its letters.
_OTHER_WORDS: Final = {
    "_queue": "_queue_name",
    "_delay": "_defer_by",
    "_timeout": "_job_timeout_seconds",
    "_id": "_job_id",
}
_SHORT_NAMES: Final = {"queue": "queue_name", "timeout_seconds": "job_timeout_seconds"}

_set_field = object.__setattr__


@dataclass(frozen=True, slots=True, init=False)
class JobRequest:
    """One job to enqueue. Its options are given by name, or together as ``options``."""

    function_name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: JobOptions

    def __init__(
        self,
        function_name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: JobOptions | None = None,
        **more: Unpack[JobOptions],
    ) -> None:
        given = {**options, **more} if options else more
        if given:
            check_names("JobRequest", given, _JOB_OPTIONS)
        _set_field(self, "function_name", function_name)
        _set_field(self, "args", args)
        _set_field(self, "kwargs", {} if kwargs is None else kwargs)
        _set_field(self, "options", given)

    def with_options(self, **options: Unpack[JobOptions]) -> "JobRequest":
        """Return the same request with these options in the place of its own."""
        return JobRequest(self.function_name, self.args, self.kwargs, options={**self.options, **options})


def check_names(owner: str, given: Iterable[str], known: frozenset[str]) -> None:
    """Raise TypeError for an option that ``owner`` does not have."""
    for name in given:
        if name not in known:
            raise TypeError(f"{owner} has no option {name!r}.{suggest(name, known)}")


def split_keywords(function_name: str, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which keywords of ``enqueue`` are options, without the underscore, and which go to the handler.

    Raises InvalidJob for a keyword that is nearly an option: the handler would get it, and the job would not have the
    option.
    """
    options: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in _ENQUEUE_OPTIONS:
            options[name[1:]] = value
            continue
        kwargs[name] = value
        if not name.startswith("_"):
            continue
        meant = _OTHER_WORDS.get(name) or find_meant(name, _ENQUEUE_OPTIONS)
        if meant is not None:
            raise InvalidJob(
                f"enqueue has no option {name!r} for a job of {function_name!r}. Did you mean {meant!r}? A keyword for "
                "the handler that must have this name goes into a JobRequest, with enqueue_request."
            )
    return options, kwargs


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
