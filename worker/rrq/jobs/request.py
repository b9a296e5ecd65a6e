"""What a producer asks for: a job with options, and how the scripts take it. Pure, apart from drawing ids.

Arguments are written as in RRQ 0.7, byte for byte. ``broker/job_calls.py`` sends what is encoded here.
"""

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Unpack

from rrq.exc import InvalidJob, UnserializableArguments
from rrq.jobs.options import JOB_OPTIONS, Deferral, JobOptions, check_names
from rrq.runtime.backoff import LONGEST_DELAY_SECONDS
from rrq.runtime.suggestions import find_meant
from rrq.settings import RRQSettings

__all__ = [
    "HIGHEST_PRIORITY",
    "EncodedJob",
    "JobRequest",
    "encode_arguments",
    "encode_follow_up",
    "encode_json",
    "encode_options",
    "encode_request",
    "keep_job",
    "new_job_id",
    "split_keywords",
]

#: The arguments of one job, in the order of ``lua/shared/enqueue.lua``: id, function, args (JSON), kwargs (JSON), queue,
#: max_retries, timeout (s), result TTL (s), due, unique key, trace context (JSON), 1 for an id that the producer chose,
#: options (JSON). The scripts also get the number of the queue, which belongs to the call, in front of its name.
EncodedJob = tuple[str, str, str, str, str, int, int, int, str, str, str, int, str]

HIGHEST_PRIORITY: Final = 9
# Redis counts in 64 bits, and readers take numbers up to this for plain ones.
_LARGEST_NUMBER: Final = 10**18 - 1
_LONGEST_WINDOW_SECONDS: Final = 86_400 * 366
_IDEMPOTENCY_SECONDS: Final = 86_400.0
_LONGEST_CHAIN: Final = 1_000
#: Options with a place of their own in ``EncodedJob``; all others travel in its last field.
_PLACED: Final = frozenset({
    "queue_name", "job_id", "unique_key", "max_retries", "job_timeout_seconds", "result_ttl_seconds",
    "defer_by", "defer_until", "trace_context", "then",
})  # fmt: skip
#: The name in Lua, where it differs.
_NAMES_IN_LUA: Final = {"replace_if_pending": "if_pending"}

#: The options that ``RRQClient.enqueue`` takes, as callers write them. The rest is for requests.
_ENQUEUE_OPTIONS: Final = frozenset(
    f"_{name}" for name in JOB_OPTIONS - {"trace_context", "batch_id", "takes_result"}
)

_set_field = object.__setattr__


def new_job_id() -> str:
    """Return a random id (UUID4), so that producers need not coordinate."""
    return str(uuid.uuid4())


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
            check_names("JobRequest", given, JOB_OPTIONS)
        _set_field(self, "function_name", function_name)
        _set_field(self, "args", args)
        _set_field(self, "kwargs", {} if kwargs is None else kwargs)
        _set_field(self, "options", given)

    def with_options(self, **options: Unpack[JobOptions]) -> "JobRequest":
        """Return the same request with these options in the place of its own."""
        return JobRequest(self.function_name, self.args, self.kwargs, options={**self.options, **options})


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
        meant = find_meant(name, _ENQUEUE_OPTIONS)
        if meant is not None:
            raise InvalidJob(
                f"enqueue has no option {name!r} for a job of {function_name!r}. Did you mean {meant!r}? A keyword for "
                "the handler that must have this name goes into a JobRequest, with enqueue_request."
            )
    return options, kwargs


def encode_request(request: JobRequest, settings: RRQSettings) -> EncodedJob:
    """Return the job as the scripts take it, with the defaults of the settings.

    Raises EnqueueError (or a subclass) for what cannot be a job.
    """
    options, function_name = request.options, request.function_name
    args, kwargs = encode_arguments(list(request.args), dict(request.kwargs), function_name)
    limit = settings.max_job_payload_bytes
    if limit and len(args) + len(kwargs) > limit:
        raise InvalidJob(
            f"The arguments of a job for {function_name!r} take {len(args) + len(kwargs)} bytes, more than "
            f"max_job_payload_bytes ({limit}). Store the data elsewhere and send a reference."
        )
    job_id, trace_context = options.get("job_id"), options.get("trace_context")
    # First, because it checks the options that the other fields are made of.
    other_options = encode_options(options, _encode_chain(options, settings)) if options else ""
    job = (
        job_id or new_job_id(),
        function_name,
        args,
        kwargs,
        options.get("queue_name") or settings.default_queue_name,
        _whole("max_retries", options.get("max_retries"), settings.default_max_retries),
        _whole(
            "job_timeout_seconds", options.get("job_timeout_seconds"), settings.default_job_timeout_seconds
        ),
        _decide_result_ttl_seconds(options, settings.default_result_ttl_seconds),
        _encode_due(options.get("defer_until"), options.get("defer_by")),
        options.get("unique_key") or "",
        json.dumps(trace_context) if trace_context else "",
        int(bool(job_id)),
        other_options,
    )
    _check_names(job)
    return job  # type: ignore[return-value]  # the names were checked to be text


