"""The operator and Redis: how often it asks, with whose credentials, and what it does while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import re
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kubernetes.aio.client import ApiClient, AppsV1Api, CoreV1Api
from redis.asyncio import Redis

from burst_runs import holds
from pools import build_pool
from rrq import RRQClient, RRQSettings
from rrq.client import JobRequest
from rrq_operator.cluster import redis_sources
from rrq_operator.cluster.cluster_cache import ClusterCache, parse_record
from rrq_operator.cluster.kube import Kube
from rrq_operator.control.leader import Leader
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.services import Services
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fake_node import FakeNode
    from operator_process import RunningOperator
    from pools import PoolDesk
    from rrq.embedded import EmbeddedRedis

SECRET = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
REACHABLE = ("True", "Reachable")


@pytest.fixture
def operator(start_operator: Callable[..., RunningOperator]) -> RunningOperator:
    """One operator that acts at once."""
    return start_operator(no_leader_election="")


@pytest.fixture
async def admin(own_redis: EmbeddedRedis) -> AsyncIterator[Redis]:
    """The server of the test, by its first user."""
    async with Redis.from_url(own_redis.dsn) as connection:
        yield connection


async def clients(admin: Redis) -> list[dict[str, str]]:
    """Return all connections but our own."""
    listed: Any = await admin.client_list()
    # Redis 6.2 names the command alone.
    return [entry for entry in listed if entry["cmd"] not in ("client|list", "client")]


def read_replicas(api_client: ApiClient, desk: PoolDesk) -> Callable[[], Awaitable[int]]:
    """Return a way of asking for the replicas that takes milliseconds, unlike kubectl."""
    apps = AppsV1Api(api_client)

    async def read() -> int:
        scale = await apps.read_namespaced_deployment_scale("emails", desk.namespace)
        assert scale.spec is not None
        return scale.spec.replicas or 0

    return read


async def reach(read: Callable[[], Awaitable[int]], replicas: int, seconds: float) -> None:
    async def has_reached() -> bool:
        return await read() == replicas

    await eventually(has_reached, seconds, f"{replicas} replicas are asked for", interval_seconds=0.005)


# How often


async def test_redis_is_asked_once_a_second_however_many_pools_there_are(
    desk: PoolDesk, operator: RunningOperator, own_redis: EmbeddedRedis, admin: Redis
) -> None:
    names = [f"pool-{number}" for number in range(8)]
    desk.apply(*(build_pool(name, queues=[name], redis={"url": own_redis.dsn}) for name in names))
    for name in names:
        await eventually(lambda: desk.condition("Ready", name)[:2] == ("True", "AtZero"), 60)  # noqa: B023  awaited here

    async def are_two() -> bool:
        return len(await clients(admin)) == 2

    await eventually(are_two, 30, "one connection for calls, one for announcements, for all pools")

    async def count_scripts() -> int:
        stats: Any = await admin.info("commandstats")
        return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))

    async def is_calm() -> bool:
        before, began = await count_scripts(), monotonic()
        await eventually(lambda: monotonic() - began >= 3)
        return 2 <= await count_scripts() - before <= 4

    await eventually(is_calm, 60, "three rounds in three seconds, not twenty-four")


async def test_an_announcement_is_acted_on_before_the_poll(
    desk: PoolDesk,
    operator: RunningOperator,
    fake_node: FakeNode,
    api_client: ApiClient,
    client: RRQClient,
    redis_dsn: str,
) -> None:
    read = read_replicas(api_client, desk)
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"scaleDown": {"windowSeconds": 0}}))
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "AtZero"), 60)
    for _ in range(2):
        await client.enqueue_many([JobRequest("greet") for _ in range(30)])
        await reach(read, 3, 30)
        await client.job_store.redis.delete("rrq:queue:default")
        await reach(read, 0, 10)
        await eventually(lambda: not desk.read_all("pods"), 60)
        await eventually(lambda: desk.condition("Ready")[:2] == ("True", "AtZero"), 30)
    found = re.search(r"reaction_seconds_count (\d+)", (await operator.get("/metrics"))[1])
    assert found is not None
    # A poll that happens to come first is counted for none.
    assert int(found[1]) >= 1, "it was not woken"


# With whose credentials


async def test_pools_of_two_users_are_each_read_with_their_own_credentials(
    desk: PoolDesk, operator: RunningOperator, own_redis: EmbeddedRedis, admin: Redis
) -> None:
    for user in ("anna", "bert"):
        await admin.execute_command(  # type: ignore[no-untyped-call]  # redis-py leaves it without types
            "ACL",
            "SETUSER",
            user,
            "on",
            f">{user}-word",
            f"~{user}:*",
            # Redis 6.2 gives a new user all channels, and then takes no pattern.
            "resetchannels",
            f"&{user}:*",
            "+@all",
            "-@dangerous",
            "+info",
        )
        desk.add_secret(user, url=f"redis://{user}:{user}-word@127.0.0.1:{own_redis.port}/0")
    # The third one has the word of one and wants to read the other.
    for name, user, prefix in (("a", "anna", "anna"), ("b", "bert", "bert"), ("c", "anna", "bert")):
        source = {"urlFrom": {"secretKeyRef": {"name": user, "key": "url"}}, "keyPrefix": f"{prefix}:"}
        desk.apply(build_pool(name, redis=source))
    for name, user in (("a", "anna"), ("b", "bert")):
        await eventually(lambda: desk.condition("QueueReachable", name)[:2] == REACHABLE, 60)  # noqa: B023  awaited here
        async with Redis.from_url(own_redis.dsn, username=user, password=f"{user}-word") as producer:
            await producer.zadd(f"{user}:queue:default", {"job": 0})
        await eventually(lambda: desk.replicas(name) == 1, 30)  # noqa: B023  awaited here
    await eventually(lambda: desk.condition("QueueReachable", "c")[1] == "AuthenticationFailed", 60)
    assert f"Secret {desk.namespace}/anna" in desk.condition("QueueReachable", "c")[2]
    assert desk.replicas("c") in (0, None)

    async def are_named() -> bool:
        return {entry["user"] for entry in await clients(admin)} == {"anna", "bert"}

    # Every connection is the default user's until its first command, and pool c is tried again and again.
    await eventually(are_named, 30, "a connection stays open as another user")
    # What was refused was asked by the third one alone: nobody else reached for keys of another.
    log: Any = await admin.acl_log()
    # Redis 6.2 knows no part of CLIENT that is allowed to everybody, not even for saying which library this is.
    refused = [entry for entry in log if entry["object"] != "client"]
    assert {(entry["username"], entry["object"].startswith("bert:")) for entry in refused} == {("anna", True)}


async def test_a_rotated_password_reconnects_rolls_the_pods_and_is_never_shown(
    desk: PoolDesk, operator: RunningOperator, own_redis: EmbeddedRedis, admin: Redis
) -> None:
    old, new, wrong = (f"word-{uuid4().hex}" for _ in range(3))

    def url(password: str) -> str:
        return f"redis://:{password}@127.0.0.1:{own_redis.port}/0"

    await admin.config_set("requirepass", old)
    desk.add_secret("redis", url=url(wrong))
    desk.apply(build_pool(redis=SECRET))
    await eventually(lambda: desk.condition("QueueReachable")[:2] == ("False", "AuthenticationFailed"), 60)
    assert f"Secret {desk.namespace}/redis" in desk.condition("QueueReachable")[2]

    desk.add_secret("redis", url=url(old))
    await eventually(lambda: desk.condition("QueueReachable")[:2] == REACHABLE, 30, "the correction is found")
    client = RRQClient(RRQSettings(redis_dsn=url(old)))
    await client.enqueue_many([JobRequest("greet") for _ in range(20)])
    await eventually(lambda: desk.replicas() == 2, 30)

    def read_version() -> str:
        template = desk.get("deployment", "emails")["spec"]["template"]
        return str(template["metadata"]["annotations"]["rrq.dev/redis-secret-version"])

    before = read_version()
    desk.kubectl("delete", "secret", "redis")
    desk.add_secret("redis", url=url(old))

    def is_noted() -> bool:
        return "rrq.dev/redis-secret-digest" in desk.get("deployment", "emails")["metadata"]["annotations"]

    await eventually(is_noted, 30, "the operator has seen the Secret that was made anew")
    operator.kill()
    operator.start()
    await client.enqueue_many([JobRequest("greet") for _ in range(10)])
    await client.close()
    await eventually(lambda: desk.replicas() == 3, 60, "the next operator sizes the pool")
    await holds(lambda: read_version() == before, 4, "the same password rolls no pod")
    await admin.config_set("requirepass", new)
    await admin.client_kill_filter(_type="normal", skipme=True)
    await admin.client_kill_filter(_type="pubsub")
    await eventually(lambda: desk.condition("QueueReachable")[:2] == ("False", "AuthenticationFailed"), 30)
    assert desk.replicas() == 3
    # A Secret in doubt is read every two seconds.
    desk.kubectl("annotate", "secret", "redis", "team=shop")
    await holds(lambda: read_version() == before, 4, "an annotation rolls no pod")
    desk.add_secret("redis", url=url(new))
    await eventually(lambda: desk.condition("QueueReachable")[:2] == REACHABLE, 30, "it reconnects")
    await eventually(lambda: read_version() != before, 30, "the pods roll")
    assert desk.replicas() == 3
    assert await admin.zcard("rrq:queue:default") == 30

    shown = desk.kubectl("get", "rrqpool,deployment,events,pdb,replicaset", "--output=yaml")
    shown += desk.kubectl("describe", "rrqpool")
    shown += operator.log + (await operator.get("/metrics"))[1]
    for password in (old, new, wrong):
        assert password not in shown


async def test_after_fifty_rotations_there_are_no_more_connections_and_tasks_than_before(
    desk: PoolDesk,
    api_client: ApiClient,
    own_redis: EmbeddedRedis,
    admin: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_sources, "_REFRESH_SECONDS", 0.0)
    passwords = [f"word-{number}" for number in range(50)]
    await admin.execute_command(  # type: ignore[no-untyped-call]  # redis-py leaves it without types
        "ACL",
        "SETUSER",
        "app",
        "on",
        "~*",
        "allchannels",
        "+@all",
        *(f">{password}" for password in passwords),
    )
    urls = [f"redis://app:{password}@127.0.0.1:{own_redis.port}/0" for password in passwords]
    desk.add_secret("redis", url=urls[0])
    desk.apply(build_pool(redis=SECRET))
    core = CoreV1Api(api_client)
    async with Kube(api_client.configuration) as kube, contextlib.AsyncExitStack() as stack:
        cluster_cache = ClusterCache()
        cluster_cache.set_pool(parse_record(desk.get("rrqpool", "emails")))
        leader = Leader(Services(kube, cluster_cache, Metrics()), desk.namespace)
        task = asyncio.create_task(leader.run())
        stack.push_async_callback(end, task)

        async def is_connected() -> bool:
            return len(await clients(admin)) == 2

        async def rotate(url: str) -> None:
            before = {entry["id"] for entry in await clients(admin)}
            await core.patch_namespaced_secret("redis", desk.namespace, {"stringData": {"url": url}})

            async def has_moved() -> bool:
                return not before & {entry["id"] for entry in await clients(admin)}

            await eventually(has_moved, 30)
            await eventually(is_connected, 30, "the old connections are closed and the new ones open")

        await eventually(is_connected, 30)
        await rotate(urls[1])
        tasks = len(asyncio.all_tasks())
        for url in urls[2:]:
            cluster_cache.pools_changed.set()  # the next round at once
            await rotate(url)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2, 30, "no task is left behind")
        await end(task)

        async def is_forgotten() -> bool:
            return await clients(admin) == []

        await eventually(is_forgotten, message="Redis still has a connection")


# While it is away


async def test_sizes_stay_while_redis_is_away_and_follow_the_queues_afterwards(
    desk: PoolDesk, operator: RunningOperator, make_redis: Callable[..., EmbeddedRedis]
) -> None:
    server = make_redis(appendonly=True)
    client = RRQClient(RRQSettings(redis_dsn=server.dsn))
    await client.enqueue_many([JobRequest("greet") for _ in range(40)])
    desk.apply(build_pool(redis={"url": server.dsn}, scaling={"scaleDown": {"windowSeconds": 0}}))
    await eventually(lambda: desk.replicas() == 4, 60)
    for take_away, bring_back in ((server.kill, server.start), (server.pause, server.resume)):
        take_away()
        await eventually(lambda: desk.condition("QueueReachable")[:2] == ("False", "Unreachable"), 30)
        await holds(lambda: desk.replicas() == 4, 4, "the size stays")
        assert "due" not in desk.status(), "what is not known is not shown"
        assert "rrq_operator_due_jobs{" not in (await operator.get("/metrics"))[1]
        bring_back()
        await eventually(lambda: desk.condition("QueueReachable")[:2] == REACHABLE, 30, "it comes back")
        assert desk.replicas() == 4
    await client.close()
    assert re.search(r'redis_errors_total\{reason="Unreachable"\} \d', (await operator.get("/metrics"))[1])


async def test_a_key_of_the_wrong_type_keeps_the_size_and_is_a_condition(
    desk: PoolDesk, operator: RunningOperator, client: RRQClient, redis_dsn: str
) -> None:
    await client.enqueue_many([JobRequest("greet") for _ in range(20)])
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"scaleDown": {"windowSeconds": 0}}))
    await eventually(lambda: desk.replicas() == 2, 60)
    await client.job_store.redis.set("rrq:queue:default", "not a queue")
    await eventually(lambda: desk.condition("QueueReachable")[:2] == ("False", "WrongType"), 30)
    await holds(lambda: desk.replicas() == 2, 2, "the size stays")
    await client.job_store.redis.delete("rrq:queue:default")
    await eventually(lambda: desk.condition("QueueReachable")[:2] == REACHABLE, 30)
