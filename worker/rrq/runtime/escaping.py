"""Makes text and JSON safe to print: control characters are escaped, and numbers that JSON lacks become text. Pure."""

import math
from typing import Any

__all__ = ["as_strict_json", "escape_unprintable"]


def escape_unprintable(text: str) -> str:
    """Return the text on one line, with each unprintable character as its escape: it cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def as_strict_json(value: Any) -> Any:
    """Return the value with NaN and infinities as text: Python reads and writes them, JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): as_strict_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_strict_json(item) for item in value]
    return value
