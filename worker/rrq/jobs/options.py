"""What few jobs ask for: priority, idempotency, debouncing, a chain, a batch. As the enqueue script reads it: pure.

A job that asks for none of it sends an empty text, and costs what it always did.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rrq.broker.messages import NewJob
from rrq.exc import InvalidJob

__all__ = ["HIGHEST_PRIORITY", "JobOptions", "build_kept_job", "build_options"]

HIGHEST_PRIORITY: Final = 9
_LONGEST_WINDOW_SECONDS: Final = 86_400 * 366
_LONGEST_CHAIN: Final = 1_000


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of one job; what each means is told at ``RRQClient.enqueue``."""

    priority: int | None = None
    limit_key: str | None = None
    idempotency_key: str | None = None
    idempotency_seconds: float = 86_400.0
    debounce_key: str | None = None
    debounce_max_seconds: float | None = None
    replaces_pending: bool = False
    batch_id: str | None = None
    takes_result: bool = False
    """Of a follow-up in a chain: gets the result of the job before as its first argument."""


NO_OPTIONS: Final = JobOptions()


def build_options(options: JobOptions, chain: Sequence[Sequence[Any]] = ()) -> str:
    """Return the options as JSON, '' when there are none. Raises InvalidJob for what makes no sense."""
    if options == NO_OPTIONS and not chain:
        return ""
    for name in ("limit_key", "idempotency_key", "debounce_key", "batch_id"):
        _check_text(f"_{name}", getattr(options, name))
    if options.priority is not None and not 0 <= options.priority <= HIGHEST_PRIORITY:
        raise InvalidJob(f"_priority must be 0 to {HIGHEST_PRIORITY}, not {options.priority!r}.")
    if options.debounce_max_seconds is not None and options.debounce_key is None:
        raise InvalidJob("_debounce_max_seconds needs a _debounce_key to go with.")
    if options.idempotency_key is not None and options.debounce_key is not None:
        raise InvalidJob("_idempotency_key keeps the first call and _debounce_key the last: choose one.")
    if len(chain) > _LONGEST_CHAIN:
        raise InvalidJob(f"A chain has at most {_LONGEST_CHAIN} jobs, not {len(chain)}.")
    values: dict[str, Any] = {
        "priority": options.priority,
        "limit_key": options.limit_key,
        "debounce_key": options.debounce_key,
        "if_pending": options.replaces_pending or None,
        "batch_id": options.batch_id,
        "takes_result": options.takes_result or None,
        "next": list(chain) or None,
    }
    if options.idempotency_key is not None:
        values["idempotency_key"] = options.idempotency_key
        values["idempotency_ms"] = _window_ms("_idempotency_seconds", options.idempotency_seconds)
    if options.debounce_max_seconds is not None:
        values["debounce_max_ms"] = _window_ms("_debounce_max_seconds", options.debounce_max_seconds)
    return json.dumps({name: value for name, value in values.items() if value is not None})


def build_kept_job(job: NewJob, unique_ttl_seconds: int) -> list[str]:
    """Return a job that is queued later, by the script that ends another one, as ``batch.lua`` reads it."""
    return [str(value) for value in (*job[:4], 1, *job[4:], unique_ttl_seconds)]


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidJob(f"Names, ids and keys of a job are text; {name} is {type(value).__name__}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(
            f"{name} {value!r} holds half of a surrogate pair, which UTF-8 cannot store. Decode the text "
            "properly, or replace that character."
        ) from error


def _window_ms(name: str, seconds: float) -> int:
    if not 0.001 <= seconds <= _LONGEST_WINDOW_SECONDS:
        raise InvalidJob(f"{name} must be 0.001 to a year, not {seconds!r}.")
    return int(seconds * 1000)
