"""A Redis that cannot be used is one clear line and exit code 1, whatever the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commandline import CommandLine
from listening import Listener

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis
    from rrq.store import JobStore

COMMANDS = [
    ("queue", "list"), ("queue", "stats"), ("queue", "inspect", "default"), ("job", "list"), ("job", "show", "x"),
    ("job", "trace", "x"), ("job", "replay", "x"), ("job", "cancel", "x"), ("job", "cancel", "--queue", "mail"),
    ("dlq", "list"), ("dlq", "stats"), ("dlq", "inspect", "x"), ("dlq", "requeue", "--all"), ("dlq", "delete", "--all"),
    ("dlq", "edit", "x", "--args", "[]"), ("batch", "show", "x"), ("pause", "queue:mail"), ("resume", "queue:mail"),
    ("disable", "f"), ("enable", "f"), ("limit", "list"), ("limit", "set", "queue:mail", "--rate", "1"),
    ("limit", "remove", "queue:mail"), ("flow",), ("audit",), ("monitor",), ("debug", "submit", "f"),
    ("debug", "clear"), ("debug", "stress-test", "--json"),
]  # fmt: skip


async def test_an_unreachable_redis_is_named() -> None:
    for command in COMMANDS:
        complaint = await CommandLine("redis://me:secret@127.0.0.1:1/0").refused(*command)
        assert complaint.startswith("ERROR: Redis at redis://***@127.0.0.1:1/0 could not be reached: ")
        assert "Check redis_dsn (RRQ_REDIS_DSN)" in complaint
        assert "\n" not in complaint
        assert "secret" not in complaint


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("http://me:secret@host", "has the scheme 'http'"),
        ("redis://:sec/ret@host:6379/0", "cannot be read as a URL"),
    ],
)
async def test_an_address_that_can_never_work_is_refused(dsn: str, shown: str) -> None:
    for command in (*COMMANDS, ("check",)):
        complaint = await CommandLine(dsn).refused(*command)
        assert complaint.startswith("ERROR: redis_dsn '")
        assert shown in complaint
        assert "\n" not in complaint
        assert "sec" not in complaint


async def test_watching_refuses_such_an_address_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "unreachable_app.py"
    module.write_text(
        "from rrq import JobRegistry, RRQSettings\nsettings = RRQSettings(job_registry=JobRegistry())"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cli = CommandLine("redis://:sec/ret@host:6379/0")
    complaint = await cli.refused("worker", "watch", "--settings", f"{module.stem}.settings")
    assert complaint.startswith("ERROR: redis_dsn 'redis://***@host:6379/0' cannot be read as a URL")


async def test_a_wrong_password_is_reported(own_redis: EmbeddedRedis) -> None:
    dsn = own_redis.dsn.replace("redis://", "redis://nobody:wrong-secret@")
    complaint = await CommandLine(dsn).refused("queue", "list")
    assert "invalid username-password pair" in complaint
    assert "wrong-secret" not in complaint


async def test_a_refused_command_is_reported(cli: CommandLine, store: JobStore) -> None:
    await store.redis.set("rrq:queue:default", "not a queue")
    complaint = await cli.refused("queue", "inspect", "default")
    assert "refused a command: " in complaint
    assert "WRONGTYPE" in complaint
    assert "\n" not in complaint


async def test_a_redis_that_disconnects_during_a_command_is_reported() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with Listener(hang_up) as server:
        complaint = await CommandLine(f"redis://127.0.0.1:{server.port}/0").refused("job", "list")
    assert "could not be reached" in complaint
