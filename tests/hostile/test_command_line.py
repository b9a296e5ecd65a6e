"""The command line before hostile arguments and hostile data: one clear line, never a traceback, and nothing that
steers the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

from commandline import CommandLine, child_environment, terminal
from queue_steps import ask
from rrq.cli import rrq
from waiting import eventually
from wrong_types import FAMILIES, Family, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from rrq.store import JobStore

#: Sets the title, clears the screen, changes the colour by one byte, rings, goes back, turns the text around.
STEERING = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x08\r\u202eevil\x00\x7f"
EVIL_ID = f"evil{STEERING}"
LOOKING = [
    ("check",),
    ("queue", "list"),
    ("queue", "list", "--show-empty"),
    ("queue", "stats"),
    ("queue", "inspect", "default"),
    ("job", "list"),
    ("job", "show", EVIL_ID.replace("\0", "")),
    ("job", "show", "odd"),
    ("job", "show", "edge"),
    ("job", "show", "deep"),
    ("job", "trace", EVIL_ID.replace("\0", "")),
    ("job", "trace", "odd"),
    ("job", "trace", "edge"),
    ("dlq", "list"),
    ("dlq", "stats"),
    ("dlq", "inspect", EVIL_ID.replace("\0", "")),
    ("dlq", "inspect", "odd"),
    ("dlq", "requeue", "--all", "--dry-run"),
    ("dlq", "delete", "--all", "--dry-run"),
    ("job", "cancel", "--queue", "default", "--dry-run"),
    ("batch", "show", "evil"),
    ("limit", "list"),
    ("flow",),
    ("audit",),
    ("monitor",),
]
# Printable characters, and what ends and indents lines.
_HARMLESS = re.compile(r"[\n\t -~\u00a1-\U0010ffff]*")
_TURNS_TEXT_AROUND = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def assert_harmless(text: str) -> None:
    assert _HARMLESS.fullmatch(text), repr(text)
    assert not _TURNS_TEXT_AROUND.search(text), repr(text)


def assert_answered(result: Result) -> None:
    """The command has ended by itself, with or without success, and said so in its own words."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2)
    assert "Traceback (most recent" not in result.output
    assert_harmless(result.output)
    if result.exit_code == 1 and result.stdout == "":
        assert result.stderr.count("\n") <= 2, result.stderr


@pytest.fixture
async def cli(redis_dsn: str, store: JobStore) -> CommandLine:
    """A command line for a Redis full of garbage."""
    steering = STEERING.encode()
    fields: dict[str, Any] = dict.fromkeys(
        ("function_name", "queue_name", "status", "last_error", "worker_id", "job_args", "job_kwargs", "result",
         "traceback", "job_unique_key", "enqueue_time", "start_time", "completion_time", "current_retries",
         "max_retries", "crash_history", "trace_context", "next_scheduled_run_time", "attempts", "progress", "cursor",
         "next", "parked_in", "batch_id", "parent_id", "limit_key", STEERING), steering,
    )  # fmt: skip
    jobs: dict[str, dict[str, Any]] = {
        EVIL_ID.replace("\0", ""): fields,
        "evil json": {name: json.dumps([STEERING]).encode() for name in fields},
        "odd": dict.fromkeys(fields, b"\xff\xfe\x00"),
        "edge": dict.fromkeys(fields, b"0001-01-01T00:00:00+23:59") | {"completion_time": b"9999-12-31T23:59:59-23:59"},
        "deep": dict.fromkeys(fields, b"[" * 50_000),
        "empty": {"a": ""},
        "numbers": dict.fromkeys(fields, b"1e999") | {"status": b"COMPLETED", "start_time": b"nan"},
        "negative": dict.fromkeys(fields, b"-1e300") | {"status": b"FAILED"},
    }  # fmt: skip
    for job_id, found in jobs.items():
        await ask(store, "HSET", f"rrq:job:{job_id}", *(part for pair in found.items() for part in pair))
        await ask(store, "LPUSH", "rrq:dlq:default", job_id)
    for number, entry in enumerate([*(job_id.encode() for job_id in jobs), b"missing", b"\xff", b""]):
        score = ("-inf", "+inf", 1e300, -1e300, 0, 1e15)[number % 6]
        await ask(store, "ZADD", "rrq:queue:default", score, entry)
        await ask(store, "ZADD", f"rrq:queue:evil{STEERING}", score, entry)
    await ask(store, "LPUSH", "rrq:dlq:default", b"\xff", "", "x" * 100_000)
    await ask(store, "SET", "rrq:job:text", "no hash")
    for worker_id in ("evil" + STEERING, b"\xff"):
        await ask(store, "ZADD", store.keys.leases, "+inf", worker_id)
        await ask(store, "ZADD", store.keys.active_queues, "+inf", worker_id)
    for health in (b"\xff", b"[]", b"[" * 50_000, json.dumps(dict.fromkeys(("status", "timestamp", "queues", "active_jobs"), STEERING)).encode()):  # fmt: skip
        await ask(store, "SET", b"rrq:health:worker:" + health[:5], health)
    await put_evil_controls(store)
    return CommandLine(redis_dsn)


