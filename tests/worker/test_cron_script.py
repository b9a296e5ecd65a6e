"""Cron ticks: each fires once in the whole fleet, not before its time, not beside a held lock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    done,
    enqueue,
    ids,
    is_queued,
    job_fields,
    new_job,
    now_ms,
    snapshot,
    start_worker,
    tokens,
)
from rrq.messages import CronVerdict, NewJob
from rrq.store import JobStore

if TYPE_CHECKING:
    from rrq.settings import RRQSettings

MINUTE_MS = 60_000


async def fire(
    store: JobStore, tick_ms: int, job: NewJob | None = None, *, digest: str = "entry"
) -> CronVerdict:
    return await store.fire_cron(digest, tick_ms, job or new_job("tick"), "cron.1")


async def last_tick(store: JobStore) -> int:
    """A tick that has just come."""
    return await now_ms(store) // MINUTE_MS * MINUTE_MS


async def test_tick_is_enqueued_and_remembered(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    assert await fire(store, tick_ms, new_job("tick", queue_name="reports")) is CronVerdict.FIRED
    assert await is_queued(store, "tick", "reports")
    fields = await job_fields(store, "tick")
    assert (fields["status"], fields["function_name"], fields["queue_name"]) == (
        "PENDING",
        "greet",
        "reports",
    )
    assert await ask(store, "HGETALL", store.keys.cron_last) == {b"entry": str(tick_ms).encode()}
    assert await ask(store, "TTL", store.keys.cron_last) == -1


async def test_tick_fires_once(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    await fire(store, tick_ms)
    before = await snapshot(store)
    assert await fire(store, tick_ms, new_job("second")) is CronVerdict.ALREADY_FIRED
    assert await snapshot(store) == before


async def test_earlier_tick_does_not_fire_after_a_later_one(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    await fire(store, tick_ms)
    assert await fire(store, tick_ms - MINUTE_MS, new_job("late")) is CronVerdict.ALREADY_FIRED
    assert not await is_queued(store, "late")


async def test_next_tick_fires(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    await fire(store, tick_ms - MINUTE_MS, new_job("first"))
    assert await fire(store, tick_ms, new_job("second")) is CronVerdict.FIRED
    assert set(await store.get_queued_job_ids(QUEUE)) == {"first", "second"}


async def test_tick_ahead_of_the_clock_of_redis_waits(store: JobStore) -> None:
    """A process whose clock is fast must not fire for the whole fleet."""
    ahead_ms = await now_ms(store) + MINUTE_MS
    assert await fire(store, ahead_ms) is CronVerdict.AHEAD
    assert await snapshot(store) == {}


async def test_many_workers_at_one_tick_make_one_job(settings: RRQSettings) -> None:
    stores = [JobStore(settings) for _ in range(6)]
    try:
        tick_ms = await last_tick(stores[0])
        verdicts = await asyncio.gather(
            *(fire(store, tick_ms, new_job(f"job-{n}")) for n, store in enumerate(stores * 5))
        )
        assert verdicts.count(CronVerdict.FIRED) == 1
        assert verdicts.count(CronVerdict.ALREADY_FIRED) == len(verdicts) - 1
        assert await ask(stores[0], "ZCARD", QUEUE) == 1
    finally:
        for store in stores:
            await store.aclose()


async def test_entries_are_independent(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    assert await fire(store, tick_ms, new_job("1"), digest="one") is CronVerdict.FIRED
    assert await fire(store, tick_ms, new_job("2"), digest="two") is CronVerdict.FIRED


async def test_unique_entry_is_skipped_while_its_lock_is_held(store: JobStore) -> None:
    tick_ms = await last_tick(store)
    job = new_job("first", unique_key="cron:greet")
    assert await fire(store, tick_ms - MINUTE_MS, job) is CronVerdict.FIRED
    assert await store.get_unique_lock_holder("cron:greet") == "first"
    second = new_job("second", unique_key="cron:greet")
    assert await fire(store, tick_ms, second) is CronVerdict.LOCKED
    assert not await is_queued(store, "second")
    assert await ask(store, "EXISTS", "rrq:job:second") == 0
    # Skipped is skipped: the same tick is not made up for once the lock is free.
    await store.release_unique_job_lock("cron:greet")
    assert await fire(store, tick_ms, second) is CronVerdict.ALREADY_FIRED


async def test_unique_entry_fires_again_when_its_job_has_ended(store: JobStore) -> None:
    worker = await start_worker(store)
    tick_ms = await last_tick(store)
    await fire(store, tick_ms - MINUTE_MS, new_job("first", unique_key="cron:greet"))
    await worker.finish(done(await worker.take_one()))
    job = new_job("second", unique_key="cron:greet")
    assert await fire(store, tick_ms, job) is CronVerdict.FIRED
    assert await store.get_unique_lock_holder("cron:greet") == "second"


async def test_key_that_is_no_job_is_told(store: JobStore) -> None:
    await ask(store, "SET", "rrq:job:tick", "precious")
    assert await fire(store, await last_tick(store)) is CronVerdict.UNREADABLE
    assert await ask(store, "GET", "rrq:job:tick") == b"precious"
    assert not await is_queued(store, "tick")


async def test_key_that_is_no_queue_leaves_the_tick_to_be_fired(store: JobStore) -> None:
    await ask(store, "SET", QUEUE, "text")
    tick_ms = await last_tick(store)
    before = await snapshot(store)
    with pytest.raises(ResponseError, match="RRQTYPE"):
        await fire(store, tick_ms)
    assert await snapshot(store) == before
    await ask(store, "DEL", QUEUE)
    assert await fire(store, tick_ms) is CronVerdict.FIRED


async def test_tick_wakes_one_waiting_worker(store: JobStore) -> None:
    workers: list[SteppedWorker] = [await start_worker(store, name) for name in ("a", "b")]
    for worker in workers:
        await worker.claim(wait_ms=60_000)
    await fire(store, await last_tick(store))
    assert await tokens(store) == 1
    assert ids(await workers[0].take()) == ["tick"]


async def test_cron_and_producers_share_their_unique_locks(store: JobStore) -> None:
    await enqueue(store, "manual", unique_key="cron:greet")
    job = new_job("tick", unique_key="cron:greet")
    assert await fire(store, await last_tick(store), job) is CronVerdict.LOCKED


# First sight


async def note(store: JobStore, *digests: str, at_ms: int) -> list[int]:
    settled = await store.note_cron_entries(digests, datetime.fromtimestamp(at_ms / 1000, UTC))
    return [round(at.timestamp() * 1000) for at in settled]


async def test_entry_is_settled_up_to_its_first_sight_until_it_fires(store: JobStore) -> None:
    seen_ms = await now_ms(store) - 3 * MINUTE_MS
    assert await note(store, "entry", at_ms=seen_ms) == [seen_ms]
    assert await note(store, "new", "entry", at_ms=seen_ms + MINUTE_MS) == [seen_ms + MINUTE_MS, seen_ms]
    tick_ms = await last_tick(store)
    assert await fire(store, tick_ms) is CronVerdict.FIRED
    assert await note(store, "entry", at_ms=tick_ms) == [tick_ms]


async def test_first_sight_is_not_ahead_of_the_clock_of_redis(store: JobStore) -> None:
    before_ms = await now_ms(store)
    (seen_ms,) = await note(store, "entry", at_ms=before_ms + 60 * MINUTE_MS)
    assert before_ms <= seen_ms <= await now_ms(store)


@pytest.mark.parametrize("spoilt", ["1e300", "inf", "nan", "abc", "-1", "seen", "seen soon", b"\xff"])
async def test_record_that_makes_no_sense_begins_anew(spoilt: str | bytes, store: JobStore) -> None:
    await ask(store, "HSET", store.keys.cron_last, "entry", spoilt)
    seen_ms = await now_ms(store)
    assert await note(store, "entry", at_ms=seen_ms) == [seen_ms]


async def test_record_of_another_type_begins_anew(store: JobStore) -> None:
    await ask(store, "SET", store.keys.cron_last, "text")
    seen_ms = await now_ms(store)
    assert await note(store, "entry", at_ms=seen_ms) == [seen_ms]
    assert await note(store, "entry", at_ms=seen_ms + 1) == [seen_ms]
