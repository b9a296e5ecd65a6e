"""`rrq pause`, `limit`, `flow` and `audit`: block jobs at run time, see what blocks them, and who did it."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

import pytest

from queue_steps import enqueue, ids, start_worker
from rrq.broker.messages import ClaimCode
from rrq.exc import FunctionDisabled
from rrq.flow import Limit
from running import run_burst

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


# Pauses


async def test_a_paused_queue_starts_no_job_until_it_is_resumed(cli: CommandLine, store: JobStore) -> None:
    assert await cli.ok("flow") == "Nothing is paused, limited or blocked\n"
    worker = await start_worker(store)
    await enqueue(store, "1")
    assert " now " in await cli.ok("queue", "list")
    said = await cli.ok("pause", "queue:default", "--reason", "the mail server is down", "--as", "ada")
    assert (
        said
        == "queue:default is paused: workers start no job of it. To undo it: `rrq resume queue:default`.\n"
    )
    assert await worker.take() == []
    assert " blocked " in await cli.ok("queue", "list")
    assert (await cli.json("queue", "list"))[0]["blocked"] == 1
    assert await cli.ok("resume", "queue:default", "--as", "bob") == "queue:default is resumed.\n"
    assert ids(await worker.take()) == ["1"]
    assert await cli.ok("resume", "queue:default") == "queue:default was not paused.\n"


async def test_a_pool_and_a_function_are_paused_too(cli: CommandLine, store: JobStore) -> None:
    inside = await start_worker(store, pool="shop/emails")
    await enqueue(store, "1")
    assert "its workers start no job" in await cli.ok("pause", "pool:shop/emails")
    assert (await inside.claim()).code is ClaimCode.PAUSED
    await cli.ok("resume", "pool:shop/emails")
    assert "producers may still enqueue new ones" in await cli.ok("pause", "function:greet")
    assert await inside.take() == []
    assert await cli.json("resume", "function:greet") == {
        "target": "function:greet",
        "state": None,
        "changed": True,
    }
    assert ids(await inside.take()) == ["1"]


async def test_a_disabled_function_refuses_producers_until_it_is_enabled(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    said = await cli.ok("disable", "add", "--reason", "charges twice")
    assert said.endswith("and producers cannot enqueue new ones. To undo it: `rrq enable add`.\n")
    with pytest.raises(FunctionDisabled):
        await client.enqueue("add")
    assert (await store.read_flow()).pauses["function:add"].reason == "charges twice"
    assert await cli.ok("enable", "function:add") == "function:add is resumed.\n"
    assert await client.enqueue("add") is not None


async def test_pausing_an_unknown_queue_asks_whether_its_name_is_right(
    cli: CommandLine, store: JobStore
) -> None:
    result = await cli.run("pause", "queue:emials")
    assert result.exit_code == 0
    assert (
        result.stderr == "Note: queue:emials has no jobs and no worker has served it yet. Is that its name?\n"
    )
    await store.register_active_queue("emails")
    assert (await cli.run("pause", "queue:emails")).stderr == ""


async def test_what_cannot_be_paused_is_refused(cli: CommandLine) -> None:
    for target in ("default", "queue:", "pool:emails", "job:1", ""):
        assert (await cli.refused("pause", target)).startswith(f"ERROR: {target!r} names no")
    assert (await cli.refused("resume", "default")).startswith("ERROR: 'default' names no")
    assert (await cli.run("pause", "queue:default", "--as", " ")).exit_code == 2, "the audit needs a name"


async def test_the_audit_names_the_user_who_is_logged_in(
    cli: CommandLine, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    await cli.ok("pause", "queue:default")
    assert (await store.read_audit())[0].actor == f"{getpass.getuser()}@{socket.gethostname()}"
    monkeypatch.setattr(getpass, "getuser", nobody)
    await cli.ok("pause", "queue:default")
    assert (await store.read_audit())[0].actor == f"uid-{os.getuid()}@{socket.gethostname()}"


# Limits


async def test_a_limit_is_set_listed_and_removed(cli: CommandLine, store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1", "2", "3")
    said = await cli.ok("limit", "set", "function:greet", "--concurrency", "1", "--as", "ada")
    assert said == "function:greet: 1 at once. To undo it: `rrq limit remove function:greet`.\n"
    assert ids(await worker.take(10)) == ["1"]
    lines = (await cli.ok("limit", "list")).splitlines()
    assert lines[1].split("  ")[0] == "Target"
    assert lines[2].split() == ["function:greet", "1", "at", "once", "hand", "1", "2"]
    (listed,) = await cli.json("limit", "list")
    assert (listed["running"], listed["blocked"], listed["overridden"]) == (1, 2, True)
    assert listed["limit"]["concurrency"] == 1
    assert await cli.ok("limit", "remove", "function:greet") == "function:greet: no limit holds.\n"
    assert ids(await worker.take(10)) == ["2", "3"]
    assert await cli.ok("limit", "list") == "No limits\n"


async def test_every_part_of_a_limit_can_be_set(cli: CommandLine, store: JobStore) -> None:
    words = {
        "concurrency": 5,
        "per-key": 1,
        "key": "tenant",
        "key-position": 2,
        "rate": 10,
        "per": 60,
        "burst": 20,
    }
    options = [f"--{name}={value}" for name, value in words.items()]
    said = await cli.ok("limit", "set", "function:send", *options, "--rate-per-key")
    assert "5 at once, 1 at once per tenant, 10 per 60 s per tenant in bursts of 20." in said
    assert (await store.read_flow()).limits["function:send"] == Limit(
        5, "tenant", 2, 1, rate=10, per_seconds=60, burst=20, is_rate_per_key=True
    )


async def test_a_declared_limit_is_shown_below_the_one_that_overrides_it(
    cli: CommandLine, store: JobStore
) -> None:
    await store.publish_limits("shop", {"queue:default": Limit(concurrency=8)})
    assert "application" in (await cli.ok("limit", "list")).splitlines()[2]
    await cli.ok("limit", "set", "queue:rrq:queue:default", "--rate", "2")
    lines = (await cli.ok("limit", "list")).splitlines()
    assert "2 per 1 s" in lines[2]
    assert "8 at once" in lines[3]
    assert "application, overridden" in lines[3]
    said = await cli.ok("limit", "remove", "queue:rrq:queue:default")
    assert "the limit of its application holds: 8 at once." in said
    said = await cli.ok("limit", "remove", "queue:default")
    assert said.startswith("queue:default had no limit set by hand; the limit of its application holds")


async def test_a_limit_that_cannot_be_kept_is_refused(cli: CommandLine, store: JobStore) -> None:
    for words, complaint in (
        ("function:send", "limits nothing"),
        ("function:send --burst 3", "has a burst but no rate"),
        ("queue:mail --per-key 3", "keys belong to functions"),
        ("pool:shop/mail --concurrency 3", "its size is set in its spec"),
        ("send --concurrency 3", "names nothing that can be"),
        ("function:send --rate nan", "must be 0 to 1,000,000"),
        ("function:send --rate 1 --per 0", "per_seconds of the limit"),
    ):
        said = await cli.refused("limit", "set", *words.split())
        assert said.startswith("ERROR: ")
        assert complaint in said
    assert (await store.read_flow()).limits == {}


# One view


async def test_flow_shows_what_blocks_jobs(cli: CommandLine, store: JobStore) -> None:
    worker = await start_worker(store)
    await cli.ok("pause", "queue:mail", "--reason", "the mail server is down", "--as", "ada")
    await cli.ok("limit", "set", "function:greet", "--per-key", "1", "--key", "tenant")
    for number in range(3):
        await enqueue(store, str(number), kwargs_json='{"tenant": "acme"}')
    await worker.take(10)
    shown = await cli.ok("flow")
    assert shown.index("Paused\n") < shown.index("Limits\n") < shown.index("Blocked Jobs\n")
    for words in ("queue:mail", "paused", "ada", "the mail server is down", "1 at once per tenant"):
        assert words in shown
    assert "function:greet for key 'acme'  2" in shown
    seen = await cli.json("flow")
    assert seen["blocked"] == {"k:greet:acme": 2}
    assert (seen["pauses"][0]["by"], seen["limits"][0]["blocked"]) == ("ada", 2)


# Who did it


async def test_everything_done_here_is_audited_newest_first(cli: CommandLine) -> None:
    assert await cli.ok("audit") == "The audit has no entries\n"
    await cli.ok("pause", "queue:mail", "--as", "ada", "--reason", "down")
    await cli.ok("limit", "set", "queue:mail", "--rate", "5", "--as", "bob")
    await cli.ok("resume", "queue:mail", "--as", "cyd")
    lines = (await cli.ok("audit")).splitlines()
    assert [line.split()[2:5] for line in lines[2:]] == [
        ["cyd", "resume", "queue:mail"],
        ["bob", "limit", "queue:mail"],
        ["ada", "pause", "queue:mail"],
    ]
    assert '{"reason": "down"}' in lines[4]
    entries = await cli.json("audit", "--limit", "1")
    assert [(entry["actor"], entry["action"]) for entry in entries] == [("cyd", "resume")]


# Pauses and limits that explain a quiet queue


async def test_a_check_shows_what_is_paused_and_limited(
    cli: CommandLine, store: JobStore, settings: RRQSettings, registry: JobRegistry, client: RRQClient
) -> None:
    await start_worker(store)
    result = await cli.run("check")
    assert "Note:" not in result.stderr
    await cli.ok("pause", "queue:mail", "--as", "ada", "--reason", "down")
    await cli.ok("limit", "set", "function:add", "--concurrency", "0")
    await client.enqueue("add")
    await run_burst(settings, registry)
    result = await cli.run("check")
    assert result.exit_code == 0
    assert "Note: queue:mail is paused by ada since 2" in result.stderr
    assert ": down.\n" in result.stderr
    assert "Note: 1 limit(s) are set, and limits and pauses block 1 due job(s); `rrq flow`" in result.stderr
    report = await cli.json("check")
    assert [entry["target"] for entry in report["paused"]] == ["queue:mail"]
    assert (report["limits"], report["blocked"]) == (1, 1)


# Data that no version of RRQ wrote
