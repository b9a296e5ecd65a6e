"""`rrq job`: look at single jobs, cancel them, run them once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fleet import running_worker
from queue_steps import back, dead, done, enqueue, is_queued, job_fields, start_worker
from rrq.broker.messages import DeathCertificate
from rrq.client import JobRequest
from rrq.flow import Limit
from rrq.job import JobStatus
from running import run_burst
from waiting import eventually

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.context import JobContext
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


async def test_a_job_is_shown_before_and_after_it_has_run(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await client.enqueue("add", 1, 2, _job_id="job-1", _unique_key="order:7", speed="[red]fast[/red]")
    shown = await cli.ok("job", "show", "job-1")
    assert shown.startswith("Job Information\nJob ID: job-1\nStatus: PENDING\nFunction: add\n")
    assert "Arguments: [1, 2]" in shown
    assert 'Keyword Arguments: {"speed": "[red]fast[/red]"}' in shown
    assert "Unique Key: order:7" in shown
    assert json.loads(await cli.ok("job", "show", "job-1", "--raw")) == await store.get_job("job-1")

    await run_burst(settings, registry)
    shown = await cli.ok("job", "show", "job-1")
    assert "Status: COMPLETED" in shown
    assert 'Result: {"sum": 3, "speed": "[red]fast[/red]"}' in shown
    assert "Duration: " in shown
    described = await cli.json("job", "show", "job-1")
    assert (described["status"], described["job_args"]) == ("COMPLETED", [1, 2])
    assert (described["result"]["sum"], described["max_retries"]) == (3, 5)
    complaint = await cli.refused("job", "cancel", "job-1")
    assert complaint == "Can only cancel pending jobs. Job is currently: COMPLETED"
    replayed = await cli.json("job", "replay", "job-1", "--queue", "slow")
    assert await is_queued(store, replayed["job_id"], "slow")


async def test_a_failed_job_is_shown_with_error_and_traceback(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    await client.enqueue("fail", "no such order", _job_id="job-1")
    await run_burst(quick, registry)
    shown = await cli.ok("job", "show", "job-1")
    assert "Status: FAILED" in shown
    assert "Error: ValueError: no such order" in shown
    assert "Traceback:\n  Traceback (most recent call last):" in shown
    assert "Retries: 1 of 1" in shown


async def test_a_job_with_lower_case_status_and_broken_fields_is_still_shown(
    cli: CommandLine, store: JobStore
) -> None:
    fields = {"status": "failed", "job_args": "{broken", "enqueue_time": "yesterday", "max_retries": "many"}
    await store.redis.hset("rrq:job:odd", mapping=fields)  # type: ignore[arg-type]  # dict is invariant
    shown = await cli.ok("job", "show", "odd")
    assert "Status: FAILED" in shown
    assert 'Arguments: "{broken"' in shown
    described = await cli.json("job", "show", "odd")
    assert described["status"] == "FAILED"
    assert described["enqueue_time"] is None


async def test_a_missing_job_is_named(cli: CommandLine) -> None:
    told = "Job 'nobody' not found. 'rrq job list' lists the stored jobs. "
    for command in ("show", "trace", "replay", "cancel"):
        assert (await cli.refused("job", command, "nobody")).startswith(told)
        assert (await cli.refused("job", command, "nobody", "--json")).startswith(told)
    assert await cli.ok("job", "list") == "No jobs found\n"
    assert await cli.json("job", "list") == {"complete": True, "total": 0, "jobs": []}


async def test_jobs_are_listed_newest_first(cli: CommandLine, client: RRQClient) -> None:
    for number in range(5):
        await client.enqueue("add", _job_id=f"job-{number}")
    lines = (await cli.ok("job", "list", "--limit", "3")).splitlines()
    assert lines[0] == "Jobs"
    for column in ("Job ID", "Function", "Queue", "Status", "Created", "Duration"):
        assert column in lines[1]
    assert [line.split()[0] for line in lines[2:5]] == ["job-4", "job-3", "job-2"]
    assert lines[5] == "Showing 3 of 5 total jobs"


async def test_jobs_are_listed_by_status_queue_and_function(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await client.enqueue("add", _job_id="done")
    await client.enqueue("fail", _job_id="dead")
    await run_burst(quick, registry)
    await client.enqueue("add", _job_id="waiting", _queue_name="mail")
    await store.redis.hset("rrq:job:old", mapping={"status": "retrying", "function_name": "old"})

    async def listed(*options: str) -> set[str]:
        found = await cli.json("job", "list", *options)
        assert found["complete"] is True
        return {job["id"] for job in found["jobs"]}

    assert await listed() == {"done", "dead", "waiting", "old"}
    assert await listed("--status", "completed") == {"done"}
    assert await listed("--status", "FAILED") == {"dead"}
    assert await listed("--status", "retrying") == {"old"}
    assert await listed("--queue", "rrq:queue:mail") == {"waiting"}
    assert await listed("--queue", "default") == {"done", "dead", "old"}
    assert await listed("--function", "add", "--status", "pending") == {"waiting"}
    assert "No jobs found" in await cli.ok("job", "list", "--function", "none")


async def test_a_list_that_stops_early_says_so(cli: CommandLine, client: RRQClient) -> None:
    for _ in range(450):
        await client.enqueue("add")
    result = await cli.run("job", "list", "--max-scan", "400")
    assert "Showing 20 of 400 total jobs" in result.stdout
    assert "only 400 jobs were read" in result.stderr
    assert (await cli.json("job", "list", "--max-scan", "0"))["total"] == 450


async def test_a_replayed_job_runs_with_the_same_arguments(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    await client.enqueue("add", 20, 22, _job_id="job-1", _queue_name="mail", _max_retries=2, unit="kg")
    await run_burst(settings, registry, queues=["mail"])
    shown = await cli.ok("job", "replay", "job-1")
    assert shown.startswith("Job replayed with new ID: ")
    new_id = shown.split()[-1]
    assert await is_queued(client.job_store, new_id, "mail")
    await run_burst(settings, registry, queues=["mail"])
    result = await client.get_job_status(new_id)
    assert result is not None
    assert result.result == {"sum": 42, "unit": "kg"}
    assert (await job_fields(client.job_store, new_id))["max_retries"] == "2"


async def test_a_job_whose_arguments_cannot_be_read_is_not_replayed(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    await client.enqueue("add", _job_id="job-1")
    await store.redis.hset("rrq:job:job-1", "job_args", "{broken")
    assert "the field job_args is not JSON" in await cli.refused("job", "replay", "job-1")


async def test_a_pending_job_is_cancelled(cli: CommandLine, client: RRQClient, store: JobStore) -> None:
    await client.enqueue("add", _job_id="job-1", _unique_key="order:7")
    assert await cli.ok("job", "cancel", "job-1") == "Job 'job-1' cancelled successfully\n"
    assert not await is_queued(store, "job-1")
    assert (await job_fields(store, "job-1"))["status"] == "CANCELLED"
    assert await store.get_unique_lock_holder("order:7") is None
    complaint = await cli.refused("job", "cancel", "job-1")
    assert complaint == "Can only cancel pending jobs. Job is currently: CANCELLED"


async def test_a_job_that_rrq_0_7_requeued_is_cancelled_too(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    await client.enqueue("add", _job_id="job-1")
    await store.redis.hset("rrq:job:job-1", "status", "pending")
    assert await cli.json("job", "cancel", "job-1") == {
        "job_id": "job-1",
        "cancelled": True,
        "worker_told": False,
    }


async def test_a_running_job_is_cancelled_by_its_worker(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    await client.enqueue("hold", _job_id="job-1")
    async with running_worker(settings, registry):

        async def status() -> JobStatus | None:
            seen = await client.get_job_status("job-1")
            return seen.status if seen else None

        async def is_active() -> bool:
            return await status() is JobStatus.ACTIVE

        async def is_cancelled() -> bool:
            return await status() is JobStatus.CANCELLED

        await eventually(is_active)
        shown = await cli.ok("job", "cancel", "job-1")
        assert shown == "Job 'job-1' is running; its worker will cancel it\n"
        await eventually(is_cancelled, message="the worker did not cancel the job")


async def test_a_job_that_cannot_be_cancelled_says_why(cli: CommandLine, store: JobStore) -> None:
    for fields, words in (
        ({"status": "ACTIVE"}, "Can only cancel pending jobs. Job is currently: ACTIVE"),
        ({"status": "PENDING", "queue_name": "mail"}, "Failed to remove job from queue"),
        ({"status": "PENDING"}, "Job has no associated queue"),
    ):
        await store.redis.delete("rrq:job:odd")
        for name, value in {"function_name": "add", **fields}.items():
            await store.redis.hset("rrq:job:odd", name, value)
        complaint = await cli.refused("job", "cancel", "odd")
        assert complaint.startswith(words)
        assert ("RRQ 0.7" in complaint) is (fields["status"] == "ACTIVE")


async def test_several_jobs_are_cancelled_and_audited(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    for number in range(3):
        await client.enqueue("add", _job_id=f"job-{number}")
    result = await cli.run("job", "cancel", "job-0", "nobody", "job-1", "--as", "ada")
    assert result.exit_code == 1
    assert result.stdout == "Job 'job-0' cancelled successfully\nJob 'job-1' cancelled successfully\n"
    assert result.stderr.startswith("Job 'nobody' not found. ")
    assert await is_queued(store, "job-2")
    audited = [(entry.actor, entry.action, entry.object) for entry in await store.read_audit()]
    assert audited == [("ada", "cancel", "job:job-1"), ("ada", "cancel", "job:job-0")]
    await client.enqueue("add", _job_id="job-4")
    told = await cli.json("job", "cancel", "job-2", "job-4")
    assert [entry["job_id"] for entry in told] == ["job-2", "job-4"]


async def test_waiting_jobs_are_cancelled_by_filter_after_a_question(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    for number in range(3):
        await client.enqueue("add", _job_id=f"job-{number}")
    await client.enqueue("fail", _job_id="other")
    await client.enqueue("add", _job_id="later", _defer_by=60)
    chosen = ("job", "cancel", "--queue", "default", "--function", "add", "--due-for", "0")
    words = "waiting job(s) in queue default of function add, due for 0 s or more"
    assert await cli.ok(*chosen, "--dry-run") == f"DRY RUN: Would cancel 3 {words}\n"
    result = await cli.run(*chosen, answer="n\n")
    assert f"Cancel 3 {words}?" in result.stderr
    assert result.stdout == "Nothing was cancelled\n"
    assert await is_queued(store, "job-1")
    assert await cli.ok(*chosen, "--yes", "--as", "ada") == f"Cancelled 3 {words}\n"
    assert (await store.get_queued_job_ids("default")) == ["other", "later"]
    assert (await store.read_audit())[0].detail["jobs"] == 3
    assert await cli.ok(*chosen) == f"No {words}\n"
    told = await cli.json("job", "cancel", "--queue", "default", "--yes")
    assert told == {"queue": "default", "matching": 2, "cancelled": 2, "dry_run": False}


async def test_without_an_answer_nothing_is_cancelled(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    await client.enqueue("add", _job_id="job-1")
    assert (await cli.run("job", "cancel", "--queue", "default")).exit_code == 1
    assert await is_queued(store, "job-1")


async def test_jobs_are_cancelled_by_id_or_by_queue(cli: CommandLine) -> None:
    for words in ("", "job-1 --queue mail", "--function add", "job-1 --function add", "job-1 --dry-run"):
        assert (await cli.run("job", "cancel", *words.split())).exit_code == 2


# What keeps a job, and what it belongs to


async def test_a_job_shows_what_blocks_it(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await client.enqueue("add", _job_id="job-1", _limit_key="acme")
    assert "Waits" not in await cli.ok("job", "show", "job-1")
    await store.set_limit("function:add", Limit(concurrency=0))
    await run_burst(settings, registry)
    assert "\nBlocked By: limit of f:add (0 at once)\n" in await cli.ok("job", "show", "job-1")
    assert (await cli.json("job", "show", "job-1"))["blocked_by"] == "limit of f:add (0 at once)"
    await store.set_pause("function:add", "paused", "ada", "why not")
    shown = await cli.ok("job", "show", "job-1")
    assert "\nBlocked By: function:add is paused by ada since 2" in shown
    assert ": why not\n" in shown
    await store.set_pause("queue:default", "paused", "bob")
    assert "\nBlocked By: queue:default is paused by bob since 2" in await cli.ok("job", "show", "job-1")


async def test_a_job_shows_its_progress_its_cursor_and_its_attempts(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    async def count(ctx: JobContext) -> None:
        await ctx.set_progress(3, 12, "rows imported")
        await ctx.save_cursor({"row": 3})
        raise ValueError("no such row")

    registry.register("count", count)
    settings.base_retry_delay_seconds = 1000
    await client.enqueue("count", _job_id="job-1")
    await run_burst(settings, registry)
    shown = await cli.ok("job", "show", "job-1")
    assert "\nProgress: 3 of 12 (25 %), rows imported\n" in shown
    assert '\nCursor: {"row": 3}\n' in shown
    assert ", retry after " in shown.partition("\nAttempts Before: ")[2]
    assert ": no such row\n" in shown
    described = await cli.json("job", "show", "job-1")
    assert described["progress"]["done"] == 3
    assert described["cursor"] == {"row": 3}
    assert [attempt["outcome"] for attempt in described["attempts"]] == ["retry"]


async def test_a_job_shows_its_chain_and_its_batch(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    batch = await client.enqueue_batch([JobRequest("add", job_id="job-0")])
    await client.enqueue(
        "add", _job_id="job-1", _then=[JobRequest("add", job_id="job-2"), JobRequest("hold")]
    )
    assert "\nThen: add, hold\n" in await cli.ok("job", "show", "job-1")
    assert f"\nBatch: {batch.batch_id}\n" in await cli.ok("job", "show", "job-0")
    await client.enqueue("add", _job_id="first", _then=[JobRequest("add", job_id="second")])
    await client.cancel("job-1")
    await run_burst(settings, registry)
    shown = await cli.ok("job", "show", "second")
    assert "\nFollows Job: first\n" in shown


async def test_a_batch_shows_how_many_of_its_jobs_have_ended(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    requests = [JobRequest("add"), JobRequest("fail"), JobRequest("add", queue_name="slow")]
    batch = await client.enqueue_batch(requests, JobRequest("add"))
    await run_burst(quick, registry)
    shown = await cli.ok("batch", "show", batch.batch_id)
    assert shown.splitlines()[2:] == [
        "State: in progress",
        "Jobs: 3",
        "Not Ended: 1",
        "Failed or Cancelled: 1",
        "Callback: add",
    ]
    await run_burst(quick, registry, queues=["slow"])
    found = await cli.json("batch", "show", batch.batch_id)
    assert (found["pending"], found["failed"], found["open"]) == (0, 1, False)
    assert found["ended"] is not None
    assert "\nState: ended at 2" in await cli.ok("batch", "show", batch.batch_id)
    assert (await cli.refused("batch", "show", "nobody")).startswith("Batch 'nobody' not found. Its id is ")


# Timelines


async def test_the_timeline_of_a_failed_job_is_in_time_order(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    settings.base_retry_delay_seconds = 0.01
    settings.worker_burst_linger_seconds = 0.3
    await client.enqueue("fail", _job_id="job-number-1", _max_retries=3)
    await run_burst(settings, registry)
    lines = (await cli.ok("job", "trace", "job-number-1")).splitlines()
    assert lines[0] == "Job Timeline: job-numb..."
    events = [line.split("  ")[0] for line in lines[2:-1]]
    first_two = ["Started", "Attempt Failed"] * 2
    assert events == ["Created", *first_two, "Started", "Failed"]
    assert lines[-1].startswith("Total Duration: ")
    trace = await cli.json("job", "trace", "job-number-1")
    times = [event["at"] for event in trace["events"] if event["at"]]
    assert times == sorted(times)
    assert trace["total_duration_seconds"] > 0


async def test_the_timeline_shows_how_each_attempt_ended(cli: CommandLine, store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "job-1")
    await worker.finish(back(await worker.take_one()))
    await worker.take_one()
    await store.reap_workers(DeathCertificate(worker.identity))
    heir = await start_worker(store, "heir")
    await heir.finish(dead(await heir.take_one(), "no such order"))
    await store.requeue_dlq("default", "default")
    await heir.finish(done(await heir.take_one()))
    trace = await cli.json("job", "trace", "job-1")
    assert [(event["event"], event["details"]) for event in trace["events"]] == [
        ("Created", "in default"),
        ("Started", "by worker-a"),
        ("Handed Back", "stopping"),
        ("Started", "by worker-a"),
        ("Handed Back", "Worker worker-a died while running this job. Re-queued."),
        ("Started", "by heir"),
        ("Dead-lettered", "no such order"),
        ("Started", "by heir"),
        ("Completed", ""),
    ]
    times = [event["at"] for event in trace["events"]]
    assert times == sorted(times)


async def test_retries_without_a_stored_time_are_listed_by_number(cli: CommandLine, store: JobStore) -> None:
    fields = {"status": "RETRYING", "current_retries": "3", "last_error": "busy"}
    await store.redis.hset("rrq:job:old", mapping=fields)  # type: ignore[arg-type]  # dict is invariant
    trace = await cli.json("job", "trace", "old")
    assert [event["event"] for event in trace["events"]] == ["Created", "Retry 1", "Retry 2", "Retry 3"]
    await store.redis.hset("rrq:job:old", "attempts", '[{"error": "busy"}, 7]')
    assert "\nAttempts Before: - by -, ended after -: busy\n" in await cli.ok("job", "show", "old")
    await store.redis.hset("rrq:job:old", "current_retries", "1000000000000")
    assert len((await cli.json("job", "trace", "old"))["events"]) == 104
