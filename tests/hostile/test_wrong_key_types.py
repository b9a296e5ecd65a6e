"""A value of the wrong type under every key that RRQ uses: everybody else goes on working.

Wrong on purpose are two of the six types under each family of keys, each type for many families; a worker is at it
while it happens.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from fleet import all_done, running_worker
from queue_steps import ask, dead_letters, job_fields
from rrq.broker.keys import Keys
from rrq.broker.messages import CronVerdict
from rrq.broker.scripts import load_script
from rrq.client import JobRequest
from rrq.cron import CronJob
from rrq.exc import RRQError
from rrq.flow import Limit
from waiting import eventually
from wrong_types import (
    FAMILIES,
    JOB_ID,
    NO_KEYS,
    POD_UID,
    QUEUE_NAME,
    UNIQUE_KEY,
    VALUES,
    WORKER_ID,
    Family,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from held_jobs import Held
    from rrq.client import RRQClient
    from rrq.job import Job
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


def wrong_kinds(right: str, number: int) -> list[str]:
    """Text, which answers most commands with an error, and in turn one of the other types."""
    others = [kind for kind in VALUES if kind not in (right, "string")]
    return [*(["string"] if right != "string" else []), others[number % len(others)]]


WRONG = [
    pytest.param(family, kind, id=f"{family.name}-{kind}")
    for number, family in enumerate(FAMILIES)
    for kind in wrong_kinds(family.kind, number)
]
INNOCENT = "bystander"
#: Where RRQ has to write in any case, what lies there is kept for a person to look at.
SET_ASIDE = {
    *("job_key", "active_jobs_key", "cancel_key", "control_key", "waiting_key", "leases"),
    *("guard", "awaited", "counters", "active_queues", "active_workers", "monitor_stream"),
    *("blocked_scopes", "recent"),
}
#: What is written or dropped with every beat or claim is not worth keeping. Everywhere else nothing is touched.
REPLACED = {"health_key", "job_lock_key", "worker_key", "wake_key"}


def test_no_family_of_keys_is_forgotten() -> None:
    members = {
        name
        for owner in Keys.__mro__
        for name, member in vars(owner).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, cached_property | property))
    }
    assert members - NO_KEYS == {family.name for family in FAMILIES} - {"overflow"}
    in_lua = {
        found
        for script in ("enqueue_jobs", "finish_jobs", "claim_jobs", "reap_workers", "renew_leases")
        for found in re.findall(r"prefix \.\. '([a-z:]+):'", load_script(script).source)
    }
    named = {family.key(Keys("")).partition("under-attack")[0] for family in FAMILIES}
    for part in in_lua - {"queue", "stats"}:
        assert any(name.startswith(part) for name in named), f"no family begins with {part}"


@pytest.mark.parametrize(("family", "kind"), WRONG)
async def test_workers_go_on_whatever_lies_under_a_key(
    family: Family,
    kind: str,
    client: RRQClient,
    settings: RRQSettings,
    registry: JobRegistry,
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RRQ_POD_UID", POD_UID)
    settings.worker_concurrency = 4
    settings.worker_idle_poll_max_seconds = 0.1
    store = client.job_store
    await ask(store, "SET", INNOCENT, "untouched")
    await ask(store, "HSET", "rrq:job:another", "function_name", "nothing", "status", "COMPLETED")
    before = [await ask(store, "DUMP", key) for key in (INNOCENT, "rrq:job:another")]
    queues = [QUEUE_NAME, settings.default_queue_name]
    async with running_worker(settings, registry, queues=queues, worker_id=WORKER_ID) as worker:
        await all_done(store, await client.enqueue_many([JobRequest("nothing")] * 3))
        in_hand = await client.enqueue_many([JobRequest("hold")] * 2)
        await eventually(lambda: len(held.begun) == 2, message="the jobs never began")
        key = family.key(store.keys)
        await put(store, key, kind)
        planted = await ask(store, "DUMP", key)
        # Told so when the very job or queue cannot be used, and never otherwise.
        is_needed = family.name in ("job_key", "queue_key")
        with pytest.raises(RRQError, match=re.escape(key)) if is_needed else contextlib.nullcontext():
            await client.enqueue("nothing", _job_id=JOB_ID, _queue_name=QUEUE_NAME, _unique_key=UNIQUE_KEY)
        await ask(store, "ZADD", "rrq:queue:default", 1, JOB_ID)
        jobs = await client.enqueue_many([JobRequest("nothing", ("x",))] * 20)
        failing = await client.enqueue("fail", _max_retries=1)
        assert failing is not None
        await all_done(store, jobs)
        await eventually(lambda: _has_failed(store, failing.id), message="the failing job never ended")
        # And on, with another beat in between, which meets what a claim does not.
        worker.registration.note_reconnect()
        await all_done(store, await client.enqueue_many([JobRequest("nothing")] * 3))
        await client.cancel(JOB_ID)
        assert await client.get_job_status(jobs[0].id) is not None
        await store.reap_workers()
        await store.observe(queues)
        # What was in hand all the time still is, and would come back if the worker died now.
        await eventually(
            lambda: _are_noted(store, in_hand), message="jobs in hand that Redis knows nothing of"
        )
        held.let_go.set()
        await all_done(store, in_hand)
    # Without its record nobody can tell a worker from its predecessor, so that it has to start afresh.
    assert max(held.begun.values()) <= (2 if family.name == "worker_key" else 1)
    assert [await ask(store, "DUMP", key) for key in (INNOCENT, "rrq:job:another")] == before
    assert failing.id in [
        *await dead_letters(store, "default" if family.name != "dlq_key" else "rrq:dlq:default:overflow")
    ]
    found = (await ask(store, "TYPE", key)).decode()
    kept_under = {place for place in (key, f"{key}:unreadable") if await ask(store, "DUMP", place) == planted}
    if family.name in SET_ASIDE:
        assert kept_under == {f"{key}:unreadable"}
        assert found in (family.kind, "none")
    elif family.name in REPLACED:
        assert key not in kept_under
        assert found in (family.kind, "none")
    else:
        assert kept_under == {key}


@pytest.mark.parametrize("kind", ["string", "list"])
async def test_jobs_are_run_whatever_lies_under_the_statistics(
    kind: str, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    store = client.job_store
    minute = int((await store.read_time()).timestamp()) // 60
    for number in range(3):
        await put(store, store.keys.stats_key(minute + number), kind)
    async with running_worker(settings, registry):
        await all_done(store, await client.enqueue_many([JobRequest("nothing")] * 3))
    assert sum(minute.ended.get("done", 0) for minute in await store.read_stats(2)) == 3


@pytest.mark.parametrize(
    "family", ["slots_key", "blocked_key", "rate_key", "pauses", "limits", "limit_overrides"]
)
@pytest.mark.parametrize("kind", ["string", "stream"])
async def test_limited_jobs_are_run_whatever_lies_under_the_books_of_their_limit(
    family: str, kind: str, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    store = client.job_store
    scope = "f:nothing"
    keys = {
        "slots_key": store.keys.slots_key,
        "blocked_key": store.keys.blocked_key,
        "rate_key": store.keys.rate_key,
    }
    for target in ("function:nothing", "queue:default"):
        await store.set_limit(target, Limit(concurrency=2, rate=1000, per_seconds=1))
    await put(store, keys[family](scope) if family in keys else getattr(store.keys, family), kind)
    async with running_worker(settings, registry):
        await all_done(store, await client.enqueue_many([JobRequest("nothing")] * 20))


async def _are_noted(store: JobStore, jobs: Sequence[Job]) -> bool:
    noted = await ask(store, "ZRANGE", store.keys.active_jobs_key(WORKER_ID), 0, -1)
    return {job.id.encode() for job in jobs} <= set(noted)


async def _has_failed(store: JobStore, job_id: str) -> bool:
    return (await job_fields(store, job_id)).get("status") == "FAILED"


@pytest.mark.parametrize("kind", ["string", "set"])
async def test_waiting_for_a_job_needs_no_event_stream(
    kind: str, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    job = await client.enqueue("nothing", _job_id=JOB_ID)
    assert job is not None
    await put(client.job_store, client.job_store.keys.events_key(JOB_ID), kind)
    async with running_worker(settings, registry):
        result = await client.wait_for_completion(JOB_ID, timeout_seconds=30, block_interval_seconds=0.05)
    assert result is not None
    assert result.status == "COMPLETED"


@pytest.mark.parametrize("kind", ["string", "zset"])
async def test_cron_fires_whatever_lies_under_its_books(kind: str, client: RRQClient) -> None:
    store = client.job_store
    await put(store, store.keys.cron_last, kind)
    entry = CronJob(function_name="nothing", schedule="* * * * *")
    entry.next_run_time = await store.read_time()
    assert await client.enqueue_cron(entry) is CronVerdict.FIRED
    assert await client.enqueue_cron(entry) is not CronVerdict.FIRED
