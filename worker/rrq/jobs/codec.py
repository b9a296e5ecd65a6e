"""What a worker and the waiting producer exchange with Redis: claimed jobs, results, outcomes. Pure.

The text may come from any version of RRQ, and there are two ways to read it. ``parse_claimed_job`` is the hot loop of
the worker: it understands the one form that RRQ itself writes, and passes everything else to the tolerant
``HashReader``, which also says what is wrong. ``job_hash.py`` reads and writes whole hashes.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

from rrq.exc import UnreadableJob
from rrq.jobs.job import Job, JobResult, JobStatus
from rrq.jobs.request import EncodedJob, JobRequest

__all__ = [
    "CLAIMED_FIELDS",
    "HashReader",
    "build_enqueued_job",
    "decode",
    "decode_all",
    "decode_pairs",
    "encode_result",
    "parse_claimed_job",
    "parse_job_result",
    "storable_text",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Hash fields that a claim returns, in this order. Each of them costs Redis and the worker time, so only the fields that
#: running the job needs are here, and not the outcome of an earlier attempt.
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
_STATUS_BY_TEXT: Final = {status.value: status for status in JobStatus}

# Redis counts in signed 64 bits, which hold every number of up to 18 digits.
_SAFE_DIGITS: Final = 18
_LARGEST_INTEGER: Final = 2**63 - 1

# json.loads looks for options and skips white space on every call. RRQ writes no white space, and the tolerant reader
# takes over where another program did.
_decode_json = json.JSONDecoder().raw_decode
_parse_iso_time = datetime.fromisoformat
_set_slot = object.__setattr__
# Built once, because json.dumps with a default builds an encoder on every call.
_encode_result = json.JSONEncoder(default=str).encode


def parse_claimed_job(job_id: bytes, values: Sequence[bytes | None]) -> Job:
    """Build the job from the values of ``CLAIMED_FIELDS``, status ACTIVE.

    Skips the validation of the model: at thousands of jobs per second it would cost more than the rest of the loop.
    Raises UnreadableJob when the values make no job.
    """
    job = _parse_common_form(job_id, values)
    if job is not None:
        return job
    present = {name: value for name, value in zip(CLAIMED_FIELDS, values, strict=True) if value is not None}
    job = HashReader(_decode_job_id(job_id), present).read_job()
    job.status = JobStatus.ACTIVE
    return job


def parse_job_result(
    status: bytes | None, result: bytes | None, last_error: bytes | None, error_type: bytes | None = None
) -> JobResult:
    """Build the public view of an outcome from four fields of the hash; never raises."""
    # Bytes that are no UTF-8 become escapes, which make an unknown status and no JSON.
    fields = {"status": status, "result": result, "last_error": last_error, "error_type": error_type}
    texts = {
        name: value.decode("utf-8", "backslashreplace").encode()
        for name, value in fields.items()
        if value is not None
    }
    reader = HashReader("", texts)
    return JobResult(
        reader.read_status(),
        reader.read_json("result", forgiving=True),
        reader.read_text("last_error"),
        reader.read_text("error_type"),
    )


def build_enqueued_job(
    request: JobRequest, encoded: EncodedJob, enqueued_at: datetime, run_at: datetime
) -> Job:
    """Return the job that a request became."""
    (
        job_id,
        function_name,
        _,
        _,
        queue_name,
        max_retries,
        timeout_seconds,
        result_ttl_seconds,
        _,
        unique_key,
        *_,
    ) = encoded
    trace_context = request.options.get("trace_context")
    # Every value is already what the model asks for.
    return Job.model_construct(
        id=job_id,
        function_name=function_name,
        job_args=list(request.args),
        job_kwargs=dict(request.kwargs),
        enqueue_time=enqueued_at,
        next_scheduled_run_time=run_at,
        max_retries=max_retries,
        job_timeout_seconds=timeout_seconds,
        result_ttl_seconds=result_ttl_seconds,
        job_unique_key=unique_key or None,
        queue_name=queue_name,
        trace_context=dict(trace_context) if trace_context else None,
    )


def encode_result(result: object) -> str:
    """Return what a handler returned as JSON text; never raises.

    A finished job must not run again only because JSON cannot express its result, so such a result becomes a
    placeholder that names the type.
    """
    if result is None:
        return "null"
    try:
        dump = getattr(result, "model_dump_json", None)
        text = _encode_result(result) if dump is None else dump()
        if isinstance(text, str):
            text.encode()
            return text
    # Foreign code runs here: serializers of models, and any __str__.
    except Exception:
        logger.exception("job result cannot be written as JSON", extra={"result_type": type(result).__name__})
    return json.dumps(f"<Unserializable Result: {type(result).__name__}>")


def storable_text(text: str) -> str:
    """Return ``text`` with lone surrogates as escapes, so that it can be stored as UTF-8.

    Messages of exceptions contain them when they quote a file name that is not UTF-8.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def decode(value: Any) -> str:
    """Return bytes of Redis as text; bytes that are no UTF-8 become escapes."""
    text: str = value.decode("utf-8", "backslashreplace")
    return text


