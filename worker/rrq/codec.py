"""Translation between a ``Job`` and the text of its Redis hash.

The format is shared with RRQ 0.7 producers and workers, so what is written here matches theirs
byte for byte, and what is read may come from any of them. No Redis in this module: ``store.py``
moves the fields, this one only gives them meaning.

Reading knows two ways. ``parse_claimed_job`` is the hot loop of the worker: it understands the
one form that well-behaved writers use and hands everything else to the tolerant reader behind
``parse_job_hash``, which also finds the words for what is wrong.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from rrq.exc import InvalidJob, UnreadableJob, UnserializableArguments
from rrq.job import Job, JobResult, JobStatus

__all__ = [
    "CLAIMED_FIELDS",
    "build_job_hash",
    "encode_arguments",
    "encode_result",
    "parse_claimed_job",
    "parse_job_hash",
    "parse_job_hash_leniently",
    "parse_job_result",
    "storable_text",
]

logger = logging.getLogger(__name__)

#: Hash fields that a claim returns, in this order. Each one costs Redis and the worker time, so only
#: what running the job needs is here; the outcome of an earlier attempt is not.
CLAIMED_FIELDS: Final[tuple[str, ...]] = (
    "function_name",
    "job_args",
    "job_kwargs",
    "enqueue_time",
    "current_retries",
    "max_retries",
    "job_timeout_seconds",
    "result_ttl_seconds",
    "job_unique_key",
    "queue_name",
    "next_scheduled_run_time",
    "trace_context",
    "job_params",
)

_DEFAULT_MAX_RETRIES: Final[int] = Job.model_fields["max_retries"].default
_JOB_FIELDS: Final = set(Job.model_fields)
_JSON_FIELDS: Final = frozenset({"job_args", "job_kwargs", "result", "trace_context"})
_SCALAR_FIELDS: Final = tuple(name for name in Job.model_fields if name not in _JSON_FIELDS)
_STATUS_BY_TEXT: Final = {status.value: status for status in JobStatus}

# Redis counts in signed 64 bits; every number of up to 18 digits is surely inside.
_SAFE_DIGITS: Final = 18
_LARGEST_INTEGER: Final = 2**63 - 1

# json.loads looks for options and skips white space on every call; we write neither, and the
# tolerant reader takes over where someone did.
_decode_json = json.JSONDecoder().raw_decode
# Built once, because json.dumps with a default builds an encoder on every call.
_encode_result = json.JSONEncoder(default=str).encode
_parse_iso_time = datetime.fromisoformat
_set_slot = object.__setattr__


def build_job_hash(job: Job) -> dict[str, str]:
    """Return the hash fields of ``job``: one per value that is not None.

    Raises UnserializableArguments when JSON cannot express arguments or result, InvalidJob when a
    text cannot be stored as UTF-8 or the status is UNKNOWN.
    """
    if job.status is JobStatus.UNKNOWN:
        raise InvalidJob(
            f"Job {job.id} has the status UNKNOWN, which stands for a word this version cannot "
            "read. Set a real status before saving the job, or leave its stored status alone."
        )
    args, kwargs = encode_arguments(job.job_args, job.job_kwargs, job.function_name)
    fields: dict[str, str] = {}
    # One pass over the state itself: this runs for every enqueue, and looking up each attribute
    # and its type the long way took most of the time.
    state = job.__dict__
    for name in _SCALAR_FIELDS:
        value = state[name]
        if value is None:
            continue
        if type(value) is str and value.isascii():
            fields[name] = value
        elif type(value) is int:
            fields[name] = str(value)
        else:
            fields[name] = _format_scalar(job, name, value)
    if job.trace_context is not None:
        fields["trace_context"] = _dump_json(job.trace_context, "trace_context", job.function_name)
    fields["job_args"] = args
    fields["job_kwargs"] = kwargs
    fields["result"] = "null" if job.result is None else _dump_json(job.result, "result", job.function_name)
    return fields


def encode_arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, function_name: str = ""
) -> tuple[str, str]:
    """Return both as JSON text. ``function_name`` only helps the error message.

    Raises UnserializableArguments for anything JSON cannot express. NaN, infinities and lone
    surrogates pass, as in RRQ 0.7: Python writes them in ASCII and reads them back unchanged.
    """
    # Most jobs have only one of the two, and the encoder costs more than a comparison.
    return (
        "[]" if args == [] else _dump_json(args, "args", function_name),
        "{}" if kwargs == {} else _dump_json(kwargs, "kwargs", function_name),
    )


def encode_result(result: object) -> str:
    """Return what a handler returned as JSON text; never raises.

    A finished job must not run again only because its result cannot be written down, so what JSON
    refuses becomes a placeholder that names the type.
    """
    if result is None:
        return "null"
    try:
        dump = getattr(result, "model_dump_json", None)
        text = _encode_result(result) if dump is None else dump()
        if isinstance(text, str):
            text.encode()
            return text
    # Foreign code runs here: serializers of models, and __str__ of anything.
    except Exception:
        logger.exception("job result cannot be written as JSON", extra={"result_type": type(result).__name__})
    return json.dumps(f"<Unserializable Result: {type(result).__name__}>")


def storable_text(text: str) -> str:
    """Return ``text`` with lone surrogates spelled out, so that it can be stored as UTF-8.

    Messages of exceptions contain them when they quote a file name that is not UTF-8.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _format_scalar(job: Job, name: str, value: object) -> str:
    if isinstance(value, datetime):
        return _format_time(value)
    text = value.value if isinstance(value, JobStatus) else str(value)
    if name == "last_error":
        # The producer cannot help what some exception said: store it rather than refuse the job.
        return storable_text(text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob(
                f"Field {name} of job {storable_text(job.id)} holds half of a surrogate pair at "
                f"position {error.start}, which UTF-8 cannot store. Decode the text properly, or "
                "replace that character."
            ) from error
    return text


def _format_time(moment: datetime) -> str:
    text = moment.isoformat()
    # The JSON mode of pydantic, which RRQ 0.7 stores, differs from isoformat only in this.
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def _dump_json(value: object, place: str, function_name: str) -> str:
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


def parse_claimed_job(job_id: bytes, values: Sequence[bytes | None]) -> Job:
    """Build the job from the values of ``CLAIMED_FIELDS``, status ACTIVE.

    Skips the validation of the model: at thousands of jobs per second it would cost more than all
    the rest of the loop. Raises UnreadableJob when the values make no job.
    """
    job = _parse_common_form(job_id, values)
    if job is not None:
        return job
    present = {name: value for name, value in zip(CLAIMED_FIELDS, values, strict=True) if value is not None}
    job = _HashReader(_decode_job_id(job_id), present).read_job()
    job.status = JobStatus.ACTIVE
    return job


def parse_job_hash(
    job_id: str, fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes]
) -> Job:
    """Build the job from all fields of its hash; the id is that of the key, not the field.

    Unknown fields are ignored and missing ones take their defaults. Raises UnreadableJob.
    """
    return _HashReader(job_id, _normalise(fields)).read_job()


