"""The log format of the command line: one line per event, JSON for programs, text on a terminal.

The library itself installs no handler; an application that runs a worker configures its own logging. Every record becomes
a line: unexpected values, wrong ``%`` arguments and objects that cannot be printed lose a field, not the line. Passwords
are masked in every text, including those of exceptions.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, Literal, TextIO

from rrq.runtime.escaping import escape_unprintable
from rrq.runtime.masking import MASK, is_secret_name, mask_secrets

__all__ = ["LogFormat", "configure_logging"]

LogFormat = Literal["auto", "json", "text"]

# The attributes of every record; all others are fields of the caller.
_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_OWN: Final = frozenset({"time", "level", "logger", "message"})
# From this depth on a structure is written as text; it may contain itself.
_DEEPEST: Final = 5
_NEEDS_QUOTES: Final = re.compile(r"[ \"=]")


def configure_logging(
    format: LogFormat = "auto",
    level: int | str = logging.INFO,
    context: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Log everything from ``level`` on to ``stream``, by default stderr. A second call replaces the first.

    "auto" is text on a terminal and JSON elsewhere. ``context`` has fields for every line; a field of the record overrides
    one of the same name. Raises ValueError for an unknown format or level.
    """
    stream = sys.stderr if stream is None else stream
    if format == "auto":
        format = "text" if stream.isatty() else "json"
    if format not in ("json", "text"):
        raise ValueError(f"Log format {format!r} is unknown; use auto, json or text.")
    root = logging.getLogger()
    root.setLevel(level.upper() if isinstance(level, str) else level)
    for handler in root.handlers[:]:
        if isinstance(handler, _LineHandler):
            root.removeHandler(handler)
    handler = _LineHandler(stream)
    handler.setFormatter(_LineFormatter(format == "json", context or {}))
    root.addHandler(handler)


class _LineHandler(logging.StreamHandler[TextIO]):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if line.isascii():
            return line
        # Escaped, because the stream may be unable to encode it.
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return line.encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:
        # The formatter does not fail, so the stream has failed, and no other stream is left.
        pass


class _LineFormatter(logging.Formatter):
    def __init__(self, is_json: bool, context: Mapping[str, Any]) -> None:
        super().__init__()
        self._is_json = is_json
        self._context = dict(context)

    def format(self, record: logging.LogRecord) -> str:
        # Fields may be objects of the application, whose code may fail here.
        try:
            fields = build_fields(record, self._context)
        except Exception as error:  # noqa: BLE001  another line is written instead
            fields = {
                "time": _format_time(datetime.now(UTC).timestamp()),
                "level": str(record.levelname),
                "logger": str(record.name),
                "message": "log record could not be written",
                "error": type(error).__name__,
            }
        return json.dumps(fields) if self._is_json else build_text(fields)


def build_fields(record: logging.LogRecord, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line, in their order and in types that JSON has."""
    message, format_error = _read_message(record)
    fields: dict[str, Any] = {
        "time": _format_time(record.created),
        "level": _clean_text(record.levelname),
        "logger": _clean_text(record.name),
        "message": message,
    }
    given = {name: value for name, value in record.__dict__.items() if name not in _USUAL}
    for name, value in {**context, **given}.items():
        key = _clean_text(name)
        fields[f"extra_{key}" if key in _OWN else key] = MASK if is_secret_name(key) else _clean_field(value)
    if format_error:
        fields["format_error"] = format_error
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        fields.setdefault("error", f"{type(error).__name__}: {_clean_text(error)}")
        fields["traceback"] = _clean_text(_Traceback(error))
    elif record.exc_text:
        fields["traceback"] = _clean_text(record.exc_text)
    if record.stack_info:
        fields["stack"] = _clean_text(record.stack_info)
    return fields


def build_text(fields: Mapping[str, Any]) -> str:
    """Return the line for a person: message and fields, with a traceback below, if any."""
    level, logger, message = (escape_unprintable(fields[name]) for name in ("level", "logger", "message"))
    below = [
        escape_unprintable(line)
        for name in ("traceback", "stack")
        for line in str(fields.get(name, "")).splitlines()
    ]
    shown = {name: value for name, value in fields.items() if name not in _OWN | {"traceback", "stack"}}
    pairs = "".join(f" {escape_unprintable(name)}={_quote(value)}" for name, value in shown.items())
    return "\n".join([f"{fields['time']} {level:<7} {logger}: {message}{pairs}", *below])


def _read_message(record: logging.LogRecord) -> tuple[str, str]:
    """Return the message and, when its arguments do not match, the error."""
    try:
        return mask_secrets(record.getMessage()), ""
    except Exception as error:  # noqa: BLE001  the text without its arguments is better than none
        return _clean_text(record.msg), f"{type(error).__name__}: {_clean_text(error)}"


def _format_time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return f"{moment[:-6]}Z"


class _Traceback:
    """Formats a traceback when it is printed, where errors are handled."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        return "".join(traceback.format_exception(self._error)).rstrip()


def _clean_field(value: Any) -> Any:
    try:
        return _clean(value)
    except Exception:  # noqa: BLE001  a container of the application may fail when it is read
        return _unprintable(value)


def _clean(value: Any, depth: int = 0) -> Any:
    """Return a value that JSON can express, with passwords masked."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # A plain int: an enum or a subclass may have a text of its own.
        return int(value) if abs(value) < 2**63 else _clean_text(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {
                (key := _clean_text(name)): MASK if is_secret_name(key) else _clean(item, depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple | AbstractSet):
            return [_clean(item, depth + 1) for item in value]
    return _clean_text(value)


def _clean_text(value: Any) -> str:
    if isinstance(value, str):
        # The characters themselves, not the text of a subclass.
        return mask_secrets(str.__str__(value))
    if isinstance(value, bytes):
        return mask_secrets(value.decode("utf-8", "backslashreplace"))
    try:
        return mask_secrets(str(value))
    except Exception:  # noqa: BLE001  its __str__ may raise anything
        return _unprintable(value)


def _unprintable(value: Any) -> str:
    return f"<{type(value).__name__} that cannot be printed>"


def _quote(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and not _NEEDS_QUOTES.search(value or " "):
        return value
    return escape_unprintable(json.dumps(value, ensure_ascii=False))
