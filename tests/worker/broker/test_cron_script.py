"""Cron ticks: each fires once in the whole fleet, not before its time, not while another job has its lock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from queue_steps import (
    QUEUE,
    NewJob,
    SteppedWorker,
    ask,
    ids,
    is_queued,
    new_job,
    now_ms,
    snapshot,
    start_worker,
    tokens,
)
from rrq.broker.messages import CronVerdict

if TYPE_CHECKING:
    from rrq.store import JobStore

MINUTE_MS = 60_000


async def fire(
    store: JobStore, tick_ms: int, job: NewJob | None = None, *, digest: str = "entry"
) -> CronVerdict:
    return await store.fire_cron(digest, tick_ms, job or new_job("tick"), "cron.1")


async def last_tick(store: JobStore) -> int:
    """A tick that has just come."""
    return await now_ms(store) // MINUTE_MS * MINUTE_MS


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


# First sight


async def note(store: JobStore, *digests: str, at_ms: int) -> list[int]:
    settled = await store.note_cron_entries(digests, datetime.fromtimestamp(at_ms / 1000, UTC))
    return [round(at.timestamp() * 1000) for at in settled]


@pytest.mark.parametrize("spoilt", ["1e300", "nan", "seen soon", b"\xff"])
async def test_record_that_makes_no_sense_begins_anew(spoilt: str | bytes, store: JobStore) -> None:
    await ask(store, "HSET", store.keys.cron_last, "entry", spoilt)
    seen_ms = await now_ms(store)
    assert await note(store, "entry", at_ms=seen_ms) == [seen_ms]


async def test_record_of_another_type_begins_anew(store: JobStore) -> None:
    await ask(store, "SET", store.keys.cron_last, "text")
    seen_ms = await now_ms(store)
    assert await note(store, "entry", at_ms=seen_ms) == [seen_ms]
    assert await note(store, "entry", at_ms=seen_ms + 1) == [seen_ms]
