"""The rights that SECURITY.md recommends for Redis users: enough for everything we do, and for nothing else."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from fleet import all_done
from pod import Pod
from queue_steps import start_worker
from rrq import RRQClient, RRQSettings
from rrq.broker.messages import DeathCertificate, WorkerIdentity
from rrq.broker.scripts import load_script
from rrq.client import JobRequest
from rrq.cron import CronJob
from rrq.exc import SettingsError
from rrq.flow import Limit, PoolReport
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.decide.deaths import Deaths
from rrq_operator.decide.publishing import Publication
from rrq_operator.redis.queues import RedisQueues
from running import end
from uncounted import UNCOUNTED
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.embedded import EmbeddedRedis

GUIDE = Path(__file__).parents[2] / "SECURITY.md"
RECIPES = {
    words[0]: words[1:] for words in (line.split()[2:] for line in re.findall(r"^ACL SETUSER .*$", GUIDE.read_text(), re.MULTILINE))
}  # fmt: skip
#: Which scripts each role runs; the commands it sends by itself are found out by running it.
SCRIPTS = {
    "rrq-producer": ("enqueue_jobs", "watch_job", "cancel_job", "close_batch"),
    "rrq-worker": (
        *(
            "enqueue_jobs",
            "watch_job",
            "cancel_job",
            "claim_jobs",
            "finish_jobs",
            "renew_leases",
            "reap_workers",
        ),
        *("reconcile_worker", "deregister_worker", "leave_trace", "note_cron_entries", "fire_cron"),
        *(
            "publish_cron_table",
            "release_lock",
            "release_unique",
            "retry_job",
            "observe_queues",
            "close_batch",
        ),
        *("publish_limits", "note_progress"),
    ),
    "rrq-operator": (
        *("observe_queues", "admit_jobs", "note_cron_entries", "fire_cron", "reap_workers", "shorten_leases"),
        "publish_pools",
    ),
}
#: Asked for and done without: who is connected, and a warning about persistence.
#: Redis 6.2 names the command alone.
OPTIONAL = {"client|setinfo", "config|get", "client", "config"}
FORBIDDEN = [
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "SET", "save", ""), ("CONFIG", "GET", "*"),
    ("DEBUG", "SLEEP", "0"), ("SHUTDOWN", "NOSAVE"), ("MONITOR",), ("SCRIPT", "FLUSH"), ("ACL", "LIST"),
    ("CLIENT", "LIST"), ("CLIENT", "KILL", "ID", "1"), ("REPLICAOF", "NO", "ONE"), ("SWAPDB", "0", "1"), ("SAVE",),
    ("BGSAVE",), ("RESTORE", "rrq:job:x", "0", "x"), ("MIGRATE", "h", "1", "k", "0", "1"), ("DUMP", "rrq:job:x"),
    ("SORT", "rrq:job:x"), ("MODULE", "LIST"), ("SELECT", "1"), ("RANDOMKEY",), ("MOVE", "rrq:job:x", "1"),
    ("GET", "somebody:else"), ("SET", "somebody:else", "1"), ("DEL", "somebody:else"), ("GET", "rrq"),
    ("PUBLISH", "somebody", "x"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ("EVAL", "return redis.call('GET', 'somebody:else')", "0"),
    ("EVAL", "return redis.call('CONFIG', 'GET', 'requirepass')", "0"),
]  # fmt: skip
FORBIDDEN_TO_PRODUCERS = [
    ("LPUSH", "rrq:dlq:default", "x"), ("ZADD", "rrq:workers:lease", "1", "x"), ("HSET", "rrq:guard", "a", "b"),
    ("SET", "rrq:drain:pod", "1"), ("HSET", "rrq:workers:info:x", "a", "b"), ("HSET", "rrq:cron:table:x", "a", "b"),
    ("SET", "rrq:lock:job:x", "1"), ("BLPOP", "rrq:wake:rrq:queue:default", "1"), ("DEL", "rrq:counters"),
]  # fmt: skip


@pytest.fixture
def server(make_redis: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A Redis with the three users of the guide, and one for this test."""
    server = make_redis()
    with redis.Redis.from_url(server.dsn) as admin:
        for name, rules in RECIPES.items():
            admin.execute_command("ACL", "SETUSER", name, *rules)
        admin.execute_command("ACL", "LOG", "RESET")
    return server


