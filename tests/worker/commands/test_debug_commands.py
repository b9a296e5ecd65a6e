"""`rrq debug`: jobs and workers that are made up, and real jobs by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queue_steps import ask, dead_letters, due_score, job_fields, ttl_seconds
from running import run_burst

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


async def test_generated_jobs_are_in_the_usual_places(cli: CommandLine, store: JobStore) -> None:
    shown = await cli.ok("debug", "generate-jobs", "--count", "60")
    assert shown == "Generated 60 fake jobs across 4 queues\n"
    jobs = (await cli.json("job", "list", "--limit", "100"))["jobs"]
    assert len(jobs) == 60
    assert all(job["id"].startswith("test_job_") for job in jobs)
    assert {job["queue_name"] for job in jobs} == {"test", "urgent", "low_priority", "default"}
    by_status: dict[str, list[str]] = {}
    for job in jobs:
        by_status.setdefault(job["status"], []).append(job["id"])
    assert set(by_status) == {"PENDING", "ACTIVE", "COMPLETED", "FAILED", "RETRYING"}
    assert set(await dead_letters(store)) == set(by_status["FAILED"])
    queued = sum(queue["pending"] for queue in await cli.json("queue", "list"))
    assert queued == len(by_status["PENDING"]) + len(by_status["RETRYING"])
    assert await ttl_seconds(store, f"rrq:job:{by_status['COMPLETED'][0]}") > 0
    assert await ttl_seconds(store, f"rrq:job:{by_status['PENDING'][0]}") == -1


async def test_generated_jobs_can_be_read_by_a_worker(
    cli: CommandLine, store: JobStore, settings: RRQSettings, registry: JobRegistry
) -> None:
    generated = await cli.json(
        *("debug", "generate-jobs", "--count", "5", "--queue", "mine", "--status", "pending"),
        *("--age-hours", "1", "--batch-size", "2"),
    )
    assert generated == {"generated": 5, "queues": ["mine"]}
    [queue] = await cli.json("queue", "list")
    assert queue["due"] == 5
    assert 0 <= queue["oldest_due_age_seconds"] <= 3700
    for name in ("process_data", "send_email", "generate_report", "sync_records"):
        registry.register(name, lambda ctx, number, generated: number)
    await run_burst(settings, registry, queues=["mine"])
    done = (await cli.json("job", "list", "--status", "completed"))["total"]
    assert done == 5


async def test_simulated_workers_report_their_health(cli: CommandLine, store: JobStore) -> None:
    shown = await cli.ok("debug", "generate-workers", "--count", "2", "--duration", "1")
    assert shown.splitlines() == [
        "Simulating 2 workers for 1 seconds...",
        "Worker simulation complete",
    ]
    health, ttl = await store.get_worker_health("test_worker_1")
    assert health is not None
    assert health["worker_id"] == "test_worker_1"
    assert ttl is not None
    assert 30 <= ttl <= 60
    assert (await cli.json("check"))["rrq_0_7_workers"] == 2
    simulated = await cli.json("debug", "generate-workers", "--count", "1", "--duration", "1")
    assert simulated == {"workers": ["test_worker_0"]}


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


async def test_arguments_that_are_no_json_are_a_usage_error(cli: CommandLine) -> None:
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
