"""Key names: RRQ 0.7's by default, and the same ones in Lua as in keys.py under any prefix."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from queue_steps import (
    ask,
    cancelled,
    dead,
    done,
    end_lease,
    let_the_fleet_beat,
    new_job,
    now_ms,
    start_worker,
)
from rrq import constants
from rrq.broker.cron_table import build_cron_table
from rrq.broker.keys import Keys
from rrq.broker.messages import CancelCode, CronVerdict, DeathCertificate
from rrq.cron import CronJob
from rrq.flow import Limit
from rrq.jobs.options import JobOptions
from rrq.jobs.request import encode_options
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHOP = "{shop}:"


@pytest.fixture
async def shop(redis_dsn: str) -> AsyncIterator[JobStore]:
    """A store under a hash-tagged prefix, otherwise with the defaults of 0.7."""
    store = JobStore(RRQSettings(redis_dsn=redis_dsn, key_prefix=SHOP))
    yield store
    await store.aclose()


def test_default_names_are_those_of_rrq_07() -> None:
    keys = Keys()
    assert keys.job_key("1") == constants.JOB_KEY_PREFIX + "1"
    assert keys.queue_key("default") == constants.DEFAULT_QUEUE_NAME
    assert keys.dlq_key("default") == constants.DEFAULT_DLQ_NAME
    assert keys.job_lock_key("1") == constants.LOCK_KEY_PREFIX + "1"
    assert keys.unique_lock_key("k") == constants.UNIQUE_JOB_LOCK_PREFIX + "k"
    assert keys.health_key("w") == constants.HEALTH_KEY_PREFIX + "w"
    assert keys.active_queues == constants.ACTIVE_QUEUES_SET
    assert keys.active_workers == constants.ACTIVE_WORKERS_SET
    assert keys.monitor_stream == constants.MONITOR_EVENTS_STREAM
    assert keys.active_jobs_key("w") == "rrq:active:jobs:w"
    assert keys.events_key("1") == "rrq:events:job:1"
    assert keys.cron_last == "rrq:cron:last"
    assert keys.last_process_key("k") == "last_process:k"


@pytest.mark.parametrize("prefix", ["rrq:", "shop:", SHOP])
@pytest.mark.parametrize("name", ["emails", "a:b", "with space", "größe"])
def test_bare_and_full_names_mean_the_same_queue(prefix: str, name: str) -> None:
    keys = Keys(prefix)
    assert keys.queue_key(name) == f"{prefix}queue:{name}"
    assert keys.queue_key(keys.queue_key(name)) == keys.queue_key(name)
    assert keys.queue_name(keys.queue_key(name)) == keys.queue_name(name) == name
    assert keys.dlq_key(name) == f"{prefix}dlq:{name}"
    assert keys.dlq_key(keys.dlq_key(name)) == keys.dlq_key(name)


def test_names_of_the_settings_follow_another_prefix() -> None:
    assert Keys(SHOP).queue_key(constants.DEFAULT_QUEUE_NAME) == "{shop}:queue:default"
    assert Keys(SHOP).dlq_key(constants.DEFAULT_DLQ_NAME) == "{shop}:dlq:default"
    assert Keys(SHOP).last_process_key("k") == "{shop}:last_process:k"


async def seen_keys(store: JobStore) -> set[str]:
    return {key.decode() for key in await ask(store, "KEYS", "*")}


async def test_every_key_of_a_whole_life_has_the_name_that_keys_py_gives(shop: JobStore) -> None:
    """Runs every script once under a second prefix and looks at all that was left behind on the way."""
    keys, queue = shop.keys, "rrq:queue:default"
    seen: set[str] = set()
    worker = await start_worker(shop, "w", pod_uid="pod", queues=(queue,))
    other = await start_worker(shop, "v", pod_uid="pod", queues=(queue,))
    await worker.claim(wait_ms=60_000)
    await other.claim(wait_ms=60_000)
    await shop.set_drain("other-pod")
    names = ["done", "retry", "dead", "cancelled", "reaped", "lost"]
    jobs = [new_job(name, unique_key=f"key-{name}") for name in names]
    await shop.enqueue_jobs(jobs, "e.1")
    await ask(shop, "SET", keys.job_key("bad"), "text")
    await ask(shop, "ZADD", keys.queue_key(queue), 1, "bad")
    seen |= await seen_keys(shop)
    for name in names:
        await shop.watch_job(name, wants_event=True)
    by_id = {job.job_id.decode(): job for job in (await worker.claim(6)).jobs}
    assert set(by_id) == set(names)
    await shop.cancel_job("lost")
    seen |= await seen_keys(shop)
    await worker.finish(
        done(by_id["done"]), dead(by_id["dead"], dlq=keys.dlq_key("default")), cancelled(by_id["cancelled"])
    )
    await shop.requeue_dlq("default", queue, limit=1)
    await shop.reconcile_worker(worker.identity, [by_id["retry"], by_id["reaped"]])
    await shop.shorten_leases(["w"])
    seen |= await seen_keys(shop)
    await shop.reap_workers(DeathCertificate(worker.identity, {"signal": 9}))
    await other.claim(1)
    seen |= await seen_keys(shop)
    await end_lease(shop, "v")
    await let_the_fleet_beat(shop)
    await shop.reap_workers()
    tick_ms = await now_ms(shop) - 1
    verdict = await shop.fire_cron("digest", tick_ms, new_job("tick", unique_key="cron:tick"), "c.1")
    assert verdict is CronVerdict.FIRED
    table = build_cron_table(
        ["default"], [CronJob(function_name="tick", schedule="* * * * *")], datetime.now(UTC)
    )
    await shop.publish_cron_table(table, None, 100)
    seen |= await seen_keys(shop)
    await shop.set_last_process_time("k", await shop.read_time())
    seen |= await seen_keys(shop)

    await shop.set_limit("function:greet", Limit(concurrency=0, rate=5), "ada")
    await shop.set_limit("queue:default", Limit(concurrency=9, rate=9), "ada")
    await shop.publish_limits("app", {"function:other": Limit(rate=1)})
    await shop.set_pause("queue:elsewhere", "paused", "ada")
    await shop.open_batch("b", 1, "", 60)
    options = encode_options(JobOptions(idempotency_key="i", batch_id="b"))
    await shop.enqueue_jobs([new_job("parked", options=options)], "e.2")
    await shop.enqueue_jobs([new_job("free", function_name="other", options='{"debounce_key": "d"}')], "e.3")
    third = await start_worker(shop, "u")
    await third.claim(2)
    seen |= await seen_keys(shop)

    every_id = [*names, "tick", "bad", "parked", "free"]
    # What must have come by, or the walk above has stopped walking.
    left_behind = {
        keys.guard, keys.counters, keys.cron_last, keys.cron_tables, keys.cron_table_key(table.group),
        keys.dlq_key("default"), keys.wake_key("default"), keys.waiting_key("default"), keys.worker_key("w"),
        keys.health_key("w"), keys.active_jobs_key("w"), keys.cancel_key("w"), keys.control_key("w"),
        keys.events_key("done"), keys.job_lock_key("done"), keys.unique_lock_key("key-done"), keys.blocked_key("f:greet"),
        keys.rate_key("f:other"), keys.slots_key("q:default"), keys.batch_pending_key("b"), keys.idempotency_key("i"),
        keys.debounce_key("d"), keys.suspect_key("pod"), keys.job_key("bad") + ":unreadable",
    }  # fmt: skip
    assert left_behind <= seen
    expected = left_behind | {
        keys.leases, keys.active_queues, keys.active_workers, keys.monitor_stream, keys.queue_key("default"),
        keys.drain_key("other-pod"), keys.last_process_key("k"), keys.recent, keys.audit, keys.limits,
        keys.limit_overrides, keys.pauses, keys.blocked_scopes, keys.rate_key("q:default"), keys.batch_key("b"),
        *(keys.stats_key(tick_ms // 60_000 + minutes) for minutes in (-1, 0, 1)), keys.unique_lock_key("cron:tick"),
        # Throttles that nobody but a script reads.
        *(f"{SHOP}notified:{keys.queue_key(name)}" for name in ("elsewhere", "default")),
    }  # fmt: skip
    for job_id in every_id:
        expected |= {keys.job_key(job_id), keys.job_lock_key(job_id), keys.events_key(job_id)}
        expected.add(keys.unique_lock_key(f"key-{job_id}"))
    for worker_id in ("w", "v", "u"):
        expected |= {
            keys.worker_key(worker_id),
            keys.health_key(worker_id),
            keys.active_jobs_key(worker_id),
            keys.cancel_key(worker_id),
            keys.control_key(worker_id),
        }
    assert not {key for key in seen if not key.startswith(SHOP)}
    assert seen - expected == set()


async def test_two_prefixes_in_one_redis_do_not_meet(shop: JobStore, store: JobStore) -> None:
    await shop.enqueue_jobs([new_job("1", queue_name="default")], "e.1")
    worker = await start_worker(store)
    assert await worker.take() == []
    assert await store.get_job("1") is None
    shop_worker = await start_worker(shop)
    assert [job.job_id for job in await shop_worker.take()] == [b"1"]


@pytest.mark.parametrize("queue", ["default", "rrq:queue:default", "{shop}:queue:default"])
async def test_cancel_finds_the_queue_under_another_prefix(shop: JobStore, queue: str) -> None:
    await shop.enqueue_jobs([new_job("1", queue_name=queue)], "e.1")
    assert (await shop.cancel_job("1"))[0] is CancelCode.CANCELLED
    assert await ask(shop, "ZCARD", shop.keys.queue_key("default")) == 0


@pytest.mark.parametrize("queue", ["default", "rrq:queue:default", "{shop}:queue:default"])
async def test_job_without_a_claimed_queue_is_given_back_under_another_prefix(
    shop: JobStore, queue: str
) -> None:
    """As other engines leave it: an active entry and `worker_id`, but no `claimed_queue`."""
    worker = await start_worker(shop)
    await shop.enqueue_jobs([new_job("1", queue_name=queue)], "e.1")
    await worker.take_one()
    await ask(shop, "HDEL", shop.keys.job_key("1"), "claimed_queue", "claimed_score")
    report = await shop.reap_workers(DeathCertificate(worker.identity))
    assert report.returned == 1
    assert await ask(shop, "ZSCORE", shop.keys.queue_key("default"), "1") is not None


async def test_notify_channel_carries_the_prefix(shop: JobStore) -> None:
    async with shop.redis.pubsub() as listener:
        await listener.subscribe(shop.keys.notify_channel)
        await shop.enqueue_jobs([new_job("1")], "e.1")
        messages = [await listener.get_message(timeout=1.0) for _ in range(2)]
    assert messages[-1] is not None
    assert messages[-1]["data"].decode() == shop.keys.queue_key("default")