async def put_evil_controls(store: JobStore) -> None:
    """Leave pauses, limits, parked jobs, an audit entry and a batch that no version of RRQ wrote."""
    evil = json.dumps(STEERING)
    for target in (b"", b"\xff", b"queue:a", f"function:{STEERING}".encode(), f"pool:{STEERING}".encode()):
        pause = f'{{"state": "paused", "by": {evil}, "reason": {evil}, "at_ms": 1e300}}'
        await ask(store, "HSET", store.keys.pauses, target, pause)
        limit = (
            f'{{"concurrency": {evil}, "key": {evil}, "rate": [{evil}], "burst": {{}}, "per_seconds": null}}'
        )
        await ask(store, "HSET", store.keys.limits, target, limit)
        await ask(store, "HSET", store.keys.limit_overrides, target, limit)
        await ask(store, "ZADD", store.keys.blocked_scopes, "+inf", target)
    for text in (b"[" * 50_000, b"[]", b"\xff", b'{"state": 7}'):
        await ask(store, "HSET", store.keys.pauses, text[:5], text)
        await ask(store, "HSET", store.keys.limits, text[:5], text)
    await ask(
        store, "XADD", store.keys.audit, "*", "actor", STEERING, "detail", f"[{evil}]", b"\xff", b"\xff"
    )
    await ask(
        store, "XADD", store.keys.audit, f"{2**64 - 1}-0", "object", STEERING, "detail", f'{{"a": {evil}}}'
    )
    fields = {"total": STEERING, "ended": STEERING, "callback": json.dumps([1, STEERING])}
    await ask(
        store, "HSET", store.keys.batch_key("evil"), *(part for pair in fields.items() for part in pair)
    )


@pytest.mark.parametrize("option", ["", "--json", "--raw"])
async def test_garbage_in_redis_is_shown_and_steers_nothing(option: str, cli: CommandLine) -> None:
    for command in LOOKING:
        result = await cli.run(*command, *([option] if option else []))
        assert_answered(result)
        if option == "--json" and result.exit_code == 0 and "--dry-run" not in command:
            json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("job", "show", EVIL_ID.replace("\0", "")), ("dlq", "list"), ("monitor",)],
    ids=lambda command: " ".join(command[:2]),
)
async def test_a_terminal_gets_no_sequence_from_a_job(command: tuple[str, ...], cli: CommandLine) -> None:
    with terminal(cli.environment, *command) as screen:
        if command == ("monitor",):
            await eventually(lambda: "Dead Letters" in screen.text, 60, message=f"no picture: {screen.raw}")
            screen.press_ctrl_c()
        assert screen.wait() == 0
    for sequence in ("\x1b]0", "\x1b[2J\x9b", "\x9b31m", "\x07", "\u202e"):
        assert sequence not in screen.raw
    assert "Traceback (most recent" not in screen.text


# Several at once, far from each other in the list so that hardly a command needs two of them.
@pytest.mark.parametrize(
    "families", [FAMILIES[first::11] for first in range(11)], ids=lambda found: found[0].name
)
async def test_a_key_of_the_wrong_type_is_one_clear_line(
    families: tuple[Family, ...], redis_dsn: str, store: JobStore
) -> None:
    cli = CommandLine(redis_dsn)
    commands = (*LOOKING, ("job", "cancel", "job-under-attack"), ("job", "replay", "job-under-attack"),
                ("dlq", "requeue", "--all"), ("queue", "inspect", "under-attack"), ("batch", "show", "batch-under-attack"),
                ("pause", "queue:under-attack"), ("resume", "queue:under-attack"), ("disable", "function-under-attack"),
                ("enable", "function-under-attack"), ("limit", "set", "queue:under-attack", "--rate", "1"),
                ("limit", "remove", "queue:under-attack"), ("job", "cancel", "--queue", "under-attack", "--yes"),
                ("dlq", "edit", "job-under-attack", "--args", "[]"), ("dlq", "delete", "--all", "--yes"))  # fmt: skip
    # One wrong type is like the other here: Redis answers both in the same words.
    for family in families:
        await put(store, family.key(store.keys), "string" if family.kind != "string" else "zset")
    for command in commands:
        assert_answered(await cli.run(*command))


