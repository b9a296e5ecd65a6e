"""A ``Job`` as the text of its Redis hash: the writing half, pure.

The format is shared with RRQ 0.7 producers and workers, so what is written here matches theirs byte
for byte. Reading is in ``decoding.py``; moving the fields is left to ``store.py``.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rrq.exc import InvalidJob, UnserializableArguments
from rrq.job import Job, JobStatus

__all__ = ["build_job_hash", "encode_arguments", "encode_result", "storable_text"]

logger = logging.getLogger(__name__)

_JSON_FIELDS: Final = frozenset({"job_args", "job_kwargs", "result", "trace_context"})
_SCALAR_FIELDS: Final = tuple(name for name in Job.model_fields if name not in _JSON_FIELDS)

# Built once, because json.dumps with a default builds an encoder on every call.
_encode_result = json.JSONEncoder(default=str).encode


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
    if name in ("last_error", "error_type"):
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
