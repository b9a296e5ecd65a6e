"""A whole ``Job`` as the text of its Redis hash, as ``JobStore.save_job_definition`` writes it: pure.

The format is that of RRQ 0.7, byte for byte. Jobs that producers enqueue are written by ``lua/shared/enqueue.lua``;
reading is in ``decoding.py``.
"""

from datetime import datetime
from typing import Final

from rrq.exc import InvalidJob
from rrq.jobs.encoding import encode_arguments, encode_json, storable_text
from rrq.jobs.job import Job, JobStatus

__all__ = ["build_job_hash"]

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
