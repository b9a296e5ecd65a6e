"""`rrq queue`: what is queued, where, and since when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queue_steps import end_lease, enqueue, start_worker
from running import run_burst

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


async def test_without_queues_the_list_says_so(cli: CommandLine) -> None:
    assert await cli.ok("queue", "list") == "No active queues found\n"
    assert await cli.json("queue", "list") == []


async def test_queues_are_listed_largest_first(cli: CommandLine, client: RRQClient) -> None:
    await client.enqueue("add", _queue_name="small")
    for _ in range(3):
        await client.enqueue("add", _queue_name="rrq:queue:large")
    await client.enqueue("add", _queue_name="later", _defer_by=3600)
    lines = (await cli.ok("queue", "list")).splitlines()
    assert lines[0] == "Active Queues"
    assert lines[1].split("  ")[0] == "Queue Name"
    assert [line.split()[0] for line in lines[2:5]] == ["large", "later", "small"]
    assert lines[5] == "Total: 3 queues, 5 pending jobs"
    assert "due for" in lines[2]
    assert time.strftime("%Y", time.gmtime()) in lines[3]
    listed = {queue["queue"]: queue for queue in await cli.json("queue", "list")}
    assert (listed["large"]["due"], listed["large"]["scheduled"]) == (3, 0)
    assert (listed["later"]["due"], listed["later"]["scheduled"]) == (0, 1)
    assert abs(listed["later"]["next_due_ms"] / 1000 - time.time() - 3600) < 60


async def test_an_empty_queue_that_is_served_is_shown_on_request(
    cli: CommandLine, settings: RRQSettings, registry: JobRegistry
) -> None:
    await run_burst(settings, registry, queues=["rrq:queue:mail"])
    assert await cli.ok("queue", "list") == "No queues to display\n"
    assert await cli.json("queue", "list") == []
    shown = await cli.ok("queue", "list", "--show-empty")
    assert "mail" in shown
    assert "Total: 1 queues, 0 pending jobs" in shown


async def test_a_queue_with_only_orphaned_jobs_is_listed(cli: CommandLine, store: JobStore) -> None:
    worker = await start_worker(store, queues=("mail",))
    await enqueue(store, "1", "2", queue_name="mail")
    await worker.take(2)
    await end_lease(store, worker.worker_id)
    lines = (await cli.ok("queue", "list")).splitlines()
    assert lines[1].split()[-1] == "Orphaned"
    assert (lines[2].split()[0], lines[2].split()[-1]) == ("mail", "2")
    [listed] = await cli.json("queue", "list")
    assert (listed["queue"], listed["pending"], listed["orphaned"]) == ("mail", 0, 2)
    stats = (await cli.json("queue", "stats", "--queue", "mail"))["queues"]
    assert [(queue["active"], queue["orphaned"]) for queue in stats] == [(2, 2)]


async def test_statistics_come_from_real_jobs(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    for _ in range(2):
        await client.enqueue("add", 1)
    await client.enqueue("fail")
    await run_burst(quick, registry)
    await client.enqueue("add", 2, _queue_name="default")
    shown = await cli.ok("queue", "stats")
    assert shown.startswith("Queue Statistics\nQueue ")
    assert shown.splitlines()[2].split()[:7] == ["default", "4", "1", "0", "2", "1", "1"]
    [stats] = (await cli.json("queue", "stats"))["queues"]
    assert (stats["completed"], stats["failed"], stats["dead_letters"], stats["pending"]) == (2, 1, 1, 1)
    assert stats["average_wait_seconds"] is not None
    assert stats["completed_per_minute"] > 0


async def test_statistics_say_when_they_have_not_read_everything(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    for number in range(6):
        await client.enqueue("add", _job_id=f"job-{number}")
    await store.redis.lpush("rrq:dlq:default", "a", "b", "c", "d", "e", "f")
    result = await cli.run("queue", "stats", "--max-scan", "5")
    assert "only 5 jobs were read" in result.stderr
    assert (await cli.json("queue", "stats", "--max-scan", "5"))["complete"] is False
    assert (await cli.json("queue", "stats", "--max-scan", "0"))["complete"] is True


async def test_a_queue_is_inspected_page_by_page(cli: CommandLine, client: RRQClient) -> None:
    jobs = [await client.enqueue("add", _queue_name="mail", _defer_by=10 * number) for number in range(1, 6)]
    shown = await cli.ok("queue", "inspect", "mail", "--limit", "2", "--offset", "1")
    lines = shown.splitlines()
    assert lines[0] == "Jobs in Queue: mail"
    for column in ("#", "Job ID", "Function", "Status", "Scheduled", "Retries", "Priority"):
        assert column in lines[1]
    assert jobs[1] is not None
    assert lines[2].split()[:4] == ["2", f"{jobs[1].id[:8]}...", "add", "PENDING"]
    assert lines[4:] == ["Showing 2-3 of 5 jobs", "Use --offset 3 to see more"]
    page = await cli.json("queue", "inspect", "rrq:queue:mail", "--limit", "1")
    assert page["total"] == 5
    [entry] = page["jobs"]
    assert entry["job"]["function_name"] == "add"
    assert abs(entry["due_at_ms"] / 1000 - time.time()) < 60


async def test_entries_without_a_job_and_odd_scores_are_shown(cli: CommandLine, store: JobStore) -> None:
    await store.redis.zadd("rrq:queue:default", {"ghost": 1e30})
    await store.redis.set("rrq:job:text", "no hash")
    await store.redis.zadd("rrq:queue:default", {"text": 5})
    shown = await cli.ok("queue", "inspect", "default")
    assert shown.count("MISSING") == 2
    assert "1e+30 ms" in shown
    page = await cli.json("queue", "inspect", "default")
    assert [entry["job"] for entry in page["jobs"]] == [None, None]


async def test_a_queue_that_was_never_used_is_not_found(cli: CommandLine) -> None:
    assert await cli.refused("queue", "inspect", "mail") == (
        "Queue 'mail' not found. It has no jobs, and no worker has served it. "
        "'rrq queue list --show-empty' lists all queues."
    )


async def test_another_key_prefix_shares_nothing(
    cli: CommandLine, client: RRQClient, settings: RRQSettings
) -> None:
    await client.enqueue("add")
    cli.environment["RRQ_KEY_PREFIX"] = "{sh[op]*}:"
    assert await cli.ok("queue", "list") == "No active queues found\n"
    await cli.ok("debug", "submit", "add")
    assert [queue["queue"] for queue in await cli.json("queue", "list")] == ["default"]
    assert (await cli.json("job", "list"))["total"] == 1
