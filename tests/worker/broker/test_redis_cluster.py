"""Redis Cluster: three masters, one hash-tagged prefix, fail-overs, and a slot that moves while jobs run."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from commandline import CommandLine
from fleet import running_worker
from jobs_all_the_time import Runs, jobs_all_the_time
from pod import Pod
from redis_cluster import PREFIX, SLOT, RedisCluster
from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Beat, CancelCode, ClaimRequest, WorkerIdentity
from rrq.broker.redis_cluster import MOST_REDIRECTS
from rrq.client import JobRequest, RRQClient
from rrq.cron import CronJob
from rrq.exc import RedisUnavailable
from rrq.job import JobStatus
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.redis.queues import RedisQueues
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rrq.embedded import EmbeddedRedis

# Fail-overs and moves change the one cluster of this file.
pytestmark = pytest.mark.xdist_group("redis cluster")
LEASE_SECONDS = 3.0
LEASE: dict[str, Any] = {"worker_lease_seconds": LEASE_SECONDS, "redis_socket_timeout_seconds": 2.0}


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: RedisCluster) -> RedisCluster:
    whole_cluster.empty()
    return whole_cluster


@pytest.fixture
def runs() -> Runs:
    return Runs()


# Any node may be named


async def test_a_client_that_has_done_nothing_else_cancels_a_job_whichever_node_it_was_named(
    cluster: RedisCluster,
) -> None:
    for node in (cluster.owner, *cluster.others, *cluster.replicas):
        settings = cluster.settings(node)
        async with aclosing(RRQClient(settings)) as producer, aclosing(RRQClient(settings)) as other:
            job = await producer.enqueue("note", _defer_by=3600)
            assert job is not None
            assert await other.cancel(job.id) is CancelCode.CANCELLED


async def test_many_calls_at_once_all_reach_the_node_that_owns_the_slot(cluster: RedisCluster) -> None:
    async with aclosing(RRQClient(cluster.settings())) as client:
        await asyncio.gather(*(client.enqueue("note") for _ in range(50)))
        assert (await client.job_store.observe(["default"])).queues["default"].due == 50


async def test_calls_in_flight_go_on_when_the_slot_has_moved(cluster: RedisCluster) -> None:
    home, target = cluster.owner, cluster.others[0]
    async with aclosing(RRQClient(cluster.settings())) as client:
        await client.enqueue("note")
        cluster.move_slot(target)
        try:
            # The first of them is refused, and so are those behind it, but for the one that needs no slot.
            calls = [client.enqueue("note") for _ in range(20)]
            await asyncio.gather(*calls, client.job_store.read_time())
            assert (await client.job_store.observe(["default"])).queues["default"].due == 21
        finally:
            cluster.move_slot(home)


async def test_everything_that_rrq_does_works_on_a_cluster(cluster: RedisCluster, runs: Runs) -> None:
    settings = cluster.settings(**LEASE)
    async with aclosing(RRQClient(settings)) as client, running_worker(settings, runs.registry):
        store = client.job_store
        jobs = await client.enqueue_many([JobRequest("note")] * 20)
        for job in jobs:
            result = await client.wait_for_completion(job.id)
            assert result is not None
            assert result.status is JobStatus.COMPLETED
        slow = await client.enqueue("note", 60.0)
        assert slow is not None
        await eventually(lambda: slow.id in runs.counts)
        assert await client.cancel(slow.id) is CancelCode.TOLD
        result = await client.wait_for_completion(slow.id)
        assert result is not None
        assert result.status is JobStatus.CANCELLED
        observation = await store.observe(["default"])
        assert len(observation.workers) == 1
        soon = datetime.fromtimestamp(observation.now_ms / 1000, UTC) + timedelta(seconds=1)
        cron_job = CronJob(function_name="note", schedule="* * * * *", next_run_time=soon)
        before = len(runs.counts)

        async def has_fired() -> bool:
            await client.enqueue_cron(cron_job)
            return len(runs.counts) == before + 1

        await eventually(has_fired, message="the cron entry did not fire")
        assert (await store.read_server_facts()).appendonly is False
        # What applications and pages read by the ordinary client.
        assert await store.get_queued_job_ids("default") == []
        assert await store.batch_get_queue_sizes(["default"]) == {"default": 0}
        assert len(await store.get_active_workers()) == 1


async def test_jobs_of_a_worker_that_died_come_back_on_a_cluster(cluster: RedisCluster) -> None:
    settings = cluster.settings(worker_lease_seconds=1, redis_socket_timeout_seconds=2)
    dead, alive = WorkerIdentity("dead", "1"), WorkerIdentity("alive", "1")

    def beat(worker: WorkerIdentity, *, is_registration: bool = False) -> Beat:
        return Beat(worker, 1, ["default"], {}, 60, is_registration)

    async with aclosing(RRQClient(settings)) as client:
        store = client.job_store
        await client.enqueue("note")
        await store.renew_leases([beat(dead, is_registration=True), beat(alive, is_registration=True)])
        claim = await store.claim_jobs(ClaimRequest(dead, "token", ["default"], 1))
        assert len(claim.jobs) == 1

        async def is_reaped() -> bool:
            await store.renew_leases([beat(alive)])
            return bool((await store.reap_workers()).returned)

        await eventually(is_reaped, message="the job was not given back", interval_seconds=0.2)
        assert (await store.observe(["default"])).queues["default"].due == 1


# What listens


async def test_an_operator_hears_of_jobs_also_after_the_node_it_listened_to_has_died(
    cluster: RedisCluster,
) -> None:
    dsn = cluster.settings().redis_dsn
    queues, heard = RedisQueues(RedisIdentity(dsn, PREFIX)), asyncio.Event()
    listening = asyncio.create_task(queues.listen(lambda _: heard.set()))
    async with aclosing(RRQClient(cluster.settings())) as client:

        async def is_heard() -> bool:
            try:
                await client.enqueue("note")
            except RedisUnavailable as error:
                raise AssertionError(str(error)) from error
            return heard.is_set()

        try:
            await eventually(is_heard, message="the operator hears nothing", interval_seconds=0.1)
            assert (await queues.observe({"default": 0.0})).queues["default"].due
            dead = cluster.kill_owner()
            try:
                heard.clear()
                await eventually(
                    is_heard, message="the operator hears nothing any more", interval_seconds=0.1
                )
                assert (await queues.observe({"default": 0.0})).queues["default"].due
            finally:
                cluster.revive(dead)
        finally:
            await end(listening)
            await queues.aclose()


# Rights and advice


async def test_users_with_the_rights_of_the_guide_work_on_a_cluster(
    cluster: RedisCluster, runs: Runs
) -> None:
    guide = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    added = re.findall(r"`(\+\S+)`", guide.partition("on a Redis Cluster add")[2].partition(";")[0])
    for line in re.findall(r"^ACL SETUSER .*$", guide, re.MULTILINE):
        name, *rules = line.replace("rrq:", PREFIX).split()[2:]
        for node in (*cluster.masters, *cluster.replicas):
            cluster.do(node, "ACL SETUSER", name, *rules, *added)
            cluster.do(node, "ACL LOG", "RESET")

    def as_user(name: str) -> RRQSettings:
        settings = cluster.settings()
        url = settings.redis_dsn.replace("//", f"//{name}:PASSWORD@")
        return settings.model_copy(update={"redis_dsn": url})

    queues = RedisQueues(RedisIdentity(as_user("rrq-operator").redis_dsn, PREFIX))
    heard = asyncio.Event()
    listening = asyncio.create_task(queues.listen(lambda _: heard.set()))
    try:
        async with aclosing(RRQClient(as_user("rrq-producer"))) as client:

            async def is_heard() -> bool:
                await client.enqueue("note")
                return heard.is_set()

            await eventually(is_heard, message="the operator hears nothing", interval_seconds=0.1)
            assert (await queues.observe({"default": 0.0})).queues["default"].due
            async with running_worker(as_user("rrq-worker"), runs.registry):
                job = await client.enqueue("note")
                assert job is not None
                assert await client.wait_for_completion(job.id)
                assert await client.job_store.get_job_definition(job.id)
                assert await client.cancel(job.id) is CancelCode.ENDED
    finally:
        await end(listening)
        await queues.aclose()
    entries = [entry for node in cluster.masters for entry in cluster.do(node, "ACL LOG")]
    refused = {str(entry[entry.index("object") + 1]) for entry in entries}
    # Asked for and done without, as on a single Redis.
    assert refused <= {"client|setinfo", "config|get", "client", "config"}


async def test_the_check_tells_where_in_the_cluster_the_jobs_are(cluster: RedisCluster) -> None:
    commands = CommandLine(cluster.settings().redis_dsn)
    commands.environment["RRQ_KEY_PREFIX"] = PREFIX
    told = (await commands.run("check")).stderr
    assert f"in slot {SLOT}, on node 127.0.0.1:{cluster.owner.port} with 2 replica(s)" in told
    assert "has no replica" not in told
    home, alone = cluster.owner, cluster.others[0]
    cluster.move_slot(alone)
    try:
        assert f"Node 127.0.0.1:{alone.port} of the Redis Cluster" in (await commands.run("check")).stderr
    finally:
        cluster.move_slot(home)


async def test_the_check_tells_which_url_a_cluster_needs(cluster: RedisCluster) -> None:
    for prefix in (PREFIX, "rrq:"):
        commands = CommandLine(cluster.others[0].dsn)
        commands.environment["RRQ_KEY_PREFIX"] = prefix
        assert "needs redis+cluster:// in redis_dsn" in (await commands.run("check")).stderr


# Fail-overs


async def test_jobs_go_on_when_a_replica_takes_over_from_its_master(
    cluster: RedisCluster, runs: Runs
) -> None:
    async with jobs_all_the_time(cluster.settings(**LEASE), runs) as producer:
        for _ in range(2):
            await asyncio.to_thread(cluster.hand_over)
            await producer.has_made(50)


@pytest.mark.slow
async def test_jobs_go_on_when_their_master_is_killed(cluster: RedisCluster, runs: Runs) -> None:
    # Acknowledged when a replica has them: one that had not could not give them back.
    settings = cluster.settings(**LEASE, durability="replica", durability_wait_seconds=20)
    async with jobs_all_the_time(settings, runs) as producer:
        dead = await asyncio.to_thread(cluster.kill_owner)
        try:
            await producer.has_made(50)
        finally:
            cluster.revive(dead)


@pytest.mark.slow
async def test_a_pod_keeps_its_jobs_and_hears_orders_after_a_fail_over(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    settings = cluster.settings(**LEASE)
    with Pod(settings.redis_dsn, tmp_path, "--num-workers", "1", key_prefix=PREFIX, **LEASE) as pod:
        async with aclosing(RRQClient(settings)) as client:
            await pod.is_up()
            long = await client.enqueue("note", LEASE_SECONDS + 2.0)
            told = await client.enqueue("note", 600.0)
            assert long is not None
            assert told is not None
            await pod.has_started(2)
            dead = await asyncio.to_thread(cluster.kill_owner)
            try:
                await eventually(lambda: has_ended(client, long.id, JobStatus.COMPLETED), 30)
                assert await client.cancel(told.id) is CancelCode.TOLD
                await eventually(lambda: has_ended(client, told.id, JobStatus.CANCELLED), 30)
            finally:
                cluster.revive(dead)
    assert pod.ledger.counts("started") == {long.id: 1, told.id: 1}


async def has_ended(client: RRQClient, job_id: str, status: JobStatus) -> bool:
    try:
        result = await client.get_job_status(job_id)
    except RedisUnavailable as error:
        raise AssertionError(str(error)) from error
    return result is not None and result.status is status


@pytest.mark.slow
async def test_a_master_that_hangs_is_left_for_the_replica_that_took_over(cluster: RedisCluster) -> None:
    async with aclosing(JobStore(cluster.settings(redis_socket_timeout_seconds=0.5))) as store:
        await store.observe(["default"])
        hung = cluster.owner
        hung.pause()
        try:

            async def is_found() -> bool:
                try:
                    await store.observe(["default"])
                except REDIS_ERRORS as error:
                    raise AssertionError(repr(error)) from error
                return True

            await eventually(is_found, 20, "the node that hangs is asked again and again")
        finally:
            hung.resume()
    cluster.wait_until_replicated()


# A slot that moves


@pytest.mark.slow
async def test_jobs_run_once_each_while_their_slot_moves_to_another_node(
    cluster: RedisCluster, runs: Runs
) -> None:
    home, target = cluster.owner, cluster.others[0]
    async with jobs_all_the_time(cluster.settings(**LEASE), runs) as producer:
        long = await producer.client.enqueue("note", LEASE_SECONDS + 2.0)
        assert long is not None
        await eventually(lambda: long.id in runs.counts)
        # The first move is longer than a lease, all of which end in it, and than any call waits.
        for node, seconds in ((target, LEASE_SECONDS + 0.5), (home, 0.5)):
            ends_at = time.monotonic() + seconds
            cluster.begin_move(node)
            moved = 0
            while (
                count := await asyncio.to_thread(cluster.move_keys, node, 5)
            ) or time.monotonic() < ends_at:
                moved += count
                await asyncio.sleep(0.02)
            cluster.end_move(node)
            assert moved > 50
            await producer.has_made(50)


async def test_no_script_runs_on_a_slot_that_is_half_moved(cluster: RedisCluster) -> None:
    """It would find the queue without its jobs, or the jobs without their queue."""
    home, target = cluster.owner, cluster.others[0]
    worker = WorkerIdentity("w", "1")
    settings = cluster.settings(redis_socket_timeout_seconds=0.3)
    async with aclosing(RRQClient(settings)) as client:
        store = client.job_store
        jobs = await client.enqueue_many([JobRequest("note")] * 10)
        await store.renew_leases([Beat(worker, 10, ["default"], {}, 60, is_registration=True)])
        request = ClaimRequest(worker, "token", ["default"], 10)
        # What a claim declares of its keys goes first, so that Redis by itself would let it run.
        first = [store.keys.queue_key("default"), store.keys.leases, store.keys.guard]
        cluster.begin_move(target)
        cluster.move_keys(target, 0, *first)
        while True:
            with pytest.raises(RedisConnectionError, match="is moving to another node"):
                await store.claim_jobs(request)
            with pytest.raises(RedisUnavailable, match="is moving to another node"):
                await client.cancel(jobs[0].id)
            if not cluster.move_keys(target, 8):
                break
        cluster.end_move(target)
        try:
            assert len((await store.claim_jobs(request)).jobs) == 10
        finally:
            cluster.move_slot(home)


# What cannot work


async def test_a_url_that_does_not_say_cluster_is_refused_before_a_script_runs(cluster: RedisCluster) -> None:
    """A node of Valkey 9.1 that runs one with keys of two slots fails the scripts of all other clients, too."""
    for node, prefix in ((cluster.others[0], PREFIX), (cluster.owner, "rrq:")):
        settings = RRQSettings(redis_dsn=node.dsn, key_prefix=prefix)
        async with aclosing(JobStore(settings)) as store:
            with pytest.raises(
                ResponseError, match=r"part of a Redis Cluster, which needs redis\+cluster://"
            ):
                await store.observe(["default"])
    node = cluster.others[0]
    assert cluster.do(node, "EVAL", "return redis.call('TIME')", 0)


async def test_a_redis_that_is_no_cluster_is_not_taken_for_one(own_redis: EmbeddedRedis) -> None:
    settings = RRQSettings(redis_dsn=own_redis.dsn.replace("redis", "redis+cluster", 1), key_prefix=PREFIX)
    async with aclosing(JobStore(settings)) as store:
        with pytest.raises(ResponseError, match="cluster support disabled"):
            await store.observe(["default"])


async def test_nodes_that_point_to_each_other_are_given_up_after_five_redirects() -> None:
    refused = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        while line := await reader.readline():
            if line == b"CLIENT\r\n":
                writer.write(b"+OK\r\n")
            elif line == b"SLOTS\r\n":
                here = b"*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n" % port
                writer.write(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + here)
            elif line == b"TIME\r\n":
                refused += 1
                writer.write(b"-MOVED 3808 127.0.0.1:%d\r\n" % port)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        settings = RRQSettings(redis_dsn=f"redis+cluster://127.0.0.1:{port}", key_prefix=PREFIX)
        async with aclosing(JobStore(settings)) as store:
            with pytest.raises(RedisConnectionError, match="slot 3808 of the Redis Cluster moved to"):
                await store.read_time()
    assert refused == 1 + MOST_REDIRECTS