def encode_follow_up(request: JobRequest, settings: RRQSettings) -> list[str]:
    """Return a job that a script enqueues when it ends another one, as ``lua/shared/batch.lua`` reads it."""
    return keep_job(encode_request(request, settings), settings.default_unique_job_lock_ttl_seconds)


def keep_job(job: EncodedJob, unique_ttl_seconds: int) -> list[str]:
    return [str(value) for value in (*job[:4], 1, *job[4:], unique_ttl_seconds)]


def encode_options(options: JobOptions, chain: Sequence[Sequence[Any]] = ()) -> str:
    """Return the options that have no place of their own in ``EncodedJob`` as JSON; '' when there are none.

    Times in seconds become milliseconds. Raises InvalidJob for what makes no sense.
    """
    _check_options(options, chain)
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value is False or name in _PLACED:
            continue
        if name.endswith(("_key", "_id")) or isinstance(value, str):
            _check_text(f"_{name}", value)
        if name.endswith("_seconds"):
            values[f"{name.removesuffix('_seconds')}_ms"] = _window_ms(f"_{name}", value)
        else:
            values[_NAMES_IN_LUA.get(name, name)] = value
    if "idempotency_key" in values:
        values.setdefault("idempotency_ms", int(_IDEMPOTENCY_SECONDS * 1000))
    else:
        values.pop("idempotency_ms", None)
    if chain:
        values["next"] = list(chain)
    return json.dumps(values) if values else ""


def _encode_chain(options: JobOptions, settings: RRQSettings) -> list[list[str]]:
    chain = []
    for follower in options.get("then") or ():
        if follower.options.get("then"):
            raise InvalidJob(
                f"The follow-up {follower.function_name!r} has a chain of its own. Write the whole chain as "
                "one list, in the order in which its jobs are to run."
            )
        chain.append(encode_follow_up(follower, settings))
    return chain


def _check_options(options: JobOptions, chain: Sequence[Sequence[Any]]) -> None:
    priority = options.get("priority")
    if priority is not None and not (isinstance(priority, int | float) and 0 <= priority <= HIGHEST_PRIORITY):
        raise InvalidJob(f"_priority must be 0 to {HIGHEST_PRIORITY}, not {priority!r}.")
    debounce_key, idempotency_key = options.get("debounce_key"), options.get("idempotency_key")
    if options.get("debounce_max_seconds") is not None and debounce_key is None:
        raise InvalidJob("_debounce_max_seconds needs a _debounce_key to go with.")
    if idempotency_key is not None and debounce_key is not None:
        raise InvalidJob("_idempotency_key keeps the first call and _debounce_key the last: choose one.")
    if len(chain) > _LONGEST_CHAIN:
        raise InvalidJob(f"A chain has at most {_LONGEST_CHAIN} jobs, not {len(chain)}.")


def _decide_result_ttl_seconds(options: JobOptions, default: int) -> int:
    ttl_seconds = _whole("result_ttl_seconds", options.get("result_ttl_seconds"), default)
    if options.get("idempotency_key") is None or ttl_seconds <= 0:
        return ttl_seconds
    # Later calls are answered with this job; forgotten before its window ends, it would run again.
    return max(ttl_seconds, math.ceil(options.get("idempotency_seconds") or _IDEMPOTENCY_SECONDS))


def encode_arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, function_name: str = ""
) -> tuple[str, str]:
    """Return both as JSON text. ``function_name`` only helps the error message.

    Raises UnserializableArguments for anything JSON cannot express. NaN, infinities and lone
    surrogates pass, as in RRQ 0.7: Python writes them in ASCII and reads them back unchanged.
    """
    # Most jobs have only one of the two, and a comparison is cheaper than the encoder.
    return (
        "[]" if args == [] else encode_json(args, "args", function_name),
        "{}" if kwargs == {} else encode_json(kwargs, "kwargs", function_name),
    )