def as_user(server: EmbeddedRedis, name: str) -> str:
    return server.dsn.replace("redis://", f"redis://{name}:PASSWORD@")


def refusals(server: EmbeddedRedis) -> set[str]:
    """What was asked for and refused, other than what one can do without."""
    with redis.Redis.from_url(server.dsn) as admin:
        entries: list[dict[str, Any]] = admin.acl_log()
    return {
        f"{entry['username']}: {entry['reason']} {entry['object']}"
        for entry in entries
        if entry["object"].lower() not in OPTIONAL
    }


def test_every_command_in_a_script_of_a_role_is_allowed() -> None:
    assert RECIPES.keys() == SCRIPTS.keys()
    for role, scripts in SCRIPTS.items():
        used = {
            command.lower()
            for script in scripts
            for command in re.findall(r"(?:redis\.p?call|sure|try)\('([A-Z]+)'", load_script(script).source)
        }
        assert used <= {rule[1:] for rule in RECIPES[role] if rule.startswith("+")}, role


def test_nothing_else_is_allowed(server: EmbeddedRedis) -> None:
    refused = (NoPermissionError, redis.ResponseError)
    for role in SCRIPTS:
        with redis.Redis.from_url(as_user(server, role)) as connection:
            for command in [*FORBIDDEN, *(FORBIDDEN_TO_PRODUCERS if role == "rrq-producer" else ())]:
                with pytest.raises(refused, match=r"(?i)permission|not allowed|can't"):
                    connection.execute_command(*command)


async def test_a_producer_may_do_what_producers_do(server: EmbeddedRedis) -> None:
    client = RRQClient(RRQSettings(redis_dsn=as_user(server, "rrq-producer")))
    try:
        job = await client.enqueue("f", 1, _unique_key="once", _job_id="chosen")
        again = await client.enqueue("f", 1, _unique_key="once", _job_id="chosen", _queue_name="other")
        late = await client.enqueue("f", _defer_by=60)
        assert job is not None
        assert again is not None
        assert late is not None
        await client.enqueue_many([JobRequest("f")] * 50)
        assert await client.get_job_status(job.id)
        assert await client.wait_for_completion(job.id, timeout_seconds=0.1) is None
        assert await client.job_store.get_job_definition(job.id)
        assert (await client.cancel(job.id)).name
    finally:
        await client.close()
    assert refusals(server) == set()


@pytest.mark.parametrize("durability", ["replica", "fsync"])
async def test_a_producer_that_waits_until_jobs_are_safe_needs_the_rights_that_the_guide_adds(
    make_redis: Callable[..., EmbeddedRedis], durability: str
) -> None:
    server = make_redis(appendonly=True)
    with redis.Redis.from_url(server.dsn) as admin:
        version = tuple(map(int, admin.info("server")["redis_version"].split(".")))
        if durability == "replica":
            rights = "+wait"
            make_redis(extra_args=("--replicaof", "127.0.0.1", str(server.port)))
        else:
            rights = "+waitaof" if version >= (7, 2) else "+config|get"
        assert f"`{rights}`" in GUIDE.read_text()
        admin.execute_command("ACL", "SETUSER", "rrq-producer", *RECIPES["rrq-producer"])
        refused = await _enqueue_durably(server, durability)
        assert isinstance(refused, SettingsError)
        assert f"durability '{durability}'" in str(refused)
        assert not admin.exists("rrq:queue:default"), "nothing is queued that cannot be confirmed"
        admin.execute_command("ACL", "SETUSER", "rrq-producer", rights)
    assert await _enqueue_durably(server, durability) is None


async def _enqueue_durably(server: EmbeddedRedis, durability: str) -> Exception | None:
    """Enqueue one job; returns what went wrong."""
    settings = RRQSettings(
        redis_dsn=as_user(server, "rrq-producer"), durability=durability, durability_wait_seconds=20
    )
    client = RRQClient(settings)
    try:
        await client.enqueue("f")
    except Exception as error:  # noqa: BLE001  looked at by the caller
        return error
    finally:
        await client.close()
    return None


