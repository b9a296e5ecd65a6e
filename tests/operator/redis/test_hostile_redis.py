"""One tenant's Redis sends whatever hurts: its own pools say so, and those of the others keep their reaction time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from statistics import median, quantiles
from time import monotonic, thread_time
from typing import TYPE_CHECKING

import psutil
import pytest

from hostile_redis import (
    HOSTILE_TO_OBSERVERS,
    ODD_GREETINGS,
    HostileRedis,
    always,
    build_observation,
    differ,
    hostile_process,
)
from pool_group_bench import Bench
from queue_steps import ask, enqueue
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.redis.queues import QueueTrouble, RedisQueues
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostile_redis import Answer
    from pool_group_bench import NoteTaker
    from rrq.store import JobStore

MEBIBYTE = 1024 * 1024
POOLS = 50
#: For each kind of answer.
JOBS = 12


@contextlib.asynccontextmanager
async def going_round(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.group.run())
    try:
        yield bench
    finally:
        await end(task)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisQueues]:
    queues = RedisQueues(RedisIdentity(url, "rrq:"))
    try:
        yield queues
    finally:
        await queues.aclose()


class Gauge:
    """How much memory this process takes at most, and how long it computed while nothing else had a turn.

    In seconds of a processor, so that a busy machine does not look like a stall.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self.longest_stall_seconds = 0.0
        self._process = psutil.Process()
        self.bytes_before: int = self._process.memory_info().rss

    async def run(self) -> None:
        while True:
            before = thread_time()
            await asyncio.sleep(0.01)
            self.longest_stall_seconds = max(self.longest_stall_seconds, thread_time() - before)
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)


async def measure_reactions(store: JobStore, takers: list[NoteTaker], jobs: range) -> list[float]:
    """Queue jobs one after the other, for one pool after the other; return when the decision saw each, in seconds."""
    reactions = []
    for number in jobs:
        taker = takers[number % POOLS]
        due = taker.due or 0
        began_at = monotonic()
        await enqueue(store, f"job-{number}", queue_name=store.keys.queue_key(f"queue-{number % POOLS}"))
        await eventually(lambda: (taker.due or 0) > due, interval_seconds=0.002)  # noqa: B023  awaited here
        reactions.append(monotonic() - began_at)
        # A queue is announced at most every 50 ms, and producers do not wait for each other.
        await asyncio.sleep(0.02)
    return reactions


@pytest.mark.slow
async def test_fifty_pools_beside_a_hostile_redis_keep_their_reaction_time(
    redis_dsn: str, store: JobStore
) -> None:
    """The same pools beside one kind of hostile answers after the other."""
    neighbours = Bench(RedisIdentity(redis_dsn, "rrq:"))
    takers = [neighbours.add(f"pool-{number}", queues=[f"queue-{number}"]) for number in range(POOLS)]
    reactions: list[float] = []
    gauge = Gauge()
    async with going_round(neighbours):
        await eventually(lambda: all(taker.rounds for taker in takers))
        await eventually(lambda: ask(store, "PUBSUB", "CHANNELS"))
        # From here on nothing is seen but by an announcement: the poll of each second would hide that one was missed.
        neighbours.group.plan.next_full_at = monotonic() + 3600
        watching = asyncio.create_task(gauge.run())
        for number, answer in enumerate(HOSTILE_TO_OBSERVERS):
            with hostile_process(answer) as url:
                hostile = Bench(RedisIdentity(url, "rrq:"))
                victim = hostile.add("emails")
                async with going_round(hostile):
                    await eventually(lambda: victim.rounds)  # noqa: B023  awaited here
                    jobs = range(number * JOBS, (number + 1) * JOBS)
                    reactions += await measure_reactions(store, takers, jobs)
        await end(watching)
    # A machine that runs other tests beside this one takes ten times as long as a quiet one.
    assert median(reactions) < 0.25
    assert quantiles(reactions, n=20)[18] < 1.5
    assert gauge.longest_stall_seconds < 1.0
    assert gauge.most_bytes - gauge.bytes_before < 100 * MEBIBYTE


async def test_the_pools_of_a_redis_that_ends_no_reply_say_so() -> None:
    async with (
        HostileRedis(HOSTILE_TO_OBSERVERS["a text without end"]) as server,
        opened(server.url) as queues,
    ):
        with pytest.raises(QueueTrouble, match="sent a reply of more than 8388608 bytes") as caught:
            await queues.observe({"default": 0.0})
        assert caught.value.reason == "Unreachable"


@pytest.mark.parametrize("greeting", ODD_GREETINGS)
async def test_the_pools_of_a_redis_that_greets_with_nonsense_say_so(greeting: bytes) -> None:
    async with HostileRedis(always(b":0\r\n"), greeting=greeting) as server, opened(server.url) as queues:
        with pytest.raises(QueueTrouble, match="an answer that makes no sense"):
            await queues.observe({"default": 0.0})


def observe_as(now: int = 1_700_000_000_000, due: bytes = b":0", ended: int = 0) -> bytes:
    """Return what a Redis with one queue and no workers says to an operator."""
    queue = b"*7\r\n" + due + b"\r\n:0\r\n:0\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n"
    return b"*7\r\n:%d\r\n*1\r\n" % now + queue + b"*0\r\n:0\r\n*0\r\n:%d\r\n:0\r\n" % ended


