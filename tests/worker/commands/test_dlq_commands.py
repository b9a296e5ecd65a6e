"""`rrq dlq`: jobs that failed for good."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from queue_steps import dead_letters, is_queued, job_fields, ttl_seconds
from running import run_burst

if TYPE_CHECKING:
    from commandline import CommandLine
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


async def bury(client: RRQClient, settings: RRQSettings, registry: JobRegistry, *job_ids: str) -> None:
    """Let jobs fail for good, one after the other; an id may name its queue: mail/job-1."""
    for name in job_ids:
        queue, _, job_id = name.rpartition("/")
        await client.enqueue(
            "fail", f"order {job_id} is broken", _job_id=job_id, _queue_name=queue or "default"
        )
        await run_burst(settings, registry, queues=[queue or "default"])


async def test_an_empty_list_says_so(cli: CommandLine) -> None:
    assert await cli.ok("dlq", "list") == "No jobs found in DLQ: rrq:dlq:default\n"
    assert await cli.ok("dlq", "list", "--dlq-name", "other") == "No jobs found in DLQ: other\n"
    assert (await cli.json("dlq", "list"))["jobs"] == []
    assert await cli.ok("dlq", "list", "--raw") == ""
    assert await cli.ok("dlq", "requeue", "--all") == "No matching jobs found in DLQ: rrq:dlq:default\n"
    complaint = await cli.refused("dlq", "requeue")
    assert complaint == "Error: Must specify --all or at least one filter (--queue, --function, --job-id)"
    assert (await cli.refused("dlq", "inspect", "nobody")).startswith("Job 'nobody' not found. ")


async def test_dead_letters_are_listed_newest_first(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    await bury(client, quick, registry, "job-1", "mail/job-2", "a-job-with-a-very-long-name")
    lines = (await cli.ok("dlq", "list")).splitlines()
    assert lines[0] == "Jobs in DLQ: rrq:dlq:default"
    for column in ("Job ID", "Function", "Queue", "Error", "Failed At", "Retries"):
        assert column in lines[1]
    assert [line.split()[0] for line in lines[2:5]] == ["a-job-with-a-very-...", "job-2", "job-1"]
    assert "ValueError: order job-2 is broken" in lines[3]
    assert lines[5] == "Showing 1-3 of 3 jobs"


async def test_dead_letters_are_paged_and_filtered(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    await bury(client, quick, registry, "job-1", "mail/job-2", "job-3", "job-4")
    shown = await cli.ok("dlq", "list", "--limit", "2", "--offset", "1", "--batch-size", "3")
    assert [line.split()[0] for line in shown.splitlines()[2:4]] == ["job-3", "job-2"]
    assert "Showing 2-3 of 4 jobs" in shown
    assert "No jobs beyond --offset 9; there are 4" in await cli.ok("dlq", "list", "--offset", "9")
    found = await cli.json("dlq", "list", "--queue", "rrq:queue:mail")
    assert [job["id"] for job in found["jobs"]] == ["job-2"]
    assert (await cli.json("dlq", "list", "--function", "add"))["total"] == 0
    assert (await cli.json("dlq", "list", "--function", "fail"))["total"] == 4


async def test_raw_is_one_json_object_per_job(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    await bury(client, quick, registry, "job-1", "job-2")
    objects, text = [], await cli.ok("dlq", "list", "--raw")
    while text.strip():
        value, end = json.JSONDecoder().raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        objects.append(value)
    assert [job["id"] for job in objects] == ["job-2", "job-1"]
    assert objects[0]["job_args"] == '["order job-2 is broken"]'


async def test_a_missing_completion_time_counts_as_oldest_and_expired_jobs_are_counted(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1", "job-2", "job-3")
    await store.redis.hdel("rrq:job:job-3", "completion_time")
    await store.redis.hset("rrq:job:job-2", "completion_time", "2020-01-01T00:00:00Z")
    found = await cli.json("dlq", "list")
    assert [job["id"] for job in found["jobs"]] == ["job-1", "job-2", "job-3"]
    result = await cli.run("dlq", "list", "--max-scan", "2")
    assert "only 2 jobs were read" in result.stderr
    assert (await cli.json("dlq", "stats", "--max-scan", "2"))["complete"] is False

    await store.redis.delete("rrq:job:job-1")
    result = await cli.run("dlq", "list")
    assert "Showing 1-2 of 2 jobs" in result.stdout
    assert "1 entries are not shown because their jobs have expired" in result.stderr
    assert "1 entries are only ids" in (await cli.run("dlq", "stats")).stderr
    done = await cli.json("dlq", "requeue", "--all", "--limit", "1")
    assert (done["requeued"], done["dropped"], done["job_ids"]) == (1, 1, ["job-2"])


async def test_statistics_show_what_failures_have_in_common(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    assert await cli.ok("dlq", "stats") == "DLQ 'rrq:dlq:default' is empty\n"
    await bury(client, quick, registry, "1", "2", "mail/3")
    shown = await cli.ok("dlq", "stats")
    for title in (
        "DLQ Statistics: rrq:dlq:default",
        "Jobs by Original Queue",
        "Jobs by Function",
        "Top Error Patterns",
    ):
        assert title in shown
    assert "Total Jobs       3" in shown
    assert "Average Retries  1.0" in shown
    stats = await cli.json("dlq", "stats")
    assert stats["by_queue"] == {"default": 2, "mail": 1}
    assert stats["by_function"] == {"fail": 3}
    assert stats["error_patterns"] == {"ValueError: order # is broken": 3}
    assert stats["oldest"] <= stats["newest"]


async def test_a_dead_letter_is_inspected(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry
) -> None:
    await client.enqueue("fail", "no such order", _job_id="job-1", _unique_key="order:7")
    await run_burst(quick, registry)
    shown = await cli.ok("dlq", "inspect", "job-1")
    assert shown.startswith("Job Details: job-1\nStatus: FAILED\nFunction: fail\n")
    assert "Original Queue: rrq:queue:default" in shown
    assert "Retries: 1 of 1" in shown
    assert "Failed At: 2" in shown
    assert 'Arguments: ["no such order"]' in shown
    assert "Keyword Arguments: {}" in shown
    assert "Error Information: ValueError: no such order" in shown
    assert "Traceback:\n  Traceback (most recent call last):" in shown
    assert "Unique Key: order:7" in shown
    assert (await cli.json("dlq", "inspect", "job-1"))["job_args"] == ["no such order"]
    raw = json.loads(await cli.ok("dlq", "inspect", "job-1", "--raw"))
    assert raw["job_args"] == '["no such order"]'


async def test_all_dead_letters_run_again(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1", "job-2")
    shown = await cli.ok("dlq", "requeue", "--all")
    assert shown.splitlines() == [
        "Found 2 matching jobs to requeue",
        "Successfully requeued 2 jobs from DLQ 'rrq:dlq:default' to queue 'default'",
    ]
    assert await dead_letters(store) == []
    fields = await job_fields(store, "job-2")
    assert (fields["status"], fields["current_retries"], fields["queue_name"]) == ("PENDING", "0", "default")
    assert await ttl_seconds(store, "rrq:job:job-2") == -1
    registry.register("fail", lambda ctx, reason: "mended", replace=True)
    await run_burst(quick, registry)
    result = await client.get_job_status("job-2")
    assert result is not None
    assert result.result == "mended"


async def test_dead_letters_return_to_the_queues_that_they_came_from(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1", "mail/job-2", "mail/job-3", "nameless")
    await store.redis.hdel("rrq:job:nameless", "queue_name")
    shown = await cli.ok("dlq", "requeue", "--all", "--as", "ada")
    assert shown.splitlines()[1] == (
        "Successfully requeued 4 jobs from DLQ 'rrq:dlq:default' to queues 'default' (2), 'mail' (2)"
    )
    assert await store.get_queued_job_ids("mail") == ["job-2", "job-3"]
    assert await store.get_queued_job_ids("default") == ["job-1", "nameless"]
    (entry,) = await store.read_audit()
    assert entry.detail["queue"] == "default, mail"


async def test_only_chosen_dead_letters_are_requeued(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1", "mail/job-2", "job-3", "mail/job-4", "mail/job-5")
    done = await cli.json(
        "dlq", "requeue", "--queue", "rrq:queue:mail", "--limit", "2", "--target-queue", "slow"
    )
    assert (done["requeued"], done["job_ids"]) == (2, ["job-2", "job-4"])
    assert await is_queued(store, "job-2", "slow")
    assert await dead_letters(store) == ["job-5", "job-3", "job-1"]
    await cli.ok("dlq", "requeue", "--job-id", "job-3", "--function", "fail")
    assert await dead_letters(store) == ["job-5", "job-1"]
    assert "No matching" in await cli.ok("dlq", "requeue", "--job-id", "job-1", "--function", "add")
    assert "No matching" in await cli.ok("dlq", "requeue", "--function", "add")


async def test_a_dry_run_changes_nothing(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, *(f"job-{number}" for number in range(12)))
    before = await dead_letters(store)
    lines = (await cli.ok("dlq", "requeue", "--all", "--dry-run")).splitlines()
    assert lines[:2] == ["DRY RUN: Would requeue 12 jobs", "Jobs to Requeue (Dry Run)"]
    assert [line.split()[0] for line in lines[3:]] == [f"job-{number}" for number in range(10)]
    assert await dead_letters(store) == before
    assert (await cli.json("dlq", "requeue", "--all", "--dry-run"))["requeued"] == 0


async def test_requeueing_all_removes_expired_entries_and_skips_ids_that_were_enqueued_again(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "gone", "again", "job-3")
    registry.register("fail", lambda ctx, reason: "mended", replace=True)
    await client.enqueue("fail", "x", _job_id="again")
    await run_burst(quick, registry)
    # Not before that: the beats of a worker drop such entries too.
    await store.redis.delete("rrq:job:gone")
    result = await cli.run("dlq", "requeue", "--all")
    assert "Successfully requeued 1 jobs" in result.stdout
    assert "1 were skipped, because they were enqueued again" in result.stderr
    assert "1 entries were removed" in result.stderr
    assert await dead_letters(store) == []
    assert not await is_queued(store, "again")


async def test_dead_letters_are_deleted_for_good_after_a_question(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1", "mail/job-2", "job-3", "job-4")
    assert (
        await cli.refused("dlq", "delete")
        == "ERROR: Choose the jobs with ids, --queue, --function, or --all."
    )
    assert await cli.ok("dlq", "delete", "--all", "--dry-run") == "DRY RUN: Would delete 4 jobs\n"
    result = await cli.run("dlq", "delete", "--all", answer="n\n")
    assert "Delete 4 jobs of DLQ default for good?" in result.stderr
    assert result.stdout == "Nothing was deleted\n"
    assert len(await dead_letters(store)) == 4
    assert (
        await cli.ok("dlq", "delete", "job-1", "nobody", answer="y\n")
        == "Deleted 1 jobs from DLQ 'default'\n"
    )
    told = await cli.json("dlq", "delete", "--queue", "mail", "--yes", "--as", "ada")
    assert (told["matching"], told["deleted"], told["job_ids"]) == (1, 1, ["job-2"])
    assert await dead_letters(store) == ["job-4", "job-3"]
    assert await job_fields(store, "job-2") == {}
    entry = (await store.read_audit())[0]
    assert (entry.actor, entry.action, entry.object) == ("ada", "delete", "dlq:default")
    said = await cli.ok("dlq", "delete", "--function", "add")
    assert said == "No matching jobs found in DLQ: default\n"


async def test_a_dead_letter_gets_new_arguments_and_runs(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "mail/job-1")
    said = await cli.ok("dlq", "edit", "job-1", "--args", '["order 8"]', "--as", "ada")
    assert said == "Job 'job-1' has new arguments: [\"order 8\"] {}\n"
    assert await dead_letters(store) == ["job-1"]
    told = await cli.json("dlq", "edit", "job-1", "--kwargs", '{"speed": 3}', "--requeue", "--as", "ada")
    assert told == {
        "job_id": "job-1",
        "job_args": ["order 8"],
        "job_kwargs": {"speed": 3},
        "requeued_to": "mail",
    }
    audited = [(entry.action, entry.object) for entry in await store.read_audit()]
    assert audited == [("requeue", "dlq:default"), ("edit", "job:job-1"), ("edit", "job:job-1")]
    registry.register("fail", lambda ctx, order, speed: f"{order} at {speed}", replace=True)
    await run_burst(quick, registry, queues=["mail"])
    result = await client.get_job_status("job-1")
    assert result is not None
    assert result.result == "order 8 at 3"


async def test_an_edited_letter_that_is_queued_already_is_not_requeued(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await bury(client, quick, registry, "job-1")
    await store.add_job_to_queue("default", "job-1", 7)
    complaint = await cli.refused("dlq", "edit", "job-1", "--args", "[]", "--requeue")
    assert complaint.endswith(
        "has new arguments, but was not requeued: it was enqueued again in the meantime"
    )


async def test_only_dead_letters_are_edited(
    cli: CommandLine, client: RRQClient, store: JobStore, quick: RRQSettings, registry: JobRegistry
) -> None:
    await client.enqueue("fail", "order 7", _job_id="waiting")
    complaint = await cli.refused("dlq", "edit", "waiting", "--args", "[]")
    assert complaint == "Job 'waiting' is not in DLQ default, so its arguments stay as they are"
    assert (await job_fields(store, "waiting"))["job_args"] == '["order 7"]'
    assert (await cli.refused("dlq", "edit", "nobody", "--args", "[]")).startswith("Job 'nobody' not found. ")
    assert (await cli.run("dlq", "edit", "waiting")).exit_code == 2
    assert (await cli.run("dlq", "edit", "waiting", "--args", "{}")).exit_code == 2
    await bury(client, quick, registry, "broken")
    await store.redis.hset("rrq:job:broken", "job_args", "{broken")
    complaint = await cli.refused("dlq", "edit", "broken", "--kwargs", "{}")
    assert complaint == "The stored arguments of job 'broken' cannot be read; give --args too"
    await store.redis.hdel("rrq:job:broken", "job_args")
    assert (await cli.json("dlq", "edit", "broken", "--kwargs", '{"reason": "x"}'))["job_args"] == []