def decode_all(values: Iterable[Any]) -> list[str]:
    return [decode(value) for value in values]


def decode_pairs(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the fields of a hash or of an entry of a stream."""
    if isinstance(reply, Mapping):
        return {decode(name): decode(value) for name, value in reply.items()}
    texts = decode_all(reply)
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _parse_common_form(job_id: bytes, values: Sequence[bytes | None]) -> Job | None:
    """Return the job if every field has the form that RRQ itself writes, else None."""
    (
        function_name, args_json, kwargs_json, enqueue_time, current_retries, max_retries, timeout, result_ttl,
        unique_key, queue_name, run_time, trace_context, _job_params,
    ) = values  # fmt: skip
    if (
        function_name is None
        or args_json is None
        or kwargs_json is None
        or enqueue_time is None
        or current_retries is None
        or max_retries is None
        or len(current_retries) > _SAFE_DIGITS
        or len(max_retries) > _SAFE_DIGITS
        or len(timeout or b"") > _SAFE_DIGITS
        or len(result_ttl or b"") > _SAFE_DIGITS
    ):
        return None
    try:
        enqueued_at = _parse_iso_time(enqueue_time.decode())
        run_at = None if run_time is None else _parse_iso_time(run_time.decode())
        if enqueued_at.tzinfo is None or (run_at is not None and run_at.tzinfo is None):
            return None
        # In the order of the model, which is the order in which it is dumped.
        attributes = {
            "id": job_id.decode(),
            "function_name": function_name.decode(),
            "job_args": [] if args_json == b"[]" else _parse_plain_json(args_json, list),
            "job_kwargs": {} if kwargs_json == b"{}" else _parse_plain_json(kwargs_json, dict),
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
            "error_type": None,
            "queue_name": None if queue_name is None else queue_name.decode(),
            "dlq_name": None,
            "trace_context": None if trace_context is None else _parse_plain_trace(trace_context),
        }
    except (ValueError, RecursionError):
        # The tolerant reader decides whether this is unusual or broken, and says why.
        return None
    # As ``model_construct`` does, without looking up defaults and aliases each time. All jobs share one set of fields: it
    # names every field already, so that an assignment adds nothing to it.
    job = Job.__new__(Job)
    _set_slot(job, "__dict__", attributes)
    _set_slot(job, "__pydantic_fields_set__", _JOB_FIELDS)
    _set_slot(job, "__pydantic_extra__", None)
    _set_slot(job, "__pydantic_private__", None)
    return job


def _parse_plain_json(raw: bytes, kind: type) -> Any:
    """Return the value; raise ValueError for white space around it and for another type."""
    text = raw.decode()
    value, end = _decode_json(text)
    if end != len(text) or type(value) is not kind:
        raise ValueError(text)
    return value


def _parse_plain_trace(raw: bytes) -> Any:
    headers = _parse_plain_json(raw, dict)
    if any(type(value) is not str for value in headers.values()):
        raise ValueError(headers)
    return headers


def _decode_job_id(job_id: bytes) -> str:
    try:
        return job_id.decode()
    except UnicodeDecodeError as error:
        shown = job_id.decode("utf-8", "backslashreplace")
        raise UnreadableJob(shown, "its id is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class HashReader:
    """Reads one job hash field by field, accepting every form that some version has written."""

    job_id: str
    fields: Mapping[str, bytes]
    lenient: bool = False

    def read_job(self) -> Job:
        function_name = self.read_text("function_name")
        if function_name is None:
            self.fail("the field function_name is missing")
        args, kwargs = self.read_arguments()
        return Job.model_construct(
            id=self.job_id,
            function_name=function_name,
            job_args=args,
            job_kwargs=kwargs,
            enqueue_time=self.read_time("enqueue_time") or datetime.now(UTC),
            status=self.read_status(),
            current_retries=self.read_integer("current_retries", 0),
            next_scheduled_run_time=self.read_time("next_scheduled_run_time"),
            max_retries=self.read_integer("max_retries", _DEFAULT_MAX_RETRIES),
            job_timeout_seconds=self.read_integer("job_timeout_seconds", None),
            result_ttl_seconds=self.read_integer("result_ttl_seconds", None),
            job_unique_key=self.read_text("job_unique_key"),
            completion_time=self.read_time("completion_time"),
            result=self.read_json("result", forgiving=self.lenient),
            last_error=self.read_text("last_error"),
            error_type=self.read_text("error_type"),
            queue_name=self.read_text("queue_name"),
            dlq_name=self.read_text("dlq_name"),
            trace_context=self.read_trace_context(),
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

    def read_integer(self, name: str, default: T) -> int | T:
        text = self.read_text(name)
        if text is None:
            return default
        try:
            # RRQ 0.7 stores "3.0" when an application assigned a float, and reads it, too.
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
