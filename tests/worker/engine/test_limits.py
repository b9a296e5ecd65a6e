"""Limits: a job that may not start is blocked until a running one ends; a crash never leaks a slot."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from fleet import all_done
from ledger import Ledger
from queue_steps import (
    SteppedWorker,
    ask,
    enqueue,
    ids,
    is_queued,
    now_ms,
    start_worker,
)
from rrq.broker.messages import Admission
from rrq.client import JobRequest
from rrq.exc import InvalidLimit
from rrq.flow import Limit
from waiting import eventually
from worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from rrq.client import RRQClient
    from rrq.store import JobStore

GREET = "function:greet"


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def parked(store: JobStore, scope: str = "f:greet") -> list[str]:
    return [entry.decode() for entry in await ask(store, "ZRANGE", store.keys.blocked_key(scope), 0, -1)]


async def slots(store: JobStore, scope: str = "f:greet") -> int:
    return int(await ask(store, "SCARD", store.keys.slots_key(scope)))


# Concurrency


async def test_a_slot_without_an_active_entry_blocks_no_job(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit(GREET, Limit(concurrency=1))
    await ask(store, "SADD", store.keys.slots_key("f:greet"), "a job that does not run")
    await enqueue(store, "1")
    assert ids(await worker.take(10)) == ["1"]
    assert await slots(store) == 1


async def test_blocked_jobs_do_not_slow_a_claim(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit(GREET, Limit(concurrency=0))
    for start in range(0, 1500, 500):
        await enqueue(store, *(f"blocked-{number}" for number in range(start, start + 500)))
    while (await worker.claim(10)).more_due:
        pass
    assert await ask(store, "ZCARD", store.keys.blocked_key("f:greet")) == 1500
    await enqueue(store, "free", function_name="other")
    before = await _script_commands(store)
    assert ids(await worker.take(10)) == ["free"]
    assert await _script_commands(store) - before < 60


async def _script_commands(store: JobStore) -> int:
    stats = await store.redis.info("commandstats")
    return sum(entry["calls"] for entry in stats.values())


# Per key


async def test_the_key_may_be_given_by_place_or_by_the_producer(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(key="tenant", key_position=0, per_key=1))
    await enqueue(store, "1", args_json='["a"]')
    await enqueue(store, "2", kwargs_json='{"tenant": "a"}', args_json="[]")
    await enqueue(store, "3", args_json='["a"]', options='{"limit_key": "other"}')
    assert ids(await worker.take(10)) == ["1", "3"]


@pytest.mark.parametrize("name", ["tenant_id", "größe"])
async def test_the_argument_of_a_key_may_have_any_name(
    store: JobStore, worker: SteppedWorker, name: str
) -> None:
    await store.set_limit(GREET, Limit(key=name, per_key=1))
    for job_id, value in (("1", False), ("2", False), ("3", True)):
        await enqueue(store, job_id, kwargs_json=json.dumps({name: value}))
    assert ids(await worker.take(10)) == ["1", "3"]


@pytest.mark.parametrize("arguments", ["[" * 2000, '[{"deep": 1}]', '["\\ud800"]'])
async def test_jobs_whose_limit_key_cannot_be_read_share_one_limit(
    store: JobStore, worker: SteppedWorker, arguments: str
) -> None:
    await store.set_limit(GREET, Limit(key="tenant", key_position=0, per_key=1))
    await enqueue(store, "1", "2", args_json=arguments)
    assert ids(await worker.take(10)) == ["1"]


# Rates


async def test_no_more_jobs_start_in_a_window_than_the_rate_allows(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(rate=2, per_seconds=60))
    await enqueue(store, *"12345")
    claim = await worker.claim(10)
    assert ids(claim.jobs) == ["1", "2"]
    assert await parked(store) == ["3", "4", "5"]
    # The window slides: when the first start is out of it, the next may come.
    again = (await worker.claim(10)).next_due_ms
    assert again is not None
    assert 59_000 < again - claim.now_ms <= 60_001


async def _let_a_minute_pass(store: JobStore) -> None:
    rate = store.keys.rate_key("f:greet")
    for start in await ask(store, "ZRANGE", rate, 0, -1):
        await ask(store, "ZINCRBY", rate, -60_000, start)
    await ask(store, "ZADD", store.keys.blocked_scopes, 0, "f:greet")


async def test_a_bucket_gives_its_burst_and_then_fills_evenly(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit(GREET, Limit(rate=1, per_seconds=10, burst=3))
    await enqueue(store, *"123456")
    assert len(await worker.take(10)) == 3
    bucket = store.keys.rate_key("f:greet")
    await ask(store, "HSET", bucket, "at_ms", await now_ms(store) - 20_000)
    await ask(store, "ZADD", store.keys.blocked_scopes, 0, "f:greet")
    assert ids(await worker.take(10)) == ["4", "5"]


async def test_a_start_before_the_clock_was_set_back_counts_until_its_window_ends(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.set_limit(GREET, Limit(rate=2, per_seconds=60))
    await enqueue(store, "1", "2", "3")
    rate = store.keys.rate_key("f:greet")
    started_ms = await now_ms(store) + 50_000
    await ask(store, "ZADD", rate, started_ms, "before the clock was set back by 50 s")
    assert ids(await worker.take(10)) == ["1"], "the start that seems to be ahead counts"
    ends_ms = await now_ms(store) + await ask(store, "PTTL", rate)
    assert ends_ms >= started_ms + 60_000, "forgotten before its window is over: one more could start"


# Queues


async def test_a_queue_may_have_a_rate(store: JobStore, worker: SteppedWorker) -> None:
    await store.set_limit("queue:default", Limit(rate=2, per_seconds=60))
    await enqueue(store, *"1234")
    assert ids(await worker.take(10)) == ["1", "2"]
    claim = await worker.claim(10)
    assert claim.jobs == []
    assert claim.next_due_ms is not None
    assert (await store.observe(["default"])).queues["default"].blocked == 2


# Without workers


async def test_blocked_jobs_do_not_scale_a_pool_up(store: JobStore) -> None:
    await store.set_limit(GREET, Limit(concurrency=5))
    await enqueue(store, *(f"job-{number}" for number in range(400)))
    assert await store.admit_jobs(["default"]) == Admission(395, 0)
    seen = await store.observe(["default"])
    assert (seen.queues["default"].due, seen.is_controlled) == (5, True)
    assert await store.admit_jobs(["default"]) == Admission(0, 0)


async def test_many_jobs_are_looked_at_page_by_page(store: JobStore) -> None:
    await store.set_limit(GREET, Limit(concurrency=5))
    await enqueue(store, *(f"job-{number:03}" for number in range(250)))
    assert await store.admit_jobs(["default", "other"], 100) == Admission(95, 0, {"default": 5})
    assert await store.admit_jobs(["default"], 100) == Admission(95, 0, {"default": 5})
    assert await store.admit_jobs(["default"], 100) == Admission(55, 0)
    assert (await store.observe(["default"])).queues["default"].due == 5


async def test_rated_jobs_become_due_without_any_worker(store: JobStore) -> None:
    await store.set_limit(GREET, Limit(rate=1, per_seconds=60))
    await enqueue(store, "1", "2", "3")
    await store.admit_jobs(["default"])
    assert await parked(store) == ["2", "3"]
    worker = await start_worker(store)
    await worker.take(10)
    await _let_a_minute_pass(store)
    assert await store.admit_jobs([]) == Admission(0, 1), "no queue needs to be named for that"
    assert await is_queued(store, "2")


# What applications declare


async def test_declared_limits_end_with_their_declaration(store: JobStore, worker: SteppedWorker) -> None:
    assert await store.publish_limits("shop", {GREET: Limit(concurrency=1)}) == 1
    assert await store.publish_limits("shop", {GREET: Limit(concurrency=1)}) == 0
    await enqueue(store, "1", "2", "3")
    assert ids(await worker.take(10)) == ["1"]
    assert await store.publish_limits("other app", {}) == 0
    assert await store.publish_limits("shop", {}) == 1
    assert ids(await worker.take(10)) == ["2", "3"]


async def test_a_limit_that_a_person_set_overrides_the_declared_one(
    store: JobStore, worker: SteppedWorker
) -> None:
    await store.publish_limits("shop", {GREET: Limit(concurrency=3)})
    await store.set_limit(GREET, Limit(concurrency=1), "ada")
    await enqueue(store, *"1234")
    assert ids(await worker.take(10)) == ["1"]
    flow = await store.read_flow()
    assert flow.limits[GREET].concurrency == 1
    assert flow.overridden == {GREET}
    assert (flow.blocked, flow.slots) == ({"f:greet": 3}, {"f:greet": 1})
    await store.set_limit(GREET, None, "ada")
    assert (await store.read_flow()).limits[GREET].concurrency == 3


@pytest.mark.parametrize(
    ("target", "limit", "complaint"),
    [
        ("greet", Limit(concurrency=1), "queue:NAME, function:NAME"),
        ("pool:shop/emails", Limit(concurrency=1), "its size is set in its spec"),
        ("pool:emails", Limit(concurrency=1), "pool:NAMESPACE/NAME"),
        (GREET, Limit(), "limits nothing"),
        (GREET, Limit(concurrency=-1), "must be 0 to 1,000,000"),
        (GREET, Limit(rate=1, per_seconds=0), "per_seconds"),
        (GREET, Limit(concurrency=1, burst=5), "no rate to refill it"),
        ("queue:default", Limit(per_key=1), "cannot be per key"),
    ],
)
async def test_an_invalid_limit_is_refused_with_an_explanation(
    store: JobStore, target: str, limit: Limit, complaint: str
) -> None:
    with pytest.raises(InvalidLimit, match=complaint):
        await store.set_limit(target, limit)
    assert (await store.read_flow()).limits == {}


@pytest.mark.parametrize("garbage", ["{", "[]", '{"concurrency": "many"}', '{"rate": -5}'])
async def test_an_unreadable_limit_limits_no_job(
    store: JobStore, worker: SteppedWorker, garbage: str
) -> None:
    await ask(store, "HSET", store.keys.limits, GREET, garbage)
    await enqueue(store, "1", "2")
    assert ids(await worker.take(10)) == ["1", "2"]
    await store.observe(["default"])


# With real processes


@pytest.mark.slow
async def test_a_limit_survives_kill_9_and_no_slot_is_lost(
    client: RRQClient, redis_dsn: str, tmp_path: Path
) -> None:
    store, ledger, most = client.job_store, Ledger(tmp_path / "ledger"), 3
    await store.set_limit("function:note", Limit(concurrency=most))
    # Too long a lease to end by itself: a process that stands still for a while keeps its jobs.
    options = {
        "worker_concurrency": 10,
        "worker_lease_seconds": 30.0,
        "worker_lease_renewal_seconds": 0.5,
        "worker_idle_poll_max_seconds": 0.1,
    }
    client.settings.worker_lease_renewal_seconds = 0.5
    jobs = await client.enqueue_many([JobRequest("note", (0.1,)) for _ in range(100)])
    killed_at: dict[int, float] = {}
    with WorkerProcess(redis_dsn, ledger, **options):
        for _ in range(2):
            with WorkerProcess(redis_dsn, ledger, **options) as victim:
                begun = ledger.count("started")
                pid = victim.pid
                await eventually(
                    lambda: (
                        any(entry.pid == pid for entry in ledger.entries("started")[begun:])  # noqa: B023  awaited here
                        or ledger.count("effect") >= len(jobs)
                    ),
                    20,
                )
                workers = [name for name in (await store.observe([])).workers if f"_{pid}_" in name]
                killed_at[pid] = time.time()
                victim.kill()
                # As when its pod was seen to die, in a fleet that has beaten for longer than a lease.
                await ask(store, "HDEL", store.keys.guard, "reap_not_before_ms")
                await store.shorten_leases(workers)
        await all_done(store, jobs)
    assert ledger.count("started") > len(jobs), "no attempt was cut"
    assert _most_at_once(ledger, killed_at) <= most
    assert await slots(store, "f:note") == 0
    assert await parked(store, "f:note") == []


def _most_at_once(ledger: Ledger, killed_at: dict[int, float]) -> int:
    """How many handlers ran at the same time; one that was killed ran until then."""
    steps: list[tuple[float, int]] = []
    for begin in ledger.entries("started"):
        ends = [
            entry.time
            for entry in ledger.entries("effect")
            if (entry.job_id, entry.pid) == (begin.job_id, begin.pid)
        ]
        # One that began in the moment of the kill ran for no time.
        end = min(ends) if ends else max(begin.time, killed_at[begin.pid])
        steps += [(begin.time, 1), (end, -1)]
    running = peak = 0
    # An end comes before a start of the same moment.
    for _, step in sorted(steps):
        running += step
        peak = max(peak, running)
    return peak
