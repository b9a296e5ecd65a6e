"""Lua files: put together from their parts, sent by digest, sent whole when Redis has forgotten them."""

from __future__ import annotations

import asyncio
import contextlib
from importlib.resources import files
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from queue_steps import ask, done, enqueue, ids, start_worker
from rrq.broker.connection import LOST_REPLY_ERRORS
from rrq.broker.messages import Verdict
from rrq.broker.scripts import CLAIM_READS, load_script
from rrq.jobs.codec import CLAIMED_FIELDS
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rrq.embedded import EmbeddedRedis

LUA = files("rrq.broker") / "lua"
NAMES = sorted(entry.name.removesuffix(".lua") for entry in LUA.iterdir() if entry.name.endswith(".lua"))


async def test_every_script_compiles_under_the_digest_we_compute(store: JobStore) -> None:
    for name in NAMES:
        script = load_script(name)
        assert (await ask(store, "SCRIPT LOAD", script.source)) in (script.sha, script.sha.encode()), name


def test_claim_reads_the_fields_that_reading_needs() -> None:
    names = ", ".join(f"'{name}'" for name in CLAIM_READS)
    assert f"local FIELDS_READ = {{{names}}}" in load_script("claim_jobs").source
    # The worker gets this one where the arguments are missing, in the place of what only the script looks at.
    assert set(CLAIMED_FIELDS) - set(CLAIM_READS) == {"job_params"}
    assert CLAIM_READS.index("completion_time") == CLAIMED_FIELDS.index("job_params")


async def test_scripts_survive_a_script_flush(store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1", "2")
    await ask(store, "SCRIPT FLUSH")
    claimed = await worker.take(2)
    assert ids(claimed) == ["1", "2"]
    await ask(store, "SCRIPT FLUSH")
    assert await worker.finish(*map(done, claimed)) == [Verdict.STORED] * 2


async def test_calls_in_flight_during_a_script_flush_take_effect_once(store: JobStore) -> None:
    await enqueue(store, "warm-up")

    async def enqueue_one(number: int) -> None:
        await enqueue(store, f"job-{number}")

    async def flush() -> None:
        for _ in range(5):
            await ask(store, "SCRIPT FLUSH")

    await asyncio.gather(flush(), *(enqueue_one(number) for number in range(50)))
    assert await ask(store, "ZCARD", "rrq:queue:default") == 51


async def test_scripts_survive_a_restarted_server(own_redis: EmbeddedRedis) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    try:
        await enqueue(store, "1")
        own_redis.restart()
        # The first call may still meet the closed socket; nothing is sent twice on its own.
        with contextlib.suppress(*LOST_REPLY_ERRORS):
            await enqueue(store, "2")
        assert len(await enqueue(store, "2")) == 1
        assert await ask(store, "ZCARD", "rrq:queue:default") == 1
    finally:
        await store.aclose()


async def test_error_inside_a_script_reaches_the_caller_alone(store: JobStore) -> None:
    await ask(store, "SET", "rrq:queue:broken", "text")
    results = await asyncio.gather(
        enqueue(store, "1"),
        enqueue(store, "2", queue_name="broken"),
        enqueue(store, "3"),
        return_exceptions=True,
    )
    assert isinstance(results[1], ResponseError)
    assert isinstance(results[0], list)
    assert isinstance(results[2], list)
