"""The ways to run Redis: TLS, ACL users, Unix sockets, Sentinel. Each runs real jobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from certificates import make_certificates
from embedded_sentinel import EmbeddedSentinel
from fleet import all_done, running_worker
from proxy import RedisProxy
from rrq.client import JobRequest, RRQClient
from rrq.exc import RedisUnavailable, SettingsError
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis


async def double(ctx: dict[str, Any], number: int) -> int:
    return 2 * number


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.register("double", double)
    return registry


async def run_some_jobs(settings: RRQSettings, registry: JobRegistry) -> RRQClient:
    client = RRQClient(settings)
    async with running_worker(settings, registry):
        jobs = await client.enqueue_many([JobRequest("double", args=(n,)) for n in range(20)])
        for number, job in enumerate(jobs):
            result = await client.wait_for_completion(job.id)
            assert result is not None
            assert result.result == 2 * number
        assert len((await client.job_store.observe(["default"])).workers) == 1
    return client


async def test_jobs_run_over_tls_with_a_verified_certificate(
    own_redis: EmbeddedRedis, registry: JobRegistry, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    async with RedisProxy(own_redis.port, tls=certificates.server_context) as proxy:
        settings = RRQSettings(redis_dsn=proxy.dsn, redis_tls_ca_file=str(certificates.authority_file))
        client = await run_some_jobs(settings, registry)
        await client.close()


async def test_a_server_whose_certificate_nobody_vouches_for_is_refused(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    async with RedisProxy(own_redis.port, tls=certificates.server_context) as proxy:
        client = RRQClient(RRQSettings(redis_dsn=proxy.dsn))
        with pytest.raises(RedisUnavailable, match="certificate verify failed"):
            await client.enqueue("double", 1)
        await client.close()


async def test_jobs_run_for_an_acl_user_that_may_touch_only_its_prefix(
    own_redis: EmbeddedRedis, registry: JobRegistry
) -> None:
    admin = RRQClient(RRQSettings(redis_dsn=own_redis.dsn))
    rules = [
        "on",
        ">se:cr/et",
        "~shop:*",
        "resetchannels",
        "&shop:*",
        "+@all",
        "-@admin",
        "-@dangerous",
        "+info",
    ]
    await admin.job_store.connection.call("ACL", "SETUSER", "worker", *rules)
    dsn = f"redis://worker:se%3Acr%2Fet@127.0.0.1:{own_redis.port}/0"
    settings = RRQSettings(redis_dsn=dsn, key_prefix="shop:")
    client = await run_some_jobs(settings, registry)
    keys = [key async for key in admin.job_store.redis.scan_iter()]
    assert keys
    assert all(key.startswith(b"shop:") for key in keys)
    await client.close()
    await admin.close()


async def test_jobs_run_over_a_unix_socket(
    make_redis: Callable[..., EmbeddedRedis], registry: JobRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "redis.sock"
    make_redis(extra_args=["--unixsocket", str(path)])
    client = await run_some_jobs(RRQSettings(redis_dsn=f"unix://{path}?db=0"), registry)
    await client.close()


async def test_a_sentinel_that_is_gone_costs_no_time(own_redis: EmbeddedRedis) -> None:
    with EmbeddedSentinel(own_redis) as sentinel:
        async with RedisProxy(sentinel.port) as gone:
            gone.refuse = True
            dsn = f"redis+sentinel://127.0.0.1:{gone.port},127.0.0.1:{sentinel.port}/mymaster/0"
            async with aclosing(JobStore(RRQSettings(redis_dsn=dsn))) as store:
                assert await store.connection.call("PING") == b"PONG"
            # By itself redis-py would ask it ten times over seconds before it asks the next one.
            assert 1 <= gone.connections_made <= 3


@pytest.mark.slow
async def test_a_sentinel_fail_over_is_followed_by_workers_and_producers(
    make_redis: Callable[..., EmbeddedRedis], registry: JobRegistry
) -> None:
    master = make_redis()
    replica = make_redis(extra_args=["--replicaof", "127.0.0.1", str(master.port)])
    with EmbeddedSentinel(master) as sentinel:
        dsn = f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster/0"
        settings = RRQSettings(redis_dsn=dsn)
        client = RRQClient(settings)
        async with running_worker(settings, registry):
            jobs = await client.enqueue_many([JobRequest("double", args=(n,)) for n in range(10)])
            await all_done(client.job_store, jobs)
            replica_client = RRQClient(RRQSettings(redis_dsn=replica.dsn))

            async def replica_is_known() -> bool:
                info = await replica_client.job_store.redis.info("replication")
                return bool(info["master_link_status"] == "up")

            await eventually(replica_is_known, 20, "the replica did not follow")

            async def sentinel_fails_over() -> bool:
                reader, writer = await asyncio.open_connection("127.0.0.1", sentinel.port)
                writer.write(b"SENTINEL FAILOVER mymaster\r\n")
                answer = await reader.readline()
                writer.close()
                return answer.startswith(b"+OK")

            await eventually(sentinel_fails_over, 30, "Sentinel would not fail over", interval_seconds=0.5)

            async def enqueued_after() -> bool:
                try:
                    jobs[:] = await client.enqueue_many([JobRequest("double", args=(n,)) for n in range(10)])
                except ConnectionError:
                    return False
                info = await replica_client.job_store.redis.info("replication")
                return bool(info["role"] == "master")

            await eventually(enqueued_after, 30, "the producer did not follow", interval_seconds=0.2)
            await all_done(client.job_store, jobs)
            await replica_client.close()
        await client.close()


def test_a_dsn_that_cannot_work_is_refused_with_a_hint() -> None:
    for dsn, complaint in (
        ("http://127.0.0.1", "scheme 'http'"),
        ("redis+sentinel://127.0.0.1:1", "names no Sentinel host"),
        ("redis+cluster://127.0.0.1:1", "no hash tag"),
    ):
        with pytest.raises(SettingsError, match=complaint):
            RRQClient(RRQSettings(redis_dsn=dsn))
