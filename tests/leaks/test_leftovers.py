"""What is left in Redis after very many jobs: nothing that grows with them."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leak_load import Load
from pod import Pod
from rrq.client import RRQClient
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from uncounted import UNCOUNTED
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis
    from rrq.store import JobStore

# Several times what the longest list keeps, which is a thousand.
JOBS = 6_000
BATCH = 1_000
TTL_SECONDS = 2
WORKERS = 2
PATIENCE_SECONDS = 120
SETTINGS: dict[str, Any] = {
    "default_result_ttl_seconds": TTL_SECONDS,
    "default_dlq_result_ttl_seconds": TTL_SECONDS,
    "default_unique_job_lock_ttl_seconds": TTL_SECONDS,
    "base_retry_delay_seconds": 0.05,
    "worker_lease_seconds": 6,
}
# What stays for ever, and how large it may get however many jobs there were.
LASTING_KEYS = {
    "rrq:guard": 5,  # one field per thing to remember
    "rrq:counters": 5,  # one per outcome, and the reaped
    "rrq:recent": 1_100,  # the last thousand that ended; cut back when it is a hundred longer
    "rrq:active:queues": 2,  # one per queue; gone a day after its last worker
    "rrq:active:workers": WORKERS,
    "rrq:workers:lease": WORKERS,
    "rrq:monitor:events": 1_200,  # about a thousand, as Redis trims whole blocks
    "rrq:cron:last": 1,  # one per cron entry
}
SIZE_BY_TYPE = {b"hash": "HLEN", b"zset": "ZCARD", b"list": "LLEN", b"set": "SCARD", b"stream": "XLEN"}


@dataclass(frozen=True)
class Leftover:
    key: str
    ttl_ms: int
    size: int


async def read_leftovers(store: JobStore) -> list[Leftover]:
    """Every key with the time and the number of entries it has; 1 for a string."""
    found = []
    async for key in store.redis.scan_iter(count=1_000):
        pipe = store.redis.pipeline(transaction=True)
        pipe.pttl(key)
        pipe.type(key)
        ttl_ms, kind = await pipe.execute()
        if kind != b"none":
            command: Any = store.redis.execute_command
            size = await command(SIZE_BY_TYPE[kind], key) if kind in SIZE_BY_TYPE else 1
            found.append(Leftover(key.decode(), ttl_ms, size))
    return found


async def read_unfinished(store: JobStore) -> int:
    """Jobs in a queue or in somebody's hands."""
    keys = [key async for key in store.redis.scan_iter("rrq:active:jobs:*")]
    sizes = [await store.redis.zcard(key) for key in (b"rrq:queue:default", b"rrq:queue:other", *keys)]
    return sum(sizes)


async def read_counters(store: JobStore) -> dict[str, int]:
    fields: Any = await store.redis.hgetall(store.keys.counters)
    return {name.decode(): int(count) for name, count in fields.items()}


def find_growing(leftovers: list[Leftover]) -> list[Leftover]:
    """What neither expires nor is known to stay small."""
    return [
        leftover
        for leftover in leftovers
        if leftover.ttl_ms < 0 and leftover.size > LASTING_KEYS.get(leftover.key, 0)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)  # its waits alone may take three minutes on a busy machine
async def test_thousands_of_jobs_of_every_kind_leave_nothing_behind(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    client = RRQClient(RRQSettings(redis_dsn=own_redis.dsn, job_registry=JobRegistry(), **SETTINGS))
    store = client.job_store
    options = ("--num-workers", str(WORKERS), "--queue", "default", "--queue", "other")
    try:
        settings = SETTINGS | {"worker_concurrency": 50, "environment": UNCOUNTED}
        with Pod(own_redis.dsn, tmp_path, *options, app="leak_app.settings", **settings) as pod:
            await pod.is_up()
            load = Load(client)
            while load.jobs < JOBS:
                await load.produce(BATCH)

            async def has_finished() -> bool:
                return await read_unfinished(store) == 0

            await eventually(has_finished, PATIENCE_SECONDS, "jobs did not end")
            counted = await read_counters(store)
            assert counted["done"] >= JOBS * 0.9
            assert min(counted[outcome] for outcome in ("retry", "dead", "cancelled")) > 0

            async def has_faded() -> bool:
                """With the workers still there: nothing of the jobs themselves."""
                left = await read_leftovers(store)
                per_job = ("rrq:job:", "rrq:lock:", "rrq:events:", "rrq:dlq:", "rrq:queue:", "rrq:cancel:")
                remaining = [leftover for leftover in left if leftover.key.startswith(per_job)]
                assert not remaining, remaining[:10]
                assert not find_growing(left), find_growing(left)
                return True

            await eventually(has_faded, 60, "jobs left something", interval_seconds=0.5)
            pod.signal(signal.SIGTERM)
            assert pod.wait() == 0
        left = await read_leftovers(store)
        assert not find_growing(left), find_growing(left)
        assert {leftover.key for leftover in left if leftover.ttl_ms < 0} <= LASTING_KEYS.keys()
    finally:
        await client.close()
