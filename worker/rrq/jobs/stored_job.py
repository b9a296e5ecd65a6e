"""The view of a job for people: its Redis hash, field by field. Pure.

``codec.py`` refuses a hash that cannot be run. People who inspect a queue want to see those jobs, too, so here each
field is read by itself, and a field that makes no sense is None, never an error.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rrq.jobs.codec import decode
from rrq.runtime.error_types import LONGEST_ERROR_TYPE, describe_error

#: Enough for every list and statistic; arguments and results may be megabytes and are left out.
LISTED_FIELDS: Final[tuple[str, ...]] = (
    "function_name",
    "queue_name",
    "status",
    "enqueue_time",
    "next_scheduled_run_time",
    "start_time",
    "completion_time",
    "current_retries",
    "max_retries",
    "last_error",
    "error_type",
)

_TIME_FIELDS: Final = ("enqueue_time", "next_scheduled_run_time", "start_time", "completion_time")
_NUMBER_FIELDS: Final = (
    "current_retries",
    "max_retries",
    "job_timeout_seconds",
    "result_ttl_seconds",
    "losses",
)
_JSON_FIELDS: Final = (
    "job_args", "job_kwargs", "job_params", "result", "trace_context", "crash_history", "loss_history",
    "attempts", "progress", "cursor", "next", "slots",
)  # fmt: skip
_ENDED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
#: Waiting in a queue: a retry is nothing but a job that is due later.
QUEUED_STATUSES: Final = frozenset({"PENDING", "RETRYING"})


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt that did not complete its job; empty texts and None stand for what is not stored."""

    outcome: str
    """retry, dead, or back: its worker handed the job back, or died and was reaped."""
    worker: str = ""
    error: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error_type: str = ""

    @property
    def described_error(self) -> str:
        """``Type: message``, as far as they are known."""
        return describe_error(self.error_type, self.error) or ""


@dataclass(frozen=True)
class StoredJob:
    """One job hash as text; ``fields`` may be a part of it."""

    job_id: str
    fields: Mapping[str, str]

    @property
    def function_name(self) -> str | None:
        return self.fields.get("function_name")

    @property
    def queue_name(self) -> str | None:
        """The queue as its producer wrote it."""
        return self.fields.get("queue_name")

    @property
    def status(self) -> str:
        """Upper case: some tools of RRQ 0.7 write lower case. Without a status a job is PENDING."""
        return (self.fields.get("status") or "PENDING").upper()

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED

    @property
    def created_at(self) -> datetime | None:
        return self.time("enqueue_time")

    @property
    def due_at(self) -> datetime | None:
        return self.time("next_scheduled_run_time")

    @property
    def started_at(self) -> datetime | None:
        """When the latest attempt started; RRQ 0.7 workers do not store it."""
        return self.time("start_time")

    @property
    def completed_at(self) -> datetime | None:
        return self.time("completion_time")

    @property
    def retries(self) -> int:
        return self.number("current_retries") or 0

    @property
    def last_error(self) -> str | None:
        return self.fields.get("last_error")

    @property
    def error_type(self) -> str | None:
        """The exception behind ``last_error``; None for older records, and where no handler raised one."""
        return (self.fields.get("error_type") or "")[:LONGEST_ERROR_TYPE] or None

    @property
    def described_error(self) -> str | None:
        """``Type: message``, as far as they are known."""
        return describe_error(self.error_type, self.last_error)

    @property
    def args(self) -> Any:
        return self.json("job_args")

    @property
    def kwargs(self) -> Any:
        """Newer engines keep all arguments in one object."""
        return self.json("job_kwargs" if "job_kwargs" in self.fields else "job_params")

    @property
    def result(self) -> Any:
        return self.json("result")

    @property
    def blocked_by(self) -> str | None:
        """The scope of the limit or pause that blocks a waiting job, such as ``f:send``."""
        return self.fields.get("parked_in")

    @property
    def attempts(self) -> list[StoredAttempt]:
        """The last attempts that did not complete the job, the oldest first."""
        story = self.json("attempts")
        return (
            [_parse_attempt(entry) for entry in story if isinstance(entry, dict)]
            if isinstance(story, list)
            else []
        )

    @property
    def chain(self) -> list[str]:
        """The functions that follow once this job is done."""
        links = self.json("next")
        return (
            [str(link[1]) for link in links if isinstance(link, list) and len(link) > 1]
            if isinstance(links, list)
            else []
        )

    def run_seconds(self, now: datetime) -> float | None:
        """How long the latest attempt took, or has taken so far; None when it is not known."""
        if self.started_at is None:
            return None
        still_running_at = now if self.status == "ACTIVE" else None
        ended_at = self.completed_at if self.has_ended else still_running_at
        return None if ended_at is None else max(0.0, (ended_at - self.started_at).total_seconds())

    def wait_seconds(self) -> float | None:
        """How long the job was due before its latest attempt started; None when that is not known."""
        ready_at = self.due_at or self.created_at
        # A retry that waits for its time is due after its latest start.
        if self.started_at is None or ready_at is None or self.started_at < ready_at:
            return None
        return (self.started_at - ready_at).total_seconds()

    def time(self, name: str) -> datetime | None:
        return _parse_time(self.fields.get(name))

    def number(self, name: str) -> int | None:
        try:
            return int(float(self.fields.get(name) or ""))
        except (ValueError, OverflowError):
            return None

    def json(self, name: str) -> Any:
        """The decoded value; text that is no JSON is returned as it is, because people can still read it."""
        text = self.fields.get(name)
        if not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def to_json(self) -> dict[str, Any]:
        """Everything known, under the names of the hash, with numbers and times as such."""
        values: dict[str, Any] = {"id": self.job_id, **self.fields}
        values["id"], values["status"] = self.job_id, self.status
        for names, read in (
            (_TIME_FIELDS, lambda name: _iso(self.time(name))),
            (_NUMBER_FIELDS, self.number),
            (_JSON_FIELDS, self.json),
        ):
            values |= {name: read(name) for name in names if name in self.fields}
        return values


def parse_stored_job(job_id: str, fields: Mapping[Any, Any]) -> StoredJob:
    """Build it from the reply to HGETALL; bytes that are no text are shown, not refused."""
    return StoredJob(job_id, {decode(name): decode(value) for name, value in fields.items()})


def parse_listed_job(job_id: str, values: Iterable[bytes | None]) -> StoredJob:
    """Build it from the values of ``LISTED_FIELDS``."""
    pairs = zip(LISTED_FIELDS, values, strict=True)
    return StoredJob(job_id, {name: decode(value) for name, value in pairs if value is not None})


def _parse_attempt(entry: Mapping[str, Any]) -> StoredAttempt:
    outcome, worker, error, error_type = (
        str(entry.get(name) or "") for name in ("outcome", "worker", "error", "error_type")
    )
    start, end = (_parse_time(str(entry.get(name) or "")) for name in ("start", "end"))
    return StoredAttempt(outcome, worker, error, start, end, error_type[:LONGEST_ERROR_TYPE])


def _parse_time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _from_unix_seconds(text)
    # All times of RRQ are UTC, and a naive one could not be compared with them.
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        # The first or the last day of the calendar, in a time zone that puts it outside.
        return None


def _from_unix_seconds(text: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
