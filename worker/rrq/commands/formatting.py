"""Values as short text and tables for people: pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rrq.runtime.escaping import escape_unprintable

NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """What a listing shows, for a terminal or a pipe."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def format_time(moment: datetime | None) -> str:
    return NOTHING if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_ms(due_at_ms: float) -> str:
    """A score of a queue as a time; scores may lie outside of every calendar."""
    try:
        return format_time(datetime.fromtimestamp(due_at_ms / 1000, UTC))
    except (ValueError, OverflowError, OSError):
        return f"{due_at_ms:g} ms"


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, whole = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {whole:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}h"


def format_value(value: Any) -> str:
    """A decoded JSON value on one line."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"


def shorten(text: str | None, length: int) -> str:
    if not text:
        return NOTHING
    return text if len(text) <= length else f"{text[:length]}..."


def describe_page(offset: int, shown: int, total: int) -> str:
    if shown == 0:
        return f"No jobs beyond --offset {offset}; there are {total}"
    return f"Showing {offset + 1}-{offset + shown} of {total} jobs"


def printable(text: str) -> str:
    """Return the text on one line and safe for a terminal: job data must not steer it."""
    return escape_unprintable(text.replace("\n", " ").replace("\t", " "))