def parse_job_hash_leniently(
    job_id: str, fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes]
) -> Job:
    """Like ``parse_job_hash``, but broken JSON in arguments or result is logged and read as empty.

    For looking at jobs only: running one with arguments that are silently gone would do harm.
    """
    return _HashReader(job_id, _normalise(fields), lenient=True).read_job()


def parse_job_result(status: bytes | None, result: bytes | None, last_error: bytes | None) -> JobResult:
    """Build the answer to "how is my job doing?" from three fields; never raises."""
    fields = {"status": status, "result": result, "last_error": last_error}
    reader = _HashReader("", {name: value for name, value in fields.items() if value is not None})
    return JobResult(
        reader.read_status(),
        reader.read_json("result", forgiving=True),
        None if last_error is None else last_error.decode("utf-8", "backslashreplace"),
    )


def _parse_common_form(job_id: bytes, values: Sequence[bytes | None]) -> Job | None:
    """Return the job if every field has the form that RRQ itself writes, else None."""
    try:
        (
            function_name,
            args_json,
            kwargs_json,
            enqueue_time,
            current_retries,
            max_retries,
            timeout,
            result_ttl,
            unique_key,
            queue_name,
            run_time,
            trace_context,
            _job_params,
        ) = values
        if (
            function_name is None
            or args_json is None
            or kwargs_json is None
            or enqueue_time is None
            or current_retries is None
            or max_retries is None
            or trace_context is not None
            or len(current_retries) > _SAFE_DIGITS
            or len(max_retries) > _SAFE_DIGITS
            or len(timeout or b"") > _SAFE_DIGITS
            or len(result_ttl or b"") > _SAFE_DIGITS
        ):
            return None
        if args_json == b"[]":
            args: Any = []
        else:
            text = args_json.decode()
            args, end = _decode_json(text)
            if end != len(text) or type(args) is not list:
                return None
        if kwargs_json == b"{}":
            kwargs: Any = {}
        else:
            text = kwargs_json.decode()
            kwargs, end = _decode_json(text)
            if end != len(text) or type(kwargs) is not dict:
                return None
        enqueued_at = _parse_iso_time(enqueue_time.decode())
        run_at = None if run_time is None else _parse_iso_time(run_time.decode())
        if enqueued_at.tzinfo is None or (run_at is not None and run_at.tzinfo is None):
            return None
        # In the order of the model, which is the order in which it is dumped.
        attributes = {
            "id": job_id.decode(),
            "function_name": function_name.decode(),
            "job_args": args,
            "job_kwargs": kwargs,
            "enqueue_time": enqueued_at,
            "status": JobStatus.ACTIVE,
            "current_retries": int(current_retries),
            "next_scheduled_run_time": run_at,
            "max_retries": int(max_retries),
            "job_timeout_seconds": None if timeout is None else int(timeout),
            "result_ttl_seconds": None if result_ttl is None else int(result_ttl),
            "job_unique_key": None if unique_key is None else unique_key.decode(),
            "completion_time": None,
            "result": None,
            "last_error": None,
            "queue_name": None if queue_name is None else queue_name.decode(),
            "dlq_name": None,
            "trace_context": None,
        }
    except (ValueError, RecursionError):
        # The tolerant reader decides whether this is odd or broken, and says why.
        return None
    return _make_job(attributes)


