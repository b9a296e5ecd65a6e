"""A whole ``Job`` as the text of its Redis hash, for ``JobStore`` and tools: pure.

The format is that of RRQ 0.7, byte for byte. ``lua/shared/enqueue.lua`` writes the jobs that producers enqueue.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from rrq.exc import InvalidJob
from rrq.jobs.codec import HashReader, storable_text
from rrq.jobs.job import Job, JobStatus
from rrq.jobs.request import encode_arguments, encode_json

__all__ = ["build_job_hash", "parse_job_hash", "parse_job_hash_leniently"]

_JSON_FIELDS: Final = frozenset({"job_args", "job_kwargs", "result", "trace_context"})
_SCALAR_FIELDS: Final = tuple(name for name in Job.model_fields if name not in _JSON_FIELDS)


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
        fields["trace_context"] = encode_json(job.trace_context, "trace_context", job.function_name)
    fields["job_args"] = args
    fields["job_kwargs"] = kwargs
    fields["result"] = "null" if job.result is None else encode_json(job.result, "result", job.function_name)
    return fields


def parse_job_hash(
    job_id: str, fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes]
) -> Job:
    """Build the job from all fields of its hash; the id is that of the key, not the field.

    Unknown fields are ignored and missing ones take their defaults. Raises UnreadableJob.
    """
    return HashReader(job_id, _normalise(fields)).read_job()


def parse_job_hash_leniently(
    job_id: str, fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes]
) -> Job:
    """Like ``parse_job_hash``, but broken JSON in arguments or result is logged and read as empty.

    Only for looking at jobs: running a job without its arguments would do harm.
    """
    return HashReader(job_id, _normalise(fields), lenient=True).read_job()


def _format_scalar(job: Job, name: str, value: object) -> str:
    if isinstance(value, datetime):
        return _format_time(value)
    text = value.value if isinstance(value, JobStatus) else str(value)
    if name in ("last_error", "error_type"):
        # The producer cannot change the text of an exception: store it rather than refuse the job.
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


def _normalise(
    fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return names as text and raw values, however the Redis client was set up."""
    return {
        # A name that is not UTF-8 is none of ours, and is ignored later.
        name.decode("utf-8", "replace") if isinstance(name, bytes) else name: (
            value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        )
        for name, value in fields.items()
    }
