"""The loop over the pools of one Redis, with a real Redis and controllers that only take notes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from pool_group_bench import Bench, NoteTaker, build_record
from queue_steps import ask, enqueue, now_ms, start_worker
from rrq.broker.cron_table import build_cron_table
from rrq.broker.messages import Observation
from rrq.cron import CronJob
from rrq.flow import Limit, PoolReport
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.control import leader as leader_module
from rrq_operator.control import pool_group as group_module
from rrq_operator.control.pool_group import PoolGroup
from rrq_operator.redis.queues import QueueTrouble, RedisQueues
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
def bench(redis_dsn: str) -> Bench:
    return Bench(RedisIdentity(redis_dsn, "rrq:"))


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Bench]:
    """The group goes round."""
    task = asyncio.create_task(bench.group.run())
    yield bench
    await end(task)
    assert task.cancelled()


@pytest.fixture
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that wait for several rounds, whatever brings them about."""
    monkeypatch.setattr(group_module, "_POLL_SECONDS", 0.1)


@pytest.fixture
def polls_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what brings a round about at once: within any patience the poll does not."""
    monkeypatch.setattr(group_module, "_POLL_SECONDS", 600.0)


async def count_listeners(store: JobStore) -> int:
    [_, count] = await ask(store, "PUBSUB", "NUMSUB", store.keys.notify_channel)
    return int(count)


async def listening(store: JobStore) -> None:
    await eventually(lambda: count_listeners(store), message="the group listens")


@pytest.mark.usefixtures("polls_seldom")
async def test_an_announcement_brings_a_round_at_once(running: Bench, store: JobStore) -> None:
    taker = running.add("emails")
    await listening(store)
    for number in range(1, 4):
        before = monotonic()
        await enqueue(store, f"job-{number}")
        await eventually(lambda: taker.due == number, interval_seconds=0.002)  # noqa: B023  awaited here
        heard_at = taker.rounds[-1][1].heard_at
        assert heard_at is None or heard_at >= before
        await eventually(lambda: monotonic() - before > 0.15)  # noqa: B023  awaited here


@pytest.mark.usefixtures("polls_seldom")
async def test_what_comes_right_after_an_announcement_is_seen_by_a_second_look(
    running: Bench, store: JobStore
) -> None:
    taker = running.add("emails")
    await listening(store)
    for attempt in range(5):
        await ask(store, "DEL", store.keys.queue_key("default"))
        running.group.touch(("test", "emails"))
        await eventually(lambda: taker.due == 0)
        await enqueue(store, f"first-{attempt}")
        await eventually(lambda: taker.due == 1, interval_seconds=0.002)
        # Within the 50 ms in which nothing is announced.
        await enqueue(store, f"second-{attempt}", f"third-{attempt}")
        await eventually(lambda: taker.due == 3, interval_seconds=0.002)


async def test_nothing_announced_is_seen_within_a_second(running: Bench, store: JobStore) -> None:
    taker = running.add("emails")
    await eventually(lambda: taker.due == 0)
    await ask(store, "ZADD", store.keys.queue_key("default"), 0, "of RRQ 0.7")
    await eventually(lambda: taker.due == 1)
    assert group_module._POLL_SECONDS == 1


@pytest.mark.usefixtures("polls_often")
async def test_a_group_gives_back_the_jobs_of_a_fleet_that_is_gone(running: Bench, store: JobStore) -> None:
    store.settings.worker_lease_seconds = 1.0
    worker = await start_worker(store, "of a lost node", queues=("default",))
    await enqueue(store, "1")
    await worker.take_one()
    # The record of a worker does not live as long as a pool may stay at zero.
    await ask(store, "DEL", store.keys.worker_key(worker.worker_id))
    # Only now does the group look: it must not sweep before the job is in hand, however slow this machine is.
    taker = running.add("emails")
    await eventually(lambda: taker.due == 1, 20, "no sweep")
    orphaned = [
        sum(queue.orphaned for queue in this.seen.queues.values()) for _, this in taker.rounds if this.seen
    ]
    assert 1 in orphaned, "while the living had time to renew, the pool did not hear of the job"
    assert orphaned[-1] == 0
    assert b'rrq_operator_returned_jobs_total{cause="lease"} 1.0' in running.services.metrics.expose()


@pytest.mark.usefixtures("polls_seldom")
async def test_only_the_pools_of_the_announced_queue_get_a_round(running: Bench, store: JobStore) -> None:
    emails, reports = running.add("emails"), running.add("reports", queues=["reports"])
    await listening(store)
    await eventually(lambda: emails.rounds and reports.rounds)
    before = len(reports.rounds)
    for number in range(5):
        await enqueue(store, f"job-{number}")
        await eventually(lambda: emails.due == number + 1)  # noqa: B023  awaited here
    assert len(reports.rounds) - before <= 1, "at most the one for a new pool"


async def test_a_pool_that_breaks_the_decision_does_not_stop_the_others(
    running: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    takers = [running.add(f"pool-{number}") for number in range(5)]
    takers[2].is_broken = True
    counts = [len(taker.rounds) for taker in takers]
    await eventually(
        lambda: all(
            len(taker.rounds) >= count + 2
            for number, (taker, count) in enumerate(zip(takers, counts, strict=True))
            if number != 2
        )
    )
    assert "pool not decided" in caplog.text


async def test_an_action_that_hangs_delays_no_other_pool_and_costs_no_calls(
    running: Bench, store: JobStore
) -> None:
    slow, quick = running.add("slow"), running.add("quick")
    await listening(store)
    slow.acts_for_seconds = 60.0
    await enqueue(store, "job-1")
    await eventually(lambda: slow.actions == 1 and quick.due == 1)
    calls, rounds, began = running.queues.calls, len(slow.rounds), len(quick.rounds)
    await eventually(lambda: len(quick.rounds) >= began + 2, message="the other one is polled on")
    assert len(slow.rounds) == rounds, "no decision while the last one is being carried out"
    assert running.queues.calls - calls <= 4, "Redis is not asked because of it"


@pytest.mark.usefixtures("polls_seldom")
async def test_a_pool_is_looked_at_as_soon_as_its_action_is_over(running: Bench, store: JobStore) -> None:
    taker = running.add("emails")
    await listening(store)
    taker.acts_for_seconds = 0.2
    running.group.touch(("test", "emails"))
    await eventually(lambda: taker.actions >= 1)
    for number in range(1, 4):
        await enqueue(store, f"job-{number}")
        await eventually(lambda: taker.due == number, interval_seconds=0.005)  # noqa: B023  awaited here


async def test_a_group_that_ends_leaves_no_connection_and_no_task(store: JobStore, redis_dsn: str) -> None:
    async def count_clients() -> int:
        return len((await ask(store, "CLIENT", "LIST")).splitlines())

    before, tasks = await count_clients(), len(asyncio.all_tasks())
    for _ in range(5):
        bench = Bench(RedisIdentity(redis_dsn, "rrq:"))
        task = asyncio.create_task(bench.group.run())
        taker = bench.add("emails")
        await eventually(lambda: taker.due == 0)  # noqa: B023  awaited here
        await listening(store)
        await end(task)
    await eventually(lambda: _equals(count_clients, before))
    assert len(asyncio.all_tasks()) == tasks


async def _equals(count: Callable[[], Any], expected: object) -> bool:
    return bool(await count() == expected)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port/0",
        "redis://user:hun/ter2@host:6379/0",
        "redis+sentinel://:hunter2@/",
    ],
)
def test_the_error_of_an_invalid_url_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(QueueTrouble) as trouble:
        RedisQueues(RedisIdentity(url, "rrq:"))
    assert trouble.value.reason == "InvalidURL"
    assert "ter2" not in str(trouble.value)


# Pauses and limits


@pytest.mark.usefixtures("polls_often")
async def test_one_call_a_round_while_nothing_is_controlled(running: Bench, store: JobStore) -> None:
    taker = running.add("emails")
    await eventually(lambda: len(taker.rounds) >= 3, message="what is read once is behind it")
    calls, rounds = running.queues.calls, len(taker.rounds)
    await eventually(lambda: len(taker.rounds) >= rounds + 3)
    # The tables of cron entries are read every twenty seconds, which may have been now.
    assert running.queues.calls - calls <= len(taker.rounds) - rounds + 1


# What is published for dashboards


def report_on(name: str = "emails", **changes: Any) -> PoolReport:
    usual = PoolReport(f"test/{name}", "Deployment", ("default",), 1, 1, 1, 0, 0, 0, "Idle", "nothing", 1000)
    return replace(usual, **changes)


@pytest.mark.usefixtures("polls_often")
async def test_pools_are_published_and_forgotten_when_they_leave(running: Bench, store: JobStore) -> None:
    emails, others = running.add("emails"), running.add("others")
    emails.report, others.report = report_on("emails"), report_on("others")

    async def published() -> list[str]:
        return [report.pool for report in await store.read_pools()]

    await eventually(lambda: _equals(published, ["test/emails", "test/others"]))
    emails.report = report_on("emails", desired=4)

    async def sizes() -> list[int]:
        return [decision.desired for decision in await store.read_decisions("test/emails")]

    await eventually(lambda: _equals(sizes, [1, 4]))
    del running.pools["test", "emails"]
    running.group.set_pools(running.pools)
    await eventually(lambda: _equals(published, ["test/others"]))


@pytest.mark.parametrize("has_pools_left", [False, True], ids=["its last pool", "the term"])
async def test_a_group_that_ends_removes_its_last_pool_and_leaves_others_to_the_next(
    store: JobStore, bench: Bench, has_pools_left: bool
) -> None:
    task = asyncio.create_task(bench.group.run())
    bench.add("emails").report = report_on()

    async def published() -> int:
        return len(await store.read_pools())

    await eventually(lambda: _equals(published, 1))
    if not has_pools_left:
        bench.group.set_pools({})
    await end(task)
    assert await published() == int(has_pools_left)


@pytest.mark.usefixtures("polls_often")
async def test_pools_that_cannot_be_published_are_sized_all_the_same(
    running: Bench, store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def fail(*_: object) -> None:
        raise QueueTrouble("Unreachable", "no room")

    taker = running.add("emails")
    taker.report = report_on()
    for stand_in in (fail, hang):
        monkeypatch.setattr(RedisQueues, "publish", stand_in)
        rounds = len(taker.rounds)
        await eventually(lambda: len(taker.rounds) >= rounds + 3)  # noqa: B023  awaited here
    assert caplog.text.count("pools not published") == 1


@pytest.mark.usefixtures("polls_seldom")
async def test_a_pause_of_a_pool_is_seen_at_once_by_that_pool(running: Bench, store: JobStore) -> None:
    emails, others = running.add("emails"), running.add("others")
    await listening(store)

    def is_paused(taker: NoteTaker) -> bool:
        return bool(taker.rounds) and taker.rounds[-1][1].is_paused

    await eventually(lambda: emails.rounds and others.rounds)
    await store.set_pause("pool:test/emails", "paused", "ada")
    await eventually(lambda: is_paused(emails), interval_seconds=0.01)
    assert not is_paused(others)
    await store.set_pause("pool:test/emails", None, "ada")
    await eventually(lambda: not is_paused(emails))


async def test_jobs_over_their_limit_are_not_seen_by_the_pool(running: Bench, store: JobStore) -> None:
    await store.set_limit("function:greet", Limit(concurrency=2))
    taker = running.add("emails")
    await listening(store)
    await enqueue(store, *(f"job-{number}" for number in range(20)))
    await eventually(lambda: taker.due == 2)
    looks = [this_round.seen for _, this_round in taker.rounds]
    dues = {seen.queues["default"].due for seen in looks if seen is not None}
    assert dues <= {0, 2}, "no round has taken the others for work"


async def test_a_rate_that_allows_more_wakes_a_pool_without_workers(running: Bench, store: JobStore) -> None:
    await store.set_limit("function:greet", Limit(rate=1, per_seconds=60))
    worker = await start_worker(store)
    await enqueue(store, "1", "2")
    assert len(await worker.take(10)) == 1
    taker = running.add("emails")
    await eventually(lambda: taker.due == 0)
    # As if the minute were over.
    await ask(store, "DEL", store.keys.rate_key("f:greet"))
    await ask(store, "ZADD", store.keys.blocked_scopes, 0, "f:greet")
    await eventually(lambda: taker.due == 1, message="the second is due again without any claim")


# Cron


async def fire(bench: Bench, store: JobStore, at_ms: int) -> float:
    """Fire the cron entries as a round at that moment does; returns when the next one is due."""
    seen = await store.observe([])
    return await bench.group.housekeeping.fire_cron(
        Observation(at_ms, {}, seen.workers), bench.pools.values()
    )


ENTRY = {"name": "tick", "schedule": "* * * * *", "function": "tick", "queue": "default"}


async def queued(store: JobStore) -> int:
    return int(await ask(store, "ZCARD", store.keys.queue_key("default")))


async def test_a_declared_entry_fires_once_a_tick(bench: Bench, store: JobStore) -> None:
    bench.add("emails", cron=[ENTRY])
    now = await now_ms(store)
    await fire(bench, store, now - 200_000)
    assert await queued(store) == 0, "a new entry has no ticks before it was seen"
    await fire(bench, store, now)
    assert await queued(store) == 1, "of several missed ticks the last one fires"
    await fire(bench, store, now)
    assert await queued(store) == 1


async def test_the_next_round_comes_with_the_next_tick(bench: Bench, store: JobStore) -> None:
    bench.add("emails", cron=[ENTRY])
    tick_ms = await now_ms(store) // 60_000 * 60_000
    assert await fire(bench, store, tick_ms - 200) <= monotonic() + 0.2


async def test_the_operator_fires_a_published_table_that_no_worker_serves(
    bench: Bench, store: JobStore
) -> None:
    now = await store.read_time()
    bench.add("emails")
    table = build_cron_table(["default"], [CronJob(function_name="tick", schedule="* * * * *")], now)
    await store.publish_cron_table(table, None, 100.0)
    at_ms = int(now.timestamp() * 1000)
    await fire(bench, store, at_ms - 200_000)
    before = await queued(store)
    await fire(bench, store, at_ms)
    assert await queued(store) == before + 1


async def test_a_table_whose_workers_live_is_left_to_them_for_ten_seconds(
    bench: Bench, store: JobStore
) -> None:
    now = await store.read_time()
    bench.add("emails")
    table = build_cron_table(["default"], [CronJob(function_name="tick", schedule="* * * * *")], now)
    await store.publish_cron_table(table, None, 100.0)
    await start_worker(store)
    # Two minutes ago, so that no moment of this test is ahead of the clock of Redis.
    tick_ms = (int(now.timestamp()) // 60 - 2) * 60_000
    await fire(bench, store, tick_ms - 20_000)
    await fire(bench, store, tick_ms + 9_000)
    assert await queued(store) == 0, "its worker has not had its chance yet"
    await fire(bench, store, tick_ms + 11_000)
    assert await queued(store) == 1, "its worker is alive, but did not fire"


async def test_data_that_cannot_be_parsed_is_a_fault_of_the_pools_of_that_redis(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Observation:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "not text")

    monkeypatch.setattr(JobStore, "observe", fail)
    taker = running.add("emails")
    await eventually(lambda: taker.rounds)
    fault = taker.rounds[-1][1].queue_fault
    assert fault is not None
    assert fault.reason == "Unreadable"
    assert "not text" in fault.message


async def test_connections_that_do_not_close_do_not_delay_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def hang(_: object) -> None:
        await goes_on.wait()

    monkeypatch.setattr(RedisQueues, "aclose", hang)
    task = asyncio.create_task(bench.group.run())
    await eventually(lambda: bench.group.ticked_at)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    goes_on.set()


async def test_a_group_that_hangs_is_replaced_and_the_leader_counts_as_alive(
    redis_dsn: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "_GROUP_STALLED_SECONDS", 1.5)
    runs: list[PoolGroup] = []
    run = PoolGroup.run

    async def hang_once(group: PoolGroup) -> None:
        runs.append(group)
        await (run(group) if len(runs) > 1 else asyncio.Event().wait())

    monkeypatch.setattr(PoolGroup, "run", hang_once)
    monkeypatch.setattr(leader_module, "ReplicaPool", NoteTaker)
    bench.cluster_cache.set_pool(build_record("emails", redis={"url": redis_dsn}))
    leader = leader_module.Leader(bench.services, "test")
    task = asyncio.create_task(leader.run())
    try:
        await eventually(lambda: len(runs) >= 2)
        await eventually(lambda: count_redis_calls(bench) > 0)
        await eventually(lambda: monotonic() - leader.ticked_at < 1.5)
        counted = count_redis_calls(bench)
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    assert count_redis_calls(bench) >= counted, "also after the term"


def count_redis_calls(bench: Bench) -> float:
    return bench.services.metrics.registry.get_sample_value("rrq_operator_redis_calls_total") or 0.0
