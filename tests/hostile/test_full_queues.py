"""Queues, lists and books with far too much in them, or with nothing that makes sense."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from fleet import all_done, running_worker
from queue_steps import QUEUE, ask, enqueue, ids, is_queued, let_the_fleet_beat, now_ms, start_worker
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.store import JobStore

MANY = 250_000
# Many times what a step takes on an idle machine, because this one may be busy; one that went through all entries
# for every job of a claim would take longer still. Held by the quickest of several: nobody stands still in all of them.
BOUND_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
_FILL = """
for first = 1, tonumber(ARGV[1]), 1000 do
  local members = {}
  for number = first, first + 999 do
    members[#members + 1] = ARGV[2]
    members[#members + 1] = 'id-' .. number
    if ARGV[3] == '1' then redis.call('HSET', 'rrq:job:id-' .. number, 'function_name', 'nothing') end
  end
  redis.call('ZADD', KEYS[1], unpack(members))
end
"""


async def fill(store: JobStore, count: int, *, score: str = "1", with_jobs: bool = False) -> None:
    await store.connection.call("EVAL", _FILL, 1, QUEUE, count, score, int(with_jobs), timeout_seconds=100)


@pytest.mark.slow
@pytest.mark.parametrize("with_jobs", [True, False], ids=["with jobs", "without jobs"])
async def test_many_ids_at_one_score_are_claimed_in_bounded_steps(with_jobs: bool, store: JobStore) -> None:
    store.settings.redis_socket_timeout_seconds = PATIENCE_SECONDS
    store.settings.worker_lease_seconds = 600
    await fill(store, MANY, with_jobs=with_jobs)
    worker = await start_worker(store)
    took_seconds = []
    for _ in range(5):
        started_at = time.monotonic()
        claim = await worker.claim(100)
        took_seconds.append(time.monotonic() - started_at)
        assert claim.more_due
        assert len(claim.jobs) == (100 if with_jobs else 0)
        assert len(claim.missing) <= 6_000
    assert min(took_seconds) < BOUND_SECONDS
    # Enough room is made for those who come after, and looking costs nothing either.
    took_seconds.clear()
    for number in range(3):
        started_at = time.monotonic()
        observation = await store.observe([QUEUE])
        await enqueue(store, f"late-{number}")
        took_seconds.append(time.monotonic() - started_at)
        assert observation.queues[QUEUE].due >= MANY - 30_000
    assert min(took_seconds) < BOUND_SECONDS


@pytest.mark.slow
async def test_a_worker_comes_through_entries_without_jobs(
    client: RRQClient, settings: RRQSettings, registry: JobRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    # What is dropped by a claim whose answer comes too late is not told of.
    settings.redis_socket_timeout_seconds = PATIENCE_SECONDS
    await fill(client.job_store, 30_000)
    jobs = await client.enqueue_many([JobRequest("nothing")] * 5)
    async with running_worker(settings, registry):
        await all_done(client.job_store, jobs, 60)
    dropped = [record for record in caplog.records if record.message == "queue entries without a job dropped"]
    assert sum(record.__dict__["entries"] for record in dropped) == 30_000
    assert len(dropped) < 30


@pytest.mark.parametrize("score", ["-inf", "-1e300", "-0.0"])
async def test_a_score_before_all_time_is_due(
    score: str, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    job = await client.enqueue("nothing")
    assert job is not None
    await ask(client.job_store, "ZADD", QUEUE, score, job.id)
    async with running_worker(settings, registry):
        await all_done(client.job_store, [job])


@pytest.mark.parametrize("score", ["+inf", "1e300", "9007199254740993"])
async def test_a_score_after_all_time_is_never_due_and_holds_up_nobody(
    score: str, client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    store = client.job_store
    far, *near = await client.enqueue_many([JobRequest("nothing")] * 4)
    await ask(store, "ZADD", QUEUE, score, far.id)
    async with running_worker(settings, registry):
        await all_done(store, near)
        observation = await store.observe([QUEUE])
        assert observation.queues[QUEUE].due == 0
        assert observation.queues[QUEUE].later == 1
        await all_done(store, await client.enqueue_many([JobRequest("nothing")] * 4))
    assert await is_queued(store, far.id)
    await client.cancel(far.id)
    assert not await is_queued(store, far.id)


async def test_a_thousand_locked_jobs_do_not_hide_the_next(store: JobStore) -> None:
    worker = await start_worker(store)
    await start_worker(store, "holder")
    await enqueue(store, *(f"locked-{number}" for number in range(900)))
    await enqueue(store, "free")
    for number in range(900):
        await ask(store, "SET", f"rrq:lock:job:locked-{number}", "holder")
    assert ids(await worker.take(5)) == ["free"]


GUARD = {
    "claims put off for ever": {"claim_not_before_ms": "1e300"},
    "claims put off beyond all numbers": {"claim_not_before_ms": "inf"},
    "claims put off by a word": {"claim_not_before_ms": "abc"},
    "claims put off by NaN": {"claim_not_before_ms": "nan"},
    "reaping put off for ever": {"reap_not_before_ms": "1e300"},
    "reaping put off by NaN": {"reap_not_before_ms": "nan"},
    "last beat in the future": {"last_beat_ms": "1e300"},
    "last beat is a word": {"last_beat_ms": "abc"},
    "last beat is NaN": {"last_beat_ms": "nan"},
    "last beat beyond all numbers": {"last_beat_ms": "inf"},
    "last beat before all numbers": {"last_beat_ms": "-inf"},
    "run id is odd": {"run_id": b"\xff\0"},
}


@pytest.mark.parametrize("changes", GUARD.values(), ids=GUARD)
async def test_a_spoilt_guard_is_put_right_by_the_next_beats(
    changes: dict[str, Any], store: JobStore
) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1")
    await ask(store, "ZADD", store.keys.leases, "+inf", "ghost")
    await ask(store, "HSET", store.keys.guard, *(part for pair in changes.items() for part in pair))
    await worker.beat()
    state = await ask(store, "HMGET", store.keys.guard, "reap_not_before_ms", "claim_not_before_ms")
    horizon_ms = await now_ms(store) + 3_600_000
    assert all(float(value or 0) < horizon_ms for value in state if value not in (b"abc", b"nan"))
    if "run_id" not in changes:  # a new run id is a restart, after which everybody waits for one renewal
        assert ids(await worker.take()) == ["1"]
    assert (await worker.beat()).active_count == (1 if "run_id" not in changes else 0)


LEASES = {"+inf": 1, "1e300": 1, "-inf": 0, "-1e300": 0, "0": 0}


@pytest.mark.parametrize(("score", "is_living"), LEASES.items())
async def test_leases_and_records_of_nobody_blind_no_observer(
    score: str, is_living: int, store: JobStore
) -> None:
    worker = await start_worker(store)
    await let_the_fleet_beat(store)
    await ask(store, "ZADD", store.keys.leases, score, b"\xff\n\0ghost")
    await ask(
        *(store, "HSET", b"rrq:workers:info:\xff\n\0ghost", "capacity", "1e300", "ended", "nan", "queues", "[[["),
        *("registered_ms", "-inf", "pod_uid", b"\xff", "incarnation", b"\xfe"),
    )  # fmt: skip
    await ask(store, "SET", b"rrq:active:jobs:\xff\n\0ghost", "no set")
    seen = (await store.observe([QUEUE])).workers
    assert len(seen) == 1 + is_living
    assert all(0 <= worker.capacity <= 2**52 and 0 <= worker.busy <= 2**52 for worker in seen.values())
    assert all(worker.ended >= 0 for worker in seen.values())
    assert (await worker.beat()).state == 1
    # The lease of nobody has ended: that must not keep the jobs of the really dead from coming back.
    await ask(store, "ZADD", store.keys.leases, 1, "dead")
    await ask(store, "ZADD", store.keys.active_jobs_key("dead"), 1, "job-of-the-dead")
    await ask(store, "HSET", "rrq:job:job-of-the-dead", "worker_id", "dead", "status", "ACTIVE")
    await store.reap_workers()
    assert await is_queued(store, "job-of-the-dead")


async def test_many_cancellations_do_not_hold_up_a_heartbeat(store: JobStore) -> None:
    store.settings.redis_socket_timeout_seconds = PATIENCE_SECONDS
    store.settings.worker_lease_seconds = 600
    worker = await start_worker(store)
    await store.connection.call(
        "EVAL", "for i = 1, 250000 do redis.call('SADD', KEYS[1], i) end", 1,
        store.keys.cancel_key(worker.worker_id), timeout_seconds=100,
    )  # fmt: skip
    took_seconds = []
    for _ in range(3):
        started_at = time.monotonic()
        reply = await worker.beat()
        took_seconds.append(time.monotonic() - started_at)
        assert reply.cancel_job_ids == ()
    assert min(took_seconds) < BOUND_SECONDS


async def test_garbage_on_the_control_list_is_only_a_reason_to_look(
    client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    store = client.job_store
    async with running_worker(settings, registry, worker_id="worker-a"):
        await all_done(store, await client.enqueue_many([JobRequest("nothing")]))
        control = store.keys.control_key("worker-a")
        await ask(store, "RPUSH", control, b"\xff\0", "", "x" * 1_000_000, '{"cancel": [[[')

        async def is_empty() -> bool:
            return int(await ask(store, "LLEN", control)) == 0

        await eventually(is_empty, message="the list was not read")
        await all_done(store, await client.enqueue_many([JobRequest("nothing")]))


async def test_garbage_on_the_channel_is_heard_as_text(store: JobStore) -> None:
    async with store.listen() as hear:
        heard = []
        for message in (b"\xff\0", b"", b"x" * 1_000_000, b"rrq:queue:fine"):
            await ask(store, "PUBLISH", store.keys.notify_channel, message)

        async def has_come_through() -> bool:
            name = await hear(0.1)
            if name is not None:
                heard.append(name)
            return name == "fine"

        await eventually(has_come_through, message="the last message was not heard")
        assert heard[0] == "\\xff\0"


async def test_garbage_on_the_dead_letter_list_holds_up_no_requeue(client: RRQClient) -> None:
    store = client.job_store
    job = await client.enqueue("nothing")
    assert job is not None
    await ask(store, "ZREM", QUEUE, job.id)
    await ask(store, "SET", "rrq:job:text", "no hash")
    garbage = (b"\xff\0", "", "text", "x" * 1_000_000, *(f"gone-{number}" for number in range(2000)))
    await ask(store, "LPUSH", "rrq:dlq:default", *garbage, job.id)
    assert await store.requeue_dlq("rrq:dlq:default", QUEUE) == 1
    assert await is_queued(store, job.id)
    assert await ask(store, "GET", "rrq:job:text") == b"no hash"


TABLES: dict[str, dict[str, Any]] = {
    "no JSON": {"table": b"\xff\0"},
    "nested deeply": {"table": "[" * 100_000},
    "no object": {"table": "[]"},
    "entries of no kind": {"table": '{"queues": ["a"], "entries": [1, null, [], {"schedule": 5}, {"schedule": "* * *"}]}'},
    "queues of no kind": {"table": '{"queues": [1, null], "entries": []}'},
    "times of no kind": {"table": '{"queues": ["a"], "entries": []}', "started_ms": "abc", "renewed_ms": "1e999"},
    "times far away": {"table": '{"queues": ["a"], "entries": []}', "started_ms": "9" * 40},
    "times without end": {"table": '{"queues": ["a"], "entries": []}', "started_ms": "9" * 5000},
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
async def test_a_spoilt_cron_table_hides_no_other(table: dict[str, Any], store: JobStore) -> None:
    good = '{"queues": ["good"], "entries": [{"function_name": "f", "schedule": "* * * * *"}]}'
    await ask(store, "HSET", "rrq:cron:table:good", "table", good, "started_ms", 1, "renewed_ms", 2)
    await ask(store, "HSET", "rrq:cron:table:bad", *(part for pair in table.items() for part in pair))
    await ask(store, "ZADD", store.keys.cron_tables, "inf", "bad", "1e300", b"\xff", 1, "good")
    tables = await store.read_cron_tables()
    assert [entry.function_name for table in tables for entry in table.entries] == ["f"]
