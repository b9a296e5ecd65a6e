"""Pauses: a queue, a function or a pool stands still for everybody at once, and goes on as if nothing had been."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_steps import ask, done, enqueue, ids, is_queued, job_fields, new_job, now_ms, start_worker
from rrq.broker.messages import ClaimCode, CronVerdict, EnqueueCode
from rrq.exc import FunctionDisabled, InvalidLimit
from rrq.flow import JobFilter

if TYPE_CHECKING:
    from rrq import RRQClient
    from rrq.store import JobStore


async def test_a_paused_queue_gives_no_jobs_and_keeps_them(store: JobStore) -> None:
    worker = await start_worker(store, queues=("default", "other"))
    await enqueue(store, "1", "2")
    await enqueue(store, "3", queue_name="other")
    assert await store.set_pause("queue:default", "paused", "ada", "invoices are wrong")
    assert ids(await worker.take(10)) == ["3"]
    seen = await store.observe(["default"])
    assert (seen.queues["default"].due, seen.queues["default"].held) == (2, 2)
    assert seen.paused == {"queue:default"}
    assert await store.set_pause("queue:default", None, "ada")
    assert ids(await worker.take(10)) == ["1", "2"]


async def test_a_pause_records_who_when_and_why(store: JobStore) -> None:
    await store.set_pause("queue:rrq:queue:default", "paused", "ada", "invoices are wrong")
    pause = (await store.read_flow()).pauses["queue:default"]
    assert (pause.state, pause.by, pause.reason) == ("paused", "ada", "invoices are wrong")
    assert abs(pause.at.timestamp() * 1000 - await now_ms(store)) < 60_000


async def test_a_paused_function_lets_others_run(store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1", "2")
    await enqueue(store, "3", function_name="other")
    await store.set_pause("function:greet", "paused", "ada")
    assert ids(await worker.take(10)) == ["3"]
    assert not await is_queued(store, "1")
    assert (await store.observe(["default"])).queues["default"].due == 0
    assert (await job_fields(store, "1"))["status"] == "PENDING"
    await store.set_pause("function:greet", None, "ada")
    assert ids(await worker.take(10)) == ["1", "2"]


async def test_very_many_blocked_jobs_are_all_unblocked(store: JobStore) -> None:
    worker = await start_worker(store)
    await store.set_pause("function:greet", "paused")
    for start in range(0, 1500, 500):
        await enqueue(store, *(f"job-{number}" for number in range(start, start + 500)))
    while (await worker.claim(10)).more_due:
        pass
    assert (await store.read_flow()).parked == {"f:greet": 1500}
    await store.set_pause("function:greet", None)
    seen: list[str] = []
    while jobs := await worker.take(500):
        seen += ids(jobs)
        await worker.finish(*map(done, jobs))
    assert len(seen) == len(set(seen)) == 1500


async def test_a_disabled_function_refuses_its_producers(store: JobStore, client: RRQClient) -> None:
    await store.set_pause("function:greet", "disabled", "ada")
    with pytest.raises(FunctionDisabled, match=r"'greet' is disabled. 'rrq resume function:greet'"):
        await client.enqueue("greet")
    assert await client.enqueue("other") is not None
    replies = await store.enqueue_jobs([new_job("1"), new_job("2", function_name="other")], "e.1")
    assert replies.due_ms[0] == EnqueueCode.DISABLED
    assert replies.due_ms[1] > 0
    tick_ms = await now_ms(store) - 1
    assert await store.fire_cron("digest", tick_ms, new_job("tick"), "c.1") is CronVerdict.DISABLED
    await store.set_pause("function:greet", None, "ada")
    assert await client.enqueue("greet") is not None


async def test_the_workers_of_a_paused_pool_claim_nothing(store: JobStore) -> None:
    inside = await start_worker(store, "inside", pool="shop/emails")
    outside = await start_worker(store, "outside", pool="shop/other")
    await enqueue(store, "1")
    await store.set_pause("pool:shop/emails", "paused", "ada")
    assert (await inside.claim()).code is ClaimCode.PAUSED
    assert ids(await outside.take()) == ["1"]


@pytest.mark.parametrize("target", ["default", "queue:", "job:1", "pool:emails", ""])
async def test_the_error_names_what_cannot_be_paused(store: JobStore, target: str) -> None:
    with pytest.raises(InvalidLimit):
        await store.set_pause(target, "paused")


async def test_every_action_of_a_person_is_audited(store: JobStore) -> None:
    await store.set_pause("queue:default", "paused", "ada", "why not")
    await store.set_pause("queue:default", None, "bob")
    await store.set_pause("queue:default", "paused")
    entries = await store.read_audit()
    assert [(entry.actor, entry.action, entry.object) for entry in entries] == [
        ("bob", "resume", "queue:default"),
        ("ada", "pause", "queue:default"),
    ]
    assert entries[1].detail == {"reason": "why not"}
    assert [entry.actor for entry in await store.read_audit(1, before=entries[0].entry_id)] == ["ada"]


# Cancelling by filter


async def test_waiting_jobs_are_cancelled_by_queue_function_and_age(store: JobStore) -> None:
    await enqueue(store, "1", "2")
    await enqueue(store, "3", function_name="other")
    await enqueue(store, "later", due="+60000")
    chosen = JobFilter("default", function="greet", due_for_seconds=0)
    assert await store.cancel_where(chosen, only_count=True) == 2
    assert await is_queued(store, "1")
    assert await store.cancel_where(chosen, "ada") == 2
    assert not await is_queued(store, "1")
    assert await is_queued(store, "3")
    assert await is_queued(store, "later")
    assert (await job_fields(store, "2"))["status"] == "CANCELLED"
    (entry,) = await store.read_audit()
    assert (entry.action, entry.object, entry.detail["jobs"]) == ("cancel", "queue:default", 2)


async def test_blocked_jobs_of_the_queue_are_cancelled_too(store: JobStore) -> None:
    worker = await start_worker(store, queues=("default", "other"))
    await store.set_pause("function:greet", "paused")
    await enqueue(store, "1")
    await enqueue(store, "2", queue_name="other")
    await worker.take(10)
    assert await store.cancel_where(JobFilter("default")) == 1
    assert (await job_fields(store, "1"))["status"] == "CANCELLED"
    assert (await store.read_flow()).parked == {"f:greet": 1}


async def test_a_long_queue_is_cancelled_in_portions(store: JobStore) -> None:
    for start in range(0, 1500, 500):
        await enqueue(store, *(f"job-{number}" for number in range(start, start + 500)))
    await enqueue(store, "kept", function_name="other")
    assert await store.cancel_where(JobFilter("default", function="greet")) == 1500
    assert await ask(store, "ZRANGE", store.keys.queue_key("default"), 0, -1) == [b"kept"]