@pytest.mark.slow
async def test_a_pod_may_do_what_pods_do(server: EmbeddedRedis, tmp_path: Path) -> None:
    client = RRQClient(RRQSettings(redis_dsn=as_user(server, "rrq-producer")))
    store = client.job_store
    quick: dict[str, Any] = {"worker_lease_seconds": 6, "unknown_function_patience_seconds": 1}
    with Pod(
        as_user(server, "rrq-worker"), tmp_path, "--num-workers", "1", environment=UNCOUNTED, **quick
    ) as pod:
        await pod.is_up()
        jobs = await client.enqueue_many([JobRequest("note")] * 20)
        await all_done(store, jobs)
        killer = await client.enqueue("kill_process")
        failing = await client.enqueue("nobody_knows_this")
        assert killer is not None
        assert failing is not None
        await eventually(lambda: _has_ended(client, killer.id), 60, "the killer is still at large")
        await eventually(
            lambda: _has_ended(client, failing.id), 30, "the unknown function is not dead-lettered"
        )
        # Only now: had it been started before the killer came back, that would have to wait for its end.
        slow = await client.enqueue("note", 60.0)
        assert slow is not None
        await eventually(lambda: slow.id in pod.ledger.counts("started"), 30)
        await client.cancel(slow.id)
        await eventually(lambda: _has_ended(client, slow.id), 30, "the slow job was not cancelled")
        await all_done(store, await client.enqueue_many([JobRequest("note")] * 5))
    await client.close()
    assert refusals(server) == set()


async def _has_ended(client: RRQClient, job_id: str) -> bool:
    result = await client.get_job_status(job_id)
    return result is not None and result.status in ("COMPLETED", "FAILED", "CANCELLED")


async def test_an_operator_may_do_what_operators_do(server: EmbeddedRedis) -> None:
    producer = RRQClient(RRQSettings(redis_dsn=as_user(server, "rrq-producer")))
    queues = RedisQueues(RedisIdentity(as_user(server, "rrq-operator"), "rrq:"))
    heard: list[str] = []
    listening = asyncio.create_task(queues.listen(heard.append))
    try:

        async def is_heard() -> bool:
            await producer.enqueue("f")
            return bool(heard)

        await eventually(is_heard, message="the operator hears nothing", interval_seconds=0.1)
        seen = await queues.observe({"default": 10.0})
        assert seen.queues["default"].due
        async with aclosing(RRQClient(RRQSettings(redis_dsn=server.dsn))) as admin:
            await admin.job_store.set_limit("function:f", Limit(concurrency=0, rate=1, key="a", per_key=1))
            assert (await queues.admit(["default"])).blocked
            await admin.job_store.set_limit("function:f", None)
            assert (await queues.observe({"default": 10.0})).queues["default"].due
            admin.job_store.settings.worker_lease_seconds = 0.3
            await (await start_worker(admin.job_store)).take_one()

        async def is_given_back() -> bool:
            return await queues.sweep() == 1

        await eventually(is_given_back, message="the operator may not sweep", interval_seconds=0.1)
        report = PoolReport("shop/emails", "Job", ("default",), 1, 1, 1, 0, 0, 0, "Idle", "nothing", 0)
        await queues.publish(Publication((report,), frozenset({"shop/emails"}), ("shop/gone",)))
        assert await queues.read_published() == [report]
        await queues.drain(["pod"])
        await queues.release(["pod"])
        certificate = DeathCertificate(WorkerIdentity("w", "i"), {"signal": "SIGKILL"})
        await queues.report(Deaths(certificates=[certificate], hints=["w"]))  # type: ignore[arg-type]  # lists do as well
        await queues.read_cron_tables()
        # Half an hour from now, so that its time does not come while the test runs.
        soon = datetime.fromtimestamp(seen.now_ms / 1000, UTC).replace(second=0) + timedelta(minutes=30)
        queues.track_cron([CronJob(function_name="f", schedule=f"{soon.minute} * * * *")], [])
        await queues.fire_cron(seen.now_ms)
        soon_ms = int(soon.timestamp() * 1000)
        assert await queues.fire_cron(soon_ms + 1_000) == []  # still ahead by the clock of Redis
    finally:
        await end(listening)
        await queues.aclose()
        await producer.close()
    assert refusals(server) == set()
