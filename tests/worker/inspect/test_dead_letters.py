"""Dead letters: given a fresh start, oldest first, none of them lost on the way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    DLQ,
    QUEUE,
    SteppedWorker,
    ask,
    dead,
    dead_letters,
    done,
    due_score,
    enqueue,
    ids,
    is_queued,
    job_fields,
    now_ms,
    snapshot,
    start_worker,
    tokens,
    ttl_seconds,
)
from rrq.broker.messages import Verdict

if TYPE_CHECKING:
    from rrq.store import JobStore


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def bury(store: JobStore, worker: SteppedWorker, *job_ids: str, **changes: Any) -> None:
    """Dead-letter jobs one after the other; the last one is the newest."""
    for job_id in job_ids:
        await enqueue(store, job_id, **changes)
        assert await worker.finish(dead(await worker.take_one())) == [Verdict.STORED]


async def requeue_named(store: JobStore, *job_ids: str) -> list[int]:
    """Requeue these ids only, as the command line does."""
    args = [store.keys.prefix, "default", 1000, *job_ids]
    return await store.connection.run("requeue_dead_letters", [DLQ, QUEUE], args, read=list)


async def test_requeued_job_starts_with_all_its_attempts(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", queue_name=QUEUE)
    await ask(store, "HSET", "rrq:job:1", "suspect", "1", "crashes", "2", "cancel_requested", "1")
    old_token = (await job_fields(store, "1"))["attempt_token"]
    before = await now_ms(store)
    assert await store.requeue_dlq("default", "other") == 1
    assert await dead_letters(store) == []
    score = await due_score(store, "1", "other")
    assert score is not None
    assert before <= score <= await now_ms(store)
    fields = await job_fields(store, "1")
    assert (fields["status"], fields["current_retries"], fields["queue_name"]) == ("PENDING", "0", "other")
    assert fields["attempt_token"] != old_token
    assert not {
        "completion_time",
        "worker_id",
        "start_time",
        "claimed_queue",
        "claimed_score",
        "cancel_requested",
        "suspect",
        "crashes",
    } & set(fields)
    assert fields["last_error"] == "boom"  # why it was there remains readable until it runs
    assert await ttl_seconds(store, "rrq:job:1") == -1


async def test_oldest_letters_go_first_and_the_limit_holds(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", "2", "3")
    assert await store.requeue_dlq("default", "default", limit=0) == 0
    assert await store.requeue_dlq("default", "default", limit=2) == 2
    assert await dead_letters(store) == ["3"]
    assert await store.get_queued_job_ids(QUEUE) == ["1", "2"]


async def test_all_letters_go_without_a_limit(store: JobStore) -> None:
    names = [f"job-{number:04}" for number in range(1200)]
    await enqueue(store, *names)
    await ask(store, "DEL", QUEUE)
    await ask(store, "LPUSH", DLQ, *names)
    assert await store.requeue_dlq("default", "default") == 1200
    assert await ask(store, "ZCARD", QUEUE) == 1200
    assert await dead_letters(store) == []


async def test_expired_entries_are_removed_and_not_counted(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", "2", "3")
    await ask(store, "DEL", "rrq:job:1", "rrq:job:3")
    assert await store.requeue_dlq("default", "default", limit=1) == 1
    assert await store.get_queued_job_ids(QUEUE) == ["2"]
    assert await store.requeue_dlq("default", "default") == 0
    assert await dead_letters(store) == []


async def test_letter_whose_key_is_not_a_hash_is_not_queued(store: JobStore) -> None:
    await ask(store, "SET", "rrq:job:1", "precious")
    await ask(store, "LPUSH", DLQ, "1")
    assert await store.requeue_dlq("default", "default") == 0
    assert not await is_queued(store, "1")
    assert await ask(store, "GET", "rrq:job:1") == b"precious"


async def test_letters_written_by_07_are_requeued(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.remove_job_from_queue(QUEUE, "1")
    await ask(store, "HDEL", "rrq:job:1", "attempt_token")
    await store.move_job_to_dlq("1", "default", "boom", datetime.now(UTC))
    assert await store.requeue_dlq("default", "default") == 1
    worker = await start_worker(store)
    assert ids(await worker.take()) == ["1"]


async def test_named_letters_are_requeued_and_the_others_stay(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", "2", "3")
    await ask(store, "DEL", "rrq:job:3")
    assert await requeue_named(store, "2", "3", "absent") == [1, 2]
    assert await dead_letters(store) == ["1"]
    assert await store.get_queued_job_ids(QUEUE) == ["2"]


async def test_waiting_workers_are_woken_for_requeued_jobs(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", "2", "3")
    for name in ("b", "c"):
        await (await start_worker(store, name)).claim(wait_ms=60_000)
    await store.requeue_dlq("default", "default")
    assert await tokens(store) == 2


async def test_requeued_jobs_are_announced(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1")
    await ask(store, "DEL", f"rrq:notified:{QUEUE}")
    async with store.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(store.keys.notify_channel)
        await listener.get_message(timeout=20)
        await store.requeue_dlq("default", "default")
        message = await listener.get_message(timeout=20)
    assert message is not None
    assert message["data"] == QUEUE.encode()


async def test_late_attempt_of_a_requeued_job_is_fenced(store: JobStore, worker: SteppedWorker) -> None:
    await enqueue(store, "1")
    old = await worker.take_one()
    await worker.finish(dead(old))
    await store.requeue_dlq("default", "default")
    assert await worker.finish(done(old)) == [Verdict.FENCED]
    assert (await job_fields(store, "1"))["status"] == "PENDING"


@pytest.mark.parametrize("named", [False, True])
async def test_target_that_is_not_a_queue_loses_no_letter(
    store: JobStore, worker: SteppedWorker, named: bool
) -> None:
    await bury(store, worker, "1", "2")
    await ask(store, "SET", QUEUE, "text")
    before = await snapshot(store)
    with pytest.raises(ResponseError):
        await (requeue_named(store, "1") if named else store.requeue_dlq("default", "default"))
    assert await snapshot(store) == before


async def test_letter_whose_id_waits_in_another_queue_is_not_queued_twice(
    store: JobStore, worker: SteppedWorker
) -> None:
    await bury(store, worker, "1")
    await enqueue(store, "1", queue_name="elsewhere")
    assert await store.requeue_dlq("default", "default") == 0
    assert not await is_queued(store, "1")
    assert await is_queued(store, "1", "elsewhere")
    assert (await job_fields(store, "1"))["queue_name"] == "elsewhere"


@pytest.mark.parametrize("has_ended", [True, False])
async def test_letter_whose_id_was_enqueued_again_is_not_requeued(
    store: JobStore, worker: SteppedWorker, has_ended: bool
) -> None:
    """The id was enqueued again under the same name and runs, or has run, without trouble."""
    await bury(store, worker, "1")
    await enqueue(store, "1")
    new = await worker.take_one()
    if has_ended:
        await worker.finish(done(new, "well"))
    assert await store.requeue_dlq("default", "default") == 0
    assert not await is_queued(store, "1")
    assert await dead_letters(store) == []
    if not has_ended:
        assert await worker.finish(done(new, "well")) == [Verdict.STORED]
    assert (await job_fields(store, "1"))["result"] == '"well"'


async def test_letter_whose_id_was_enqueued_again_and_cancelled_stays_cancelled(
    store: JobStore, worker: SteppedWorker
) -> None:
    await bury(store, worker, "1")
    await enqueue(store, "1")
    await store.cancel_job("1")
    assert await store.requeue_dlq("default", "default") == 0
    assert not await is_queued(store, "1")
    assert (await job_fields(store, "1"))["status"] == "CANCELLED"


async def test_expired_entries_make_room_for_new_ones(store: JobStore, worker: SteppedWorker) -> None:
    await bury(store, worker, "1", "2", "3")
    await ask(store, "DEL", "rrq:job:1", "rrq:job:2", "rrq:job:3")
    await bury(store, worker, "4")
    assert await dead_letters(store) == ["4", "3"]
    await bury(store, worker, "5")
    assert await dead_letters(store) == ["5", "4"]


async def test_expired_entries_are_removed_with_the_next_heartbeat(
    store: JobStore, worker: SteppedWorker
) -> None:
    await bury(store, worker, "1", "2", "3")
    await ask(store, "DEL", "rrq:job:1", "rrq:job:2")
    await worker.beat()
    assert await dead_letters(store) == ["3"]
