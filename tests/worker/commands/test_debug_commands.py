"""`rrq debug`: real jobs submitted by hand, a stress test, and keys deleted by pattern."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queue_steps import ask, due_score, job_fields
from running import run_burst

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


async def test_a_submitted_job_runs_with_its_arguments(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    shown = await cli.ok(
        *("debug", "submit", "add", "--args", "[1, 2]", "--kwargs", '{"unit": "kg"}', "--queue", "mail")
    )
    lines = shown.splitlines()
    assert lines[0].startswith("Job submitted: ")
    assert lines[1:] == ["Function: add", "Args: [1, 2]", 'Kwargs: {"unit": "kg"}', "Queue: mail"]
    await run_burst(settings, registry, queues=["mail"])
    result = await client.get_job_status(lines[0].split()[-1])
    assert result is not None
    assert result.result == {"sum": 3, "unit": "kg"}


async def test_a_submitted_job_may_be_delayed(cli: CommandLine, store: JobStore) -> None:
    shown = await cli.ok("debug", "submit", "add", "--delay", "100")
    assert shown.splitlines()[-2:] == ["Queue: rrq:queue:default", "Delay: 100s"]
    score = await due_score(store, shown.split()[2])
    assert score is not None
    assert abs(score / 1000 - time.time() - 100) < 30
    submitted = await cli.json("debug", "submit", "add")
    assert (await job_fields(store, submitted["job_id"]))["job_args"] == "[]"


async def test_arguments_that_are_not_json_are_a_usage_error(cli: CommandLine) -> None:
    for option, value in (("--args", '{"a": 1}'), ("--args", "[1"), ("--kwargs", "[1]")):
        result = await cli.run("debug", "submit", "add", option, value)
        assert result.exit_code == 2
        assert "must be a JSON" in result.stderr


async def exist(store: JobStore, *keys: str | bytes) -> int:
    return int(await ask(store, "EXISTS", *keys))


async def test_clearing_deletes_what_matches(cli: CommandLine, store: JobStore) -> None:
    assert await cli.ok("debug", "clear") == "No keys found matching pattern: test_*\n"
    for key in ("test_one", b"test_\xff", "other"):
        await store.redis.set(key, "x")
    shown = await cli.ok("debug", "clear", "--confirm")
    assert shown == "Found 2 keys matching pattern: test_*\nDeleted 2 keys\n"
    assert await exist(store, "test_one", b"test_\xff", "other") == 1


async def test_clearing_asks_first(cli: CommandLine, store: JobStore) -> None:
    await store.redis.set("test_one", "x")
    assert (await cli.ok("debug", "clear", answer="n\n")).endswith("Deletion cancelled\n")
    assert await exist(store, "test_one") == 1
    assert (await cli.run("debug", "clear", answer="")).exit_code == 1
    assert (await cli.ok("debug", "clear", answer="y\n")).endswith("Deleted 1 keys\n")
    assert await exist(store, "test_one") == 0


async def test_a_stress_test_keeps_its_rate(cli: CommandLine, store: JobStore) -> None:
    started_at = time.monotonic()
    words = "debug stress-test --jobs-per-second 60 --duration 1 --queues a --queues b"
    assert (await cli.ok(*words.split())).splitlines() == [
        "Starting stress test: 60 jobs/sec for 1s",
        "Stress test complete: 60 jobs submitted",
    ]
    assert time.monotonic() - started_at >= 0.9
    assert await store.batch_get_queue_sizes(["a", "b"]) == {"a": 30, "b": 30}
    jobs = (await cli.json("job", "list", "--limit", "1"))["jobs"]
    assert jobs[0]["function_name"] == "stress_test_job"