NONSENSE = {
    "a time that no clock shows": observe_as(now=2**62),
    "a time before all clocks": observe_as(now=-(2**62)),
    "a text for a number": observe_as(due=b"$4\r\nmany"),
}


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE)
async def test_an_observation_that_cannot_be_is_trouble_and_no_size(reply: bytes) -> None:
    async with HostileRedis(always(reply)) as server, opened(server.url) as queues:
        with pytest.raises(QueueTrouble, match="an answer that makes no sense"):
            await queues.observe({"default": 0.0})


#: What no Sentinel says of its services.
ODD_SENTINELS = (
    *(b":0\r\n", b"$-1\r\n", b"*1\r\n:1\r\n", b"*1\r\n*1\r\n:1\r\n", b"+x\r\n"),
    b"*1\r\n*4\r\n$4\r\nport\r\n$1\r\nx\r\n$5\r\nflags\r\n:1\r\n",
)


def ask_as_sentinel(url: str) -> str:
    return url.replace("redis://", "redis+sentinel://").replace("/0", "/shop/0")


@pytest.mark.parametrize("reply", ODD_SENTINELS)
async def test_the_pools_of_a_sentinel_that_makes_no_sense_say_so(reply: bytes) -> None:
    async with HostileRedis(always(reply)) as server, opened(ask_as_sentinel(server.url)) as queues:
        with pytest.raises(QueueTrouble, match="an answer that makes no sense") as caught:
            await queues.observe({"default": 0.0})
        assert caught.value.reason == "Unreachable"


@pytest.mark.parametrize(
    ("answer", "is_sentinel"),
    [
        *((always(reply), False) for reply in NONSENSE.values()),
        # Understood as an observation, and as the answer to nothing else that is asked after it.
        (always(observe_as()), False),
        (always(observe_as(ended=5)), False),
        *((always(reply), True) for reply in ODD_SENTINELS),
        (differ, False),
        (differ, True),
    ],
)
async def test_a_redis_that_talks_nonsense_fills_no_log(
    answer: Answer, is_sentinel: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rrq_operator.control.pool_group._POLL_SECONDS", 0.05)
    monkeypatch.setattr("rrq_operator.redis.queues._LONGEST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr("rrq_operator.control.housekeeping._STRANGERS_SECONDS", 0.0)
    async with HostileRedis(answer) as server:
        bench = Bench(RedisIdentity(ask_as_sentinel(server.url) if is_sentinel else server.url, "rrq:"))
        bench.group.housekeeping.cron_tables_seconds = 0.0
        victim = bench.add("emails")
        async with going_round(bench):
            await eventually(lambda: len(victim.rounds) >= 15)
    said = Counter(record.message for record in caplog.records)
    assert set(said.values()) <= {1}, said
    assert not [record.message for record in caplog.records if record.exc_info]


async def test_as_many_workers_as_an_operator_lists_fit_into_its_limits() -> None:
    observation = build_observation(10_000)
    async with HostileRedis(always(observation)) as server, opened(server.url) as queues:
        assert len((await queues.observe({"default": 0.0})).workers) == 10_000


@pytest.mark.parametrize(
    "url_of",
    ["redis://anna:hunter%2F2@{}/0", "redis://{}/0?username=anna&password=hunter%2F2"],
    ids=["user info", "option"],
)
async def test_an_error_of_redis_is_one_short_line_without_the_password(url_of: str) -> None:
    quoted = b"-ERR unknown command `HELLO`, with args beginning with: `AUTH` `anna` `hunter/2` \x1b[2J"
    async with HostileRedis(always(quoted + b"E" * 60_000 + b"\r\n")) as server:
        address = server.url.removeprefix("redis://").removesuffix("/0")
        async with opened(url_of.format(address)) as queues:
            with pytest.raises(QueueTrouble, match="unknown command `HELLO`") as caught:
                await queues.observe({"default": 0.0})
    said = str(caught.value)
    assert len(said) < 1200
    assert said.isprintable()
    assert "hunter" not in said


async def test_a_server_that_hangs_up_is_asked_less_and_less_often_to_announce() -> None:
    async def hang_up(command: list[bytes]) -> AsyncIterator[bytes]:
        raise ConnectionError
        yield b""

    async with HostileRedis(hang_up) as server, opened(server.url) as queues:
        listening = asyncio.create_task(queues.listen(lambda _: None))
        began_at = monotonic()
        # redis-py connects up to four times for each try: these are six tries, with waits of 0.1 to 1.6 s between them,
        # each at least half as long.
        await eventually(lambda: server.connections >= 24)
        await end(listening)
        assert monotonic() - began_at > 1.0


async def test_a_list_of_a_million_queues_of_one_worker_is_not_read(redis_dsn: str, store: JobStore) -> None:
    await ask(store, "ZADD", store.keys.leases, str(2**45), "worker")
    names = "[" + ",".join(["1"] * 1_000_000) + "]"
    await ask(store, "HSET", f"{store.keys.prefix}workers:info:worker", "queues", names)
    async with opened(redis_dsn) as queues:
        seen = await queues.observe({"default": 0.0})
    assert seen.workers["worker"].queues == ()
