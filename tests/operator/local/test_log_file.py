"""Reading the log of a replica."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rrq_operator.local.log_file import LogFile, describe_line

if TYPE_CHECKING:
    from pathlib import Path

SERVED = json.dumps({"level": "INFO", "message": "probes and metrics are served", "port": 4711})


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_the_port_of_the_probes_is_found_as_the_log_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, SERVED.replace("4711", "1174"))
    # What an earlier process wrote does not count.
    log = LogFile(path)
    with path.open("a") as file:
        file.write(SERVED[:20])
    log.follow()
    assert log.http_port is None
    append(path, SERVED[20:])
    log.follow()
    assert log.http_port == 4711


def test_what_is_meant_for_people_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(path)
    trouble = json.dumps({"level": "ERROR", "message": "worker process cannot run the application"})
    append(path, "Starting", "ERROR: Could not import it.", "Cause: No module", "", trouble)
    log.follow()
    assert log.last_words() == "Could not import it. Cause: No module"


def test_the_last_error_comes_before_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(path)
    assert log.last_words() == "it said nothing"
    append(path, json.dumps({"level": "ERROR", "message": "went wrong", "error": "disk full"}))
    append(path, json.dumps({"level": "INFO", "message": "worker process ended"}))
    log.follow()
    assert log.last_words() == "went wrong: disk full"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plain", "plain"),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ('{"no": "message here"}', '{"no": "message here"}'),
        ('{"message": "died", "exception": "Traceback\\n  line\\nValueError: no"}', "died: ValueError: no"),
    ],
)
def test_a_line_of_json_is_shown_as_text(line: str, words: str) -> None:
    assert describe_line(line) == words
