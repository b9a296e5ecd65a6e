"""The log of one replica: a file, so that nothing is lost and no replica waits when local mode is slow or killed.

The worker writes lines of JSON; anything else in the file is text.
"""

import json
from collections import deque
from pathlib import Path
from typing import Any

_LINES_KEPT = 20
_BYTES_AT_ONCE = 1 << 20


class LogFile:
    """Follows a log as it grows; remembers its last lines and the address of the probes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.http_port: int | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        # A replica that is restarted appends to its file; what came before is of another process.
        self._offset = path.stat().st_size if path.exists() else 0
        self._begun = b""

    def follow(self) -> None:
        """Read what has been added."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while added := file.read(_BYTES_AT_ONCE):
                    self._offset += len(added)
                    *lines, self._begun = (self._begun + added).split(b"\n")
                    for line in lines:
                        self._take(line.decode("utf-8", "replace"))
        except OSError:
            return  # not there yet, or deleted by a person

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self._lines.append(line)
        fields = _parse(line)
        if self.http_port is None and fields.get("message") == "probes and metrics are served":
            self.http_port = int(fields["port"])

    def last_words(self) -> str:
        """Return why it ended, as far as the log tells: its last error, else its last line."""
        lines = [*self._lines]
        # Errors for people are text and begin with ERROR; a cause may follow on lines of its own.
        for number in range(len(lines) - 1, -1, -1):
            if lines[number].startswith("ERROR"):
                words = " ".join(line for line in lines[number:] if not _parse(line))
                return words.removeprefix("ERROR: ")
        errors = [line for line in lines if _parse(line).get("level") in ("ERROR", "CRITICAL")]
        return describe_line((errors or lines or ["it said nothing"])[-1])


def describe_line(line: str) -> str:
    """Return a line of a log for people: the message of a JSON line, and its error if it has one."""
    fields = _parse(line)
    if not fields:
        return line
    detail = fields.get("error") or fields.get("exception")
    last_detail = str(detail).strip().splitlines()[-1] if detail else ""
    return f"{fields['message']}: {last_detail}" if last_detail else str(fields["message"])


def _parse(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) and "message" in fields else {}