ARGUMENTS = [
    "",
    "\udcff",
    STEERING.replace("\0", ""),
    "-1",
    "9" * 5000,
    "nan",
    "*",
    "a" * 100_000,
    "{[(",
    "rrq:queue:",
]
COMMANDS = [
    ("job", "show"), ("job", "trace"), ("job", "cancel"), ("job", "replay"), ("dlq", "inspect"), ("queue", "inspect"),
    ("job", "list", "--limit"), ("job", "list", "--queue"), ("job", "list", "--function"), ("job", "list", "--status"),
    ("dlq", "list", "--offset"), ("dlq", "list", "--limit"), ("dlq", "list", "--dlq-name"), ("dlq", "list", "--batch-size"),
    ("dlq", "requeue", "--job-id"), ("dlq", "requeue", "--all", "--limit"), ("dlq", "requeue", "--all", "--target-queue"),
    ("dlq", "stats", "--dlq-name"), ("queue", "stats", "--queue"), ("queue", "stats", "--max-scan"),
    ("monitor", "--queues"), ("check", "--timeout"), ("check", "--settings"), ("completion",), ("debug", "submit"),
    ("debug", "submit", "f", "--args"), ("debug", "submit", "f", "--kwargs"), ("debug", "submit", "f", "--queue"),
    ("debug", "submit", "f", "--delay"), ("debug", "clear", "--confirm", "--pattern"),
    ("worker", "watch", "--settings"), ("worker", "run", "--num-workers"), ("worker", "run", "--http"), ("worker", "run", "--num-workers", "0", "--weights"),
    ("pause",), ("pause", "queue:a", "--reason"), ("pause", "queue:a", "--as"), ("resume",), ("disable",), ("enable",),
    ("limit", "set"), ("limit", "set", "function:f", "--rate"), ("limit", "set", "function:f", "--concurrency"),
    ("limit", "set", "function:f", "--concurrency", "1", "--key"), ("limit", "remove"), ("limit",), ("audit", "--limit"),
    ("batch", "show"), ("job", "cancel", "--yes", "--queue"), ("job", "cancel", "--queue", "q", "--yes", "--function"),
    ("job", "cancel", "--queue", "q", "--yes", "--due-for"), ("dlq", "delete", "--yes"), ("dlq", "edit"),
    ("dlq", "edit", "x", "--args"), ("dlq", "edit", "x", "--kwargs"), ("dlq", "delete", "--yes", "--all", "--dlq-name"),
    (), ("job",), ("nothing",),
]  # fmt: skip


def test_every_command_is_among_those_that_garbage_is_thrown_at() -> None:
    def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if isinstance(found, click.Group):
                yield from commands(found, *path, name)
            else:
                yield (*path, name)

    tried = {command[:length] for command in (*LOOKING, *COMMANDS) for length in (1, 2)}
    # These run until they are stopped.
    endless = {
        ("dashboard",),
        ("debug", "stress-test"),
    }
    assert set(commands(rrq)) - endless <= tried


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_garbage_as_an_argument_is_refused_or_answered(
    command: tuple[str, ...], redis_dsn: str
) -> None:
    cli = CommandLine(redis_dsn)
    for argument in ARGUMENTS:
        result = await cli.run(*command, argument)
        assert_answered(result)


async def test_what_a_terminal_has_no_letters_for_is_printed_with_escapes(
    redis_dsn: str, store: JobStore
) -> None:
    await ask(store, "HSET", "rrq:job:1", "function_name", "caf\u00e9 \u2603", "status", "PENDING")
    # Not ASCII, which click takes for UTF-8 that nobody has set up.
    environment = child_environment({"RRQ_REDIS_DSN": redis_dsn, "PYTHONIOENCODING": "latin-1"})
    shown = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "rrq", "job", "show", "1"],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"caf\xe9 \\u2603" in shown.stdout


@pytest.mark.slow
async def test_a_reader_that_goes_away_is_no_error(redis_dsn: str, store: JobStore) -> None:
    # More than a pipe holds.
    pipe = store.redis.pipeline()
    for number in range(1000):
        pipe.hset(f"rrq:job:{number}", "function_name", "f" * 200)
        pipe.lpush("rrq:dlq:default", number)
    await pipe.execute()
    environment = child_environment({"RRQ_REDIS_DSN": redis_dsn})
    for command in (("job", "list", "--limit", "1000"), ("dlq", "list", "--limit", "1000", "--raw")):
        with subprocess.Popen(
            [sys.executable, "-m", "rrq", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            complaint = process.stderr.read().decode()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        assert complaint == "", command


@pytest.mark.slow
def test_a_worker_with_settings_of_no_kind_says_so_and_ends(redis_dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rrq", "worker", "run", "--settings", STEERING.replace("\0", "")],
        env=child_environment({"RRQ_REDIS_DSN": redis_dsn}),
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr
    assert "Traceback (most recent" not in done.stderr
    assert "\x1b]" not in done.stderr
