"""`rrq check`: is Redis there, and is any worker alive?"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from commandline import CommandLine
from fleet import running_worker
from listening import Listener
from queue_steps import ask, end_lease, start_worker
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rrq.embedded import EmbeddedRedis
    from rrq.registry import JobRegistry


async def test_a_living_worker_passes(cli: CommandLine, settings: RRQSettings, registry: JobRegistry) -> None:
    async with running_worker(settings, registry) as worker:
        await eventually(lambda: _has_lease(worker.job_store, worker.worker_id))
        shown = await cli.ok("check")
        report = await cli.json("check")
    lines = shown.splitlines()
    assert lines[0] == "Performing RRQ health check..."
    assert lines[1] == "Worker Health Check: Found 1 active worker(s):"
    assert lines[2] == f"  - Worker ID: {worker.worker_id}"
    assert [line.split(":")[0].strip() for line in lines[3:8]] == [
        "Status",
        "Active Jobs",
        "Last Heartbeat",
        "TTL",
        "Lease",
    ]
    assert lines[6].endswith(" seconds")
    assert lines[-1] == "Health check PASSED."
    assert report["healthy"] is True
    [seen] = report["workers"]
    assert (seen["worker_id"], seen["kind"]) == (worker.worker_id, "leased")
    assert 0 < seen["lease_seconds"] <= 15


async def test_without_workers_it_fails(cli: CommandLine) -> None:
    result = await cli.run("check")
    assert result.exit_code == 1
    assert "Worker Health Check: FAIL (No active workers found)" in result.stdout
    assert result.stdout.endswith("Health check FAILED.\n")
    result = await cli.run("check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["healthy"] is False


async def test_rrq_0_7_workers_count_and_are_noted(cli: CommandLine, store: JobStore) -> None:
    health = {
        "worker_id": "old-1",
        "status": "polling",
        "active_jobs": 3,
        "timestamp": "2026-01-01T00:00:00Z",
    }
    await store.set_worker_health("old-1", health, 60)
    result = await cli.run("check")
    assert result.exit_code == 0
    assert "Worker ID: old-1" in result.stdout
    assert "Active Jobs: 3" in result.stdout
    assert "Lease: none (RRQ 0.7)" in result.stdout
    assert "1 worker(s) without a lease, as of RRQ 0.7" in result.stderr
    report = await cli.json("check")
    assert report["rrq_0_7_workers"] == 1
    assert report["workers"][0]["kind"] == "rrq-0.7"


async def test_a_worker_whose_lease_has_ended_counts_as_dead(cli: CommandLine, store: JobStore) -> None:
    await start_worker(store, "worker-a")
    await end_lease(store, "worker-a")
    result = await cli.run("check")
    assert result.exit_code == 1
    assert "FAIL (No active workers found)" in result.stdout
    assert "1 worker(s) stopped renewing their lease and count as dead" in result.stderr


async def test_a_broken_health_record_is_still_a_worker(cli: CommandLine, store: JobStore) -> None:
    for record in ("not json", "[1]", "{}"):
        await ask(store, "SET", "rrq:health:worker:odd", record)
        shown = await cli.ok("check")
        assert "Status: unknown" in shown
        assert "TTL: no expiry" in shown


async def test_risks_of_the_server_are_shown(make_redis: Callable[..., EmbeddedRedis]) -> None:
    server = make_redis(extra_args=("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"))
    result = await CommandLine(server.dsn).run("check")
    assert "WARNING: Redis may evict jobs" in result.stderr
    result = await CommandLine(server.dsn).run("check", "--json")
    assert any("evict" in risk for risk in json.loads(result.stdout)["risks"])


async def test_a_server_that_hides_its_settings_passes(own_redis: EmbeddedRedis) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    await start_worker(store)
    await ask(store, "ACL", "SETUSER", "probe", "on", "nopass", "~*", "+@all", "-info")
    cli = CommandLine(own_redis.dsn.replace("redis://", "redis://probe:any@"))
    result = await cli.run("check")
    await store.aclose()
    assert result.exit_code == 0, result.output
    assert "Whether Redis may lose jobs could not be checked" in result.stderr


async def test_an_unreachable_redis_fails_with_its_address() -> None:
    result = await CommandLine("redis://:secret@127.0.0.1:1/0").run("check")
    assert result.exit_code == 1
    assert "ERROR: Redis connection failed during health check: Redis at redis://***@" in result.stderr
    assert "Worker Health Check: FAIL - Redis connection error: Redis at redis://***@127.0.0.1:1/0" in (
        result.stdout
    )
    assert result.stdout.endswith("Health check FAILED.\n")
    assert "secret" not in result.output


async def test_a_redis_that_hangs_fails_in_time() -> None:
    async with _silent_server() as port:
        result = await CommandLine(f"redis://127.0.0.1:{port}/0").run("check", "--timeout", "0.3", "--json")
    assert result.exit_code == 1
    assert "no answer within 0.3 s" in json.loads(result.stdout)["error"]


async def test_as_a_probe_it_is_a_process_with_an_exit_code(cli: CommandLine) -> None:
    process = cli.process("check")
    said, _ = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 1
    assert said.endswith("Health check FAILED.\n")


async def _has_lease(store: JobStore, worker_id: str) -> bool:
    return await ask(store, "ZSCORE", store.keys.leases, worker_id) is not None


@asynccontextmanager
async def _silent_server() -> AsyncIterator[int]:
    """Accepts connections and never says a word."""

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass

    async with Listener(stay_silent) as server:
        yield server.port