def _check_names(job: Sequence[Any]) -> None:
    """Refuse names that cannot be stored, before anything is sent."""
    job_id, function_name, _, _, queue_name, _, _, _, _, unique_key, *_ = job
    if not function_name:
        raise InvalidJob("A job needs a function name; the one given is empty.")
    for text in (function_name, job_id, queue_name, unique_key):
        if type(text) is str and text.isascii():
            continue
        if callable(text):
            raise InvalidJob(
                f"Names, ids and keys of a job are text, not {type(text).__name__}. Enqueue by the name under which "
                f"the function is registered, such as {getattr(text, '__name__', 'send_email')!r}."
            )
        if not isinstance(text, str):
            raise InvalidJob(f"Names, ids and keys of a job are text, not {type(text).__name__}.")
        _check_storable(f"{text!r} of a job for {function_name!r}", text)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidJob(f"Names, ids and keys of a job are text; {name} is {type(value).__name__}.")
    _check_storable(f"{name} {value!r}", value)


def _check_storable(described: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(
            f"{described} holds half of a surrogate pair, which UTF-8 cannot store. Decode the text properly, or "
            "replace that character."
        ) from error


def _whole(name: str, given: float | None, default: float) -> int:
    """Return an option as the integer that is stored."""
    value = default if given is None else given
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not is_whole or abs(value) > _LARGEST_NUMBER:
        raise InvalidJob(f"{name} must be a whole number of at most 18 digits, not {value!r}.")
    return int(value)


def _window_ms(name: str, seconds: object) -> int:
    if not (isinstance(seconds, int | float) and 0.001 <= seconds <= _LONGEST_WINDOW_SECONDS):
        raise InvalidJob(f"{name} must be 0.001 to a year, not {seconds!r}.")
    return int(seconds * 1000)


def _encode_due(defer_until: datetime | None, defer_by: Deferral | None) -> str:
    """Return when a job is due: ``""`` now, ``"+<ms>"`` from now, ``"@<ms>"`` absolute."""
    if defer_until is not None:
        if not isinstance(defer_until, datetime):
            raise InvalidJob(
                f"_defer_until is a datetime with a time zone, not {type(defer_until).__name__}. Write "
                "datetime.now(UTC) + timedelta(hours=1), or use _defer_by for a time from now."
            )
        moment = defer_until if defer_until.tzinfo else defer_until.replace(tzinfo=UTC)
        return f"@{int(moment.timestamp() * 1000)}"
    if defer_by is None:
        return ""
    try:
        seconds = defer_by.total_seconds() if isinstance(defer_by, timedelta) else float(defer_by)
    except (TypeError, ValueError):
        raise InvalidJob(
            f"_defer_by is a timedelta or a number of seconds, not {type(defer_by).__name__}. Write "
            "_defer_by=timedelta(minutes=5), or use _defer_until for a moment."
        ) from None
    if not seconds <= LONGEST_DELAY_SECONDS:
        raise InvalidJob(f"_defer_by must be at most a century, not {defer_by!r}.")
    return f"+{int(seconds * 1000)}" if seconds > 0 else ""


def encode_json(value: object, place: str, function_name: str) -> str:
    try:
        return json.dumps(value)
    # ValueError: a container that holds itself, or an integer too long to print.
    except (TypeError, ValueError, RecursionError) as error:
        owner = f" of a job for {function_name!r}" if function_name else ""
        culprit = _describe_culprit(value, place, set()) or f"{place}: {error}"
        raise UnserializableArguments(
            f"JSON cannot express the {place}{owner}: {culprit}. "
            "Send plain values (text, numbers, lists, dicts with text keys), for example an id "
            "instead of an object or isoformat() instead of a datetime."
        ) from error


def _describe_culprit(value: object, path: str, parents: set[int]) -> str | None:
    """Name the first value that JSON refuses and where it sits; None when none is found."""
    if not isinstance(value, dict | list | tuple):
        return _describe_refused_leaf(value, path)
    if id(value) in parents:
        return f"{path} contains itself"
    if len(parents) > 100:
        return f"{path[:60]}… is nested more than 100 levels deep"
    parents.add(id(value))
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(key, str | int | float | None):
            return f"{path} has a key of type {type(key).__name__}"
        culprit = _describe_culprit(item, f"{path}[{key!r}]", parents)
        if culprit is not None:
            return culprit
    parents.discard(id(value))
    return None


def _describe_refused_leaf(value: object, path: str) -> str | None:
    try:
        json.dumps(value)
    except TypeError:
        return f"{path} has type {type(value).__name__}"
    except ValueError as error:
        return f"{path} of type {type(value).__name__}: {error}"
    return None