def _make_job(attributes: dict[str, Any]) -> Job:
    """Build a Job around ``attributes``, which become its state and must name every field.

    Does what ``model_construct`` does, without looking up defaults and aliases each time.
    """
    job = Job.__new__(Job)
    _set_slot(job, "__dict__", attributes)
    # One set for all of them: it names every field already, so that assigning one adds nothing.
    _set_slot(job, "__pydantic_fields_set__", _JOB_FIELDS)
    _set_slot(job, "__pydantic_extra__", None)
    _set_slot(job, "__pydantic_private__", None)
    return job


def _decode_job_id(job_id: bytes) -> str:
    try:
        return job_id.decode()
    except UnicodeDecodeError as error:
        shown = job_id.decode("utf-8", "backslashreplace")
        raise UnreadableJob(shown, "its id is not UTF-8") from error


def _normalise(
    fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return text names and raw values, whichever way the Redis client was set up."""
    return {
        # A name that is not UTF-8 is none of ours: it only has to stay out of the way.
        name.decode("utf-8", "replace") if isinstance(name, bytes) else name: (
            value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        )
        for name, value in fields.items()
    }


@dataclass(frozen=True, slots=True)
class _HashReader:
    """Reads one job hash field by field, accepting every form that some version has written."""

    job_id: str
    fields: Mapping[str, bytes]
    lenient: bool = False

    def read_job(self) -> Job:
        function_name = self.read_text("function_name")
        if function_name is None:
            self.fail("the field function_name is missing")
        args, kwargs = self.read_arguments()
        return _make_job(
            {
                "id": self.job_id,
                "function_name": function_name,
                "job_args": args,
                "job_kwargs": kwargs,
                "enqueue_time": self.read_time("enqueue_time") or datetime.now(UTC),
                "status": self.read_status(),
                "current_retries": self.read_integer("current_retries", 0),
                "next_scheduled_run_time": self.read_time("next_scheduled_run_time"),
                "max_retries": self.read_integer("max_retries", _DEFAULT_MAX_RETRIES),
                "job_timeout_seconds": self.read_integer("job_timeout_seconds", None),
                "result_ttl_seconds": self.read_integer("result_ttl_seconds", None),
                "job_unique_key": self.read_text("job_unique_key"),
                "completion_time": self.read_time("completion_time"),
                "result": self.read_json("result", forgiving=self.lenient),
                "last_error": self.read_text("last_error"),
                "queue_name": self.read_text("queue_name"),
                "dlq_name": self.read_text("dlq_name"),
                "trace_context": self.read_trace_context(),
            }
        )

    def fail(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise UnreadableJob(self.job_id, reason) from cause

    def read_text(self, name: str) -> str | None:
        raw = self.fields.get(name)
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"the field {name} is not UTF-8", error)

    def read_integer(self, name: str, default: int | None) -> int | None:
        text = self.read_text(name)
        if text is None:
            return default
        try:
            # "3.0" is what RRQ 0.7 stores when an application assigned a float; it also reads it.
            number = int(text.removesuffix(".0"))
        except ValueError as error:
            self.fail(f"the field {name} is not an integer", error)
        if abs(number) > _LARGEST_INTEGER:
            self.fail(f"the field {name} is beyond the 64 bits that Redis counts in")
        return number

    def read_time(self, name: str) -> datetime | None:
        text = self.read_text(name)
        if text is None:
            return None
        try:
            moment = _parse_iso_time(text)
        except ValueError as error:
            self.fail(f"the field {name} is not an ISO 8601 time", error)
        # All times of RRQ are UTC, and a naive one could not be compared with them.
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def read_status(self) -> JobStatus:
        text = self.read_text("status")
        if text is None:
            return JobStatus.PENDING
        # Some tools of RRQ 0.7 write lower case.
        return _STATUS_BY_TEXT.get(text.upper(), JobStatus.UNKNOWN)

    def read_json(self, name: str, *, forgiving: bool = False) -> Any | None:
        """Return the decoded value; None when missing, empty or null."""
        text = self.read_text(name)
        if not text or text.lower() == "null":
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            if not forgiving:
                self.fail(f"the field {name} is not JSON", error)
            logger.error(
                "job field is not JSON and is read as empty",
                extra={"job_id": self.job_id, "field": name},
            )
            return None

    def read_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args = self.read_json("job_args", forgiving=self.lenient)
        kwargs = self.read_json("job_kwargs", forgiving=self.lenient)
        if not isinstance(args, list | None):
            self.fail(f"the field job_args is a {type(args).__name__}, not a list")
        source = "job_kwargs"
        if "job_args" not in self.fields and "job_kwargs" not in self.fields:
            # Newer engines keep all arguments in one object.
            source = "job_params"
            kwargs = self.read_json(source)
        if not isinstance(kwargs, dict | None):
            self.fail(f"the field {source} is a {type(kwargs).__name__}, not an object")
        return (args or [], kwargs or {})

    def read_trace_context(self) -> dict[str, str] | None:
        """Return the headers, or None: a broken trace must not keep a job from running."""
        try:
            context = self.read_json("trace_context")
        except UnreadableJob:
            context = None
        if not isinstance(context, dict):
            return None
        return {key: value for key, value in context.items() if isinstance(value, str)}
