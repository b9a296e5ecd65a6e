"""Values as short text for people: pure."""

import json
import math
from datetime import UTC, datetime
from typing import Any

NOTHING = "-"


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
    """Return the text on one line and harmless: job data must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character in "\n\t" else _spelled_out(character)
        for character in text
    )


def _spelled_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


def as_strict_json(value: Any) -> Any:
    """Return the value with NaN and infinities as text: Python reads and writes them, JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): as_strict_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_strict_json(item) for item in value]
    return value
