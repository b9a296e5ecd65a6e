"""How the command line logs: one line per event, whatever is logged, and no secrets in it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

import logging_process
from rrq.broker.connection import open_redis
from rrq.exc import SettingsError
from rrq.job import JobStatus
from rrq.registry import JobRegistry
from rrq.runtime.logs import configure_logging
from rrq.settings import RRQSettings
from running import run_burst

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.client import RRQClient
    from rrq.embedded import EmbeddedRedis

SECRET = "hunter2"
logger = logging.getLogger("shop.tests")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger().setLevel(level)


class Log:
    """What was written, as lines."""

    def __init__(self, format: Any, **options: Any) -> None:
        self.stream = io.StringIO()
        configure_logging(format, stream=self.stream, **options)
        # Those of pytest raise what they cannot format.
        root = logging.getLogger()
        root.handlers[:] = root.handlers[-1:]

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    def one(self) -> dict[str, Any]:
        (line,) = self.lines()
        found: dict[str, Any] = json.loads(line)
        return found


def test_a_line_says_when_what_and_its_fields_in_order() -> None:
    log = Log("json", context={"worker_id": "w1", "pod": "a"})
    record = {"name": "shop", "levelno": 30, "levelname": "WARNING", "msg": "job %s late", "args": ("j1",)}
    record |= {"job_id": "j1", "queue": "mail", "attempt": 2, "pod": "b", "created": 0.0126}
    logger.handle(logging.makeLogRecord(record))
    assert list(log.one().items()) == [
        ("time", "1970-01-01T00:00:00.012Z"),
        ("level", "WARNING"),
        ("logger", "shop"),
        ("message", "job j1 late"),
        ("worker_id", "w1"),
        ("pod", "b"),
        ("job_id", "j1"),
        ("queue", "mail"),
        ("attempt", 2),
    ]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class UnprintableMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("do not look")

    def __len__(self) -> int:
        return 1


class Colour(IntEnum):
    RED = 1


LOOP: list[Any] = []
LOOP.append(LOOP)

ODD_VALUES = [
    (None, None),
    (True, True),
    (1.5, 1.5),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (2**70, str(2**70)),
    (10**5000, "<int that cannot be printed>"),
    (Colour.RED, 1),
    (JobStatus.PENDING, "PENDING"),
    (b"bytes \xff", "bytes \\xff"),
    ("a\nb\r\x85\u2028\x1b[31m", "a\nb\r\x85\u2028\x1b[31m"),
    ("lone \udc80", "lone \udc80"),
    (Unprintable(), "<Unprintable that cannot be printed>"),
    (UnprintableMapping(), "<UnprintableMapping that cannot be printed>"),
    ({1: {"a"}, "password": "x"}, {"1": ["a"], "password": "***"}),
    (("redis://u:hunter2@h", [1]), ["redis://***@h", [1]]),
    (LOOP, [[[[["[[...]]"]]]]]),
    (Path("/a"), "/a"),
    ({}, {}),
    ("", ""),
]


@pytest.mark.parametrize(
    ("value", "expected"), ODD_VALUES, ids=[type(value).__name__ for value, _ in ODD_VALUES]
)
def test_odd_values_become_json_on_one_line_and_stay_on_it_on_a_terminal(value: Any, expected: Any) -> None:
    log = Log("json")
    logger.info("m", extra={"field": value})
    assert log.one()["field"] == expected
    log = Log("text")
    logger.info("m", extra={"field": value})
    (line,) = log.lines()
    assert " field=" in line
    assert line.isprintable()


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize(
    ("message", "args", "expected"),
    [
        ("%d jobs", ("many",), "%d jobs"),
        ("nothing", ("too", "much"), "nothing"),
        ("%s", (Unprintable(),), "%s"),
        (Unprintable(), (), "<Unprintable that cannot be printed>"),
        ("lone \udc80 %s", ("x",), "lone "),
        ("two\nlines", (), "two"),
    ],
)
def test_a_message_that_cannot_be_made_is_still_a_line(
    format: str, message: Any, args: tuple[Any, ...], expected: str
) -> None:
    log = Log(format)
    logger.info(message, *args)
    (line,) = log.lines()
    assert expected in line


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_record_that_makes_no_sense_is_still_a_line(format: str) -> None:
    log = Log(format)
    broken = {"name": "x", "levelno": 20, "levelname": "INFO", "msg": "m", "created": "yesterday"}
    logger.handle(logging.makeLogRecord(broken))
    (line,) = log.lines()
    assert "log record could not be written" in line


def fail(message: str) -> None:
    raise ValueError(message)


def test_an_exception_is_error_and_traceback_on_the_same_line() -> None:
    log = Log("json")
    try:
        fail("line one\nline two")
    except ValueError:
        logger.exception("failed", extra={"job_id": "j"}, stack_info=True)
        logger.exception("failed", extra={"error": "as the caller names it"})
    found, renamed = map(json.loads, log.lines())
    assert found["error"] == "ValueError: line one\nline two"
    assert "in fail\n" in found["traceback"]
    assert found["stack"].startswith("Stack (most recent call last)")
    assert renamed["error"] == "as the caller names it"
    assert "line two" in renamed["traceback"]


def test_text_is_a_line_for_people_with_the_traceback_below() -> None:
    log = Log("text")
    try:
        fail("oops")
    except ValueError:
        logger.exception(
            "job failed", extra={"job_id": "j 1", "queue": "mail", "empty": "", "list": ["a", 1]}
        )
    first, *below = log.lines()
    assert first.endswith(
        ' ERROR   shop.tests: job failed job_id="j 1" queue=mail empty="" list=["a", 1] error="ValueError: oops"'
    )
    assert below[0] == "Traceback (most recent call last):"
    assert below[-1] == "ValueError: oops"


def test_a_text_cannot_control_the_terminal() -> None:
    log = Log("text")
    logger.error("\x1b[2J", exc_info=ValueError("\x1b[31m\x9b"))
    assert all(line.isprintable() for line in log.lines())


def test_a_stream_of_a_narrow_encoding_still_gets_its_line() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", "strict", write_through=True)
    configure_logging("text", stream=stream)
    logger.info("grün")
    assert raw.getvalue().endswith(b"gr\\xfcn\n")
    stream.close()
    logger.info("a closed stream costs the line and nothing else")


def test_calling_it_again_replaces_the_handler() -> None:
    first = Log("json")
    second = Log("text", level="debug")
    logger.debug("m")
    assert first.lines() == []
    assert len(second.lines()) == 1
    for format, level in (("xml", "INFO"), ("json", "LOUD")):
        with pytest.raises(ValueError, match=r"unknown|Unknown level"):
            configure_logging(format, level)  # type: ignore[arg-type]  # what mypy refuses is explained to others


async def test_lines_about_a_job_say_which_and_where(client: RRQClient, settings: RRQSettings) -> None:
    async def fail_with_text(ctx: dict[str, Any], text: str) -> None:
        raise ValueError("handler's own words")

    registry = JobRegistry()
    registry.register("fail", fail_with_text)
    job = await client.enqueue("fail", SECRET, _queue_name="mail", _max_retries=1)
    assert job is not None
    log = Log("json")
    worker = await run_burst(settings, registry, queues=["mail"])
    about = [line for line in map(json.loads, log.lines()) if "job_id" in line]
    assert [line["message"] for line in about] == ["job failed", "job dead-lettered"]
    for line in about:
        assert (line["job_id"], line["queue"]) == (job.id, "mail")
        assert (line["worker_id"], line["attempt"]) == (worker.worker_id, 1)
    assert SECRET not in log.stream.getvalue()


def start(task: str, *dsns: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, logging_process.__file__, task, *dsns]
    return subprocess.Popen(command, **streams)


def test_a_file_gets_json(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        assert start("hello", stderr=file).wait(60) == 0
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["message"], first["job_id"], first["pod"]) == ("hello\nworld", "j 1", "a")
    assert second["error"] == "ValueError: first line\nsecond line"


def test_a_terminal_gets_text() -> None:
    ours, theirs = pty.openpty()
    process = start("hello", stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:
        pass  # how Linux says that the other side has closed
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    first, second, *below = seen.decode().splitlines()
    assert first.endswith('INFO    logging_process: hello\\nworld pod=a job_id="j 1" attempt=2')
    assert second.endswith(' error="ValueError: first line\\nsecond line"')
    assert below[-1] == "second line"


def protected(make_redis: Callable[..., EmbeddedRedis]) -> str:
    """The address of a server that wants another password."""
    server = make_redis()

    async def protect() -> None:
        redis = open_redis(RRQSettings(redis_dsn=server.dsn))
        await redis.config_set("requirepass", "another")
        await redis.aclose()

    asyncio.run(protect())
    return server.dsn.removeprefix("redis://")


def test_a_password_is_never_shown_when_redis_cannot_be_used(
    make_redis: Callable[..., EmbeddedRedis],
) -> None:
    other_password = protected(make_redis)
    dsns = [
        "redis://:hunter2@127.0.0.1:1/0",
        "redis://user:hunter2@127.0.0.1:1/0",
        "redis://:hun/hunter2@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=hunter2",
        "redis+sentinel://:hunter2@127.0.0.1:1/main/0?sentinel_password=hunter2",
        "http://:hunter2@127.0.0.1:1",
        f"redis://:hunter2@{other_password}",
        f"redis://user:hunter2@{other_password}",
        f"redis://{other_password}?password=hunter2",
    ]
    process = start("get_into_trouble", *dsns, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    outputs = b"".join(process.communicate(timeout=60)).decode()
    # A client and a worker that could not start at all, or found no Redis, and settings that cannot be.
    assert outputs.count('"message": "ended by an error"') == 3 * len(dsns), outputs
    assert SECRET not in outputs


def test_settings_show_no_password() -> None:
    settings = RRQSettings(redis_dsn=f"redis://:{SECRET}@host")
    assert SECRET not in repr(settings) + str(settings)


@pytest.mark.parametrize(
    "options",
    [
        {"redis_sentinel_hosts": ["a"], "redis_dsn": f"redis://:{SECRET}@h"},
        {"redis_dsn": [f"redis://:{SECRET}@h"]},
    ],
)
def test_invalid_settings_are_refused_without_quoting_the_dsn(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        RRQSettings(**options)
    assert SECRET not in str(refusal.value) + repr(refusal.value)


@pytest.mark.parametrize("dsn", ["redis://:hun/hunter2@host", "redis://host:hunter2", "redis://[hunter2"])
def test_a_dsn_that_is_not_a_url_is_refused_without_quoting_its_parts(dsn: str) -> None:
    with pytest.raises(SettingsError, match="percent-encoded") as refusal:
        open_redis(RRQSettings(redis_dsn=dsn))
    assert refusal.value.__cause__ is None
