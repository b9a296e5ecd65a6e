"""RRQ 0.7.1 itself beside ours, on the same Redis: producers, workers and tools of both."""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from legacy import Legacy, LegacyUnavailable
from rrq.broker.messages import CancelCode
from rrq.client import RRQClient
from rrq.job import Job, JobStatus
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.worker import RRQWorker
from running import run_burst, running, stays_true
from waiting import eventually

# A first run installs 0.7.1 into an environment of its own, which takes some twenty seconds.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rrq 0.7.1")]

QUEUE = "rrq:queue:default"
DLQ = "rrq:dlq:default"


@pytest.fixture(scope="module")
def agent(redis_server: str) -> Iterator[Legacy]:
    legacy = Legacy(redis_server)
    try:
        legacy.__enter__()
    except LegacyUnavailable as missing:
        pytest.skip(str(missing))
    yield legacy
    legacy.__exit__(None, None, None)


@pytest.fixture
def legacy(agent: Legacy, redis_dsn: str) -> Legacy:
    """The process with 0.7.1, and an empty database."""
    return agent


class Ours:
    """Handlers of the same names as those of the 0.7.1 process."""

    def __init__(self) -> None:
        self.registry = JobRegistry()
        self.gate = asyncio.Event()
        self.started: list[list[Any]] = []
        for handler in (self.echo, self.fail, self.flaky, self.gated, self.endless):
            self.registry.register(handler.__name__, handler)

    async def echo(self, context: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        await self.count_run(context)
        return {"by": "ours", "args": list(args), "kwargs": kwargs, "try": context["job_try"]}

    async def fail(self, context: dict[str, Any], *args: Any) -> None:
        await self.count_run(context)
        raise ValueError("ours failed")

    async def flaky(self, context: dict[str, Any]) -> str:
        await self.count_run(context)
        if context["job_try"] < 3:
            raise ValueError("once more")
        return "ours"

    async def gated(self, context: dict[str, Any], *args: Any) -> list[Any]:
        self.started.append(list(args))
        await self.count_run(context)
        await self.gate.wait()
        return list(args)

    async def endless(self, context: dict[str, Any]) -> str:
        await self.count_run(context)
        return "ours"

    async def count_run(self, context: dict[str, Any]) -> None:
        await context["rrq_client"].job_store.redis.hincrby("test:runs", context["job_id"], 1)


@pytest.fixture
def ours() -> Ours:
    return Ours()


@pytest.fixture
def settings(redis_dsn: str) -> RRQSettings:
    return RRQSettings(redis_dsn=redis_dsn, base_retry_delay_seconds=0.05)


async def read_result(client: RRQClient, job_id: str) -> Any:
    result = await client.wait_for_completion(job_id, timeout_seconds=30)
    assert result is not None, f"job {job_id} did not end"
    assert result.status is JobStatus.COMPLETED, f"job {job_id}: {result}"
    return result.result


async def read_runs(store: JobStore) -> dict[str, int]:
    counts: Any = await store.redis.hgetall("test:runs")
    return {job_id.decode(): int(count) for job_id, count in counts.items()}


def as_json(job: Job) -> dict[str, Any]:
    """The fields of a job that both versions know."""
    dumped = job.model_dump(mode="json")
    dumped.pop("trace_context")
    return dumped


# Producers


@pytest.mark.parametrize("queue", [None, "rrq:queue:emails"])
async def test_our_worker_runs_jobs_of_a_0_7_1_producer(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours, queue: str | None
) -> None:
    worker = RRQWorker(settings, ours.registry, queues=[queue or "default"])
    async with running(worker):
        job = await legacy.call(
            "enqueue",
            function_name="echo",
            args=[1, "ä"],
            kwargs={"x": None},
            _queue_name=queue,
            _unique_key="k",
        )

        result = await read_result(client, job["id"])

    assert result == {"by": "ours", "args": [1, "ä"], "kwargs": {"x": None}, "try": 1}
    assert await client.job_store.get_unique_lock_holder("k") is None
    seen = await legacy.call("read_job", job_id=job["id"])
    assert (seen["status"], seen["result"]) == ("COMPLETED", result)


@pytest.mark.parametrize("queue", [None, "emails"])
async def test_a_0_7_1_worker_runs_jobs_of_our_producer(
    legacy: Legacy, client: RRQClient, queue: str | None
) -> None:
    job = await client.enqueue("echo", 1, "ä", x=None, _queue_name=queue, _unique_key="k")
    assert job is not None

    await legacy.call("run_burst", default_queue_name=queue or QUEUE)

    assert await read_result(client, job.id) == {
        "by": "0.7.1",
        "args": [1, "ä"],
        "kwargs": {"x": None},
        "try": 1,
    }
    assert await client.job_store.get_unique_lock_holder("k") is None
    assert await client.job_store.get_job_lock_owner(job.id) is None


async def test_unique_keys_are_shared_between_the_producers(legacy: Legacy, client: RRQClient) -> None:
    first = await client.enqueue("echo", _unique_key="once")
    assert first is not None
    second = await legacy.call("enqueue", function_name="echo", _unique_key="once")
    third = await client.enqueue("echo", _unique_key="once")
    assert third is not None

    store = client.job_store
    assert await store.get_unique_lock_holder("once") == first.id
    assert await store.get_ready_job_ids("default", 9) == [first.id]
    assert await store.redis.zscore(QUEUE, second["id"]) == pytest.approx(
        await store.redis.zscore(QUEUE, third.id), abs=60_000
    )


# Hashes


async def test_a_new_job_reads_the_same_on_both_sides(legacy: Legacy, client: RRQClient) -> None:
    ours = await client.enqueue("echo", 1, [None, {"a": "ä"}], x=1.5, _job_timeout_seconds=0)
    assert ours is not None
    theirs = await legacy.call(
        "enqueue", function_name="echo", args=[1], kwargs={"x": 1}, _result_ttl_seconds=5
    )

    unknown_to_legacy = {"error_type"}
    expected = {name: value for name, value in as_json(ours).items() if name not in unknown_to_legacy}
    assert await legacy.call("read_job", job_id=ours.id) == expected
    read_by_us = await client.job_store.get_job_definition(theirs["id"])
    assert read_by_us is not None
    assert as_json(read_by_us) == theirs | {"error_type": None}


async def test_every_outcome_of_ours_is_readable_by_0_7_1(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    settings.base_retry_delay_seconds = 60
    settings.unknown_function_patience_seconds = 0
    await client.enqueue("echo", _job_id="done")
    await client.enqueue("fail", _job_id="retrying")
    await client.enqueue("fail", _job_id="dead", _max_retries=1)
    await client.enqueue("nobody", _job_id="no-handler")

    await run_burst(settings, ours.registry)

    seen = {
        name: await legacy.call("read_job", job_id=name)
        for name in ("done", "retrying", "dead", "no-handler")
    }
    assert seen["done"]["status"] == "COMPLETED"
    assert seen["done"]["result"]["by"] == "ours"
    assert (seen["retrying"]["status"], seen["retrying"]["current_retries"]) == ("RETRYING", 1)
    assert seen["retrying"]["last_error"] == "ours failed"
    for name in ("dead", "no-handler"):
        assert (seen[name]["status"], seen[name]["current_retries"]) == ("FAILED", 1)
        assert seen[name]["completion_time"] is not None


async def test_our_health_record_is_readable_by_0_7_1_and_theirs_by_us(
    legacy: Legacy, settings: RRQSettings, store: JobStore, ours: Ours
) -> None:
    worker = RRQWorker(settings, ours.registry)
    their_id = await legacy.call("start_worker")
    try:
        async with running(worker):
            await eventually(lambda: store.redis.exists(f"rrq:health:worker:{worker.worker_id}"))
            record, ttl_seconds = await legacy.call(
                "call_store", method="get_worker_health", args=[worker.worker_id]
            )
            assert record["worker_id"] == worker.worker_id
            assert ttl_seconds > 0
            await eventually(lambda: store.redis.exists(f"rrq:health:worker:{their_id}"))
            theirs, _ = await store.get_worker_health(their_id)
            assert theirs is not None
            assert theirs.keys() == record.keys()
    finally:
        await legacy.call("stop_worker")


# Retries handed from one version to the other


async def make_due(store: JobStore, job_id: str) -> None:
    """Let the time of the only queued job come; none that a burst could have waited for."""
    assert await store.get_queued_job_ids("default") == [job_id]
    await store.add_job_to_queue("default", job_id, 1.0)


async def test_a_retry_of_ours_is_finished_by_a_0_7_1_worker(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    job = await client.enqueue("flaky")
    assert job is not None
    settings.base_retry_delay_seconds = 600
    await run_burst(settings, ours.registry)
    await make_due(client.job_store, job.id)
    await legacy.call("start_worker")
    try:
        assert await read_result(client, job.id) == "0.7.1"
    finally:
        await legacy.call("stop_worker")
    assert await read_runs(client.job_store) == {job.id: 3}


async def test_a_retry_of_0_7_1_is_finished_by_our_worker(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    ours.registry.register("fail", ours.flaky, replace=True)
    job = await client.enqueue("fail")
    assert job is not None
    await legacy.call("run_burst", base_retry_delay_seconds=600)
    await make_due(client.job_store, job.id)

    async with running(RRQWorker(settings, ours.registry)):
        assert await read_result(client, job.id) == "ours"
    assert sum((await read_runs(client.job_store)).values()) == 3


@pytest.mark.parametrize("has_health_record", [True, False])
async def test_a_0_7_1_retry_caught_between_its_two_steps_is_not_lost(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours, has_health_record: bool
) -> None:
    """0.7.1 adds the job to its queue and only then drops its lock; a claim in between must leave it there."""
    store = client.job_store
    job = await legacy.call("enqueue", function_name="echo", args=[1])
    job_id = job["id"]
    if has_health_record:
        await legacy.call("call_store", method="set_worker_health", args=["w-0.7.1", {"worker_id": "w"}, 60])
    claim = ["atomic_lock_and_remove_job", [job_id, QUEUE, "w-0.7.1", 60_000]]
    assert await legacy.call("call_store", method=claim[0], args=claim[1]) == [True, 1]
    async with running(RRQWorker(settings, ours.registry)):
        assert await legacy.call("retry", job_id=job_id, queue_name=QUEUE, score=time.time() * 1000) == 1
        if has_health_record:
            await stays_true(
                lambda: store.redis.zscore(QUEUE, job_id),
                0.5,
                "a job whose lock is held was taken off its queue",
            )
            assert await store.get_job_lock_owner(job_id) == "w-0.7.1"
        await legacy.call("call_store", method="release_job_lock", args=[job_id])

        result = await read_result(client, job_id)

    assert result == {"by": "ours", "args": [1], "kwargs": {}, "try": 2}
    assert await read_runs(store) == {job_id: 1}
    assert await store.get_job_lock_owner(job_id) is None


async def test_a_job_handed_back_by_a_stopping_0_7_1_worker_is_finished_by_ours(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    job = await client.enqueue("endless")
    assert job is not None
    await legacy.call("start_worker")
    await eventually(lambda: client.job_store.redis.hexists("test:runs", job.id))
    await legacy.call("stop_worker")

    async with running(RRQWorker(settings, ours.registry)):
        assert await read_result(client, job.id) == "ours"


async def test_a_job_handed_back_by_our_stopping_worker_is_finished_by_0_7_1(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.05
    await client.enqueue("echo", 7, _job_id="j1")
    ours.registry.register("echo", ours.gated, replace=True)
    async with running(RRQWorker(settings, ours.registry)):
        await eventually(lambda: ours.started)

    await legacy.call("run_burst")

    assert (await read_result(client, "j1"))["by"] == "0.7.1"


# An id that is used again while it runs here


@pytest.mark.parametrize(("workers", "queue"), [(1, None), (3, "other")])
async def test_an_id_enqueued_again_by_0_7_1_while_we_run_it_is_run_again(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours, workers: int, queue: str | None
) -> None:
    store = client.job_store
    await legacy.call("enqueue", function_name="gated", args=["old"], _job_id="j1")
    fleet = [RRQWorker(settings, ours.registry, queues=["default", "other"]) for _ in range(workers)]
    async with running(*fleet):
        await eventually(lambda: ours.started == [["old"]])

        await legacy.call("enqueue", function_name="gated", args=["new"], _job_id="j1", _queue_name=queue)
        await stays_true(lambda: ours.started == [["old"]], 0.3, "the same id runs twice at once")
        ours.gate.set()

        await eventually(
            lambda: ours.started == [["old"], ["new"]], 20, "the second life of the id never ran"
        )
        await eventually(lambda: ended_with(store, "j1", ["new"]), 20)
    assert await store.get_job_lock_owner("j1") is None
    assert await store.redis.keys("rrq:active:jobs:*") == []
    assert await store.get_queued_job_ids("default") == []


async def ended_with(store: JobStore, job_id: str, result: Any) -> bool:
    fields = await store.get_job_data_dict(job_id)
    assert fields is not None
    return fields["status"] == "COMPLETED" and json.loads(fields["result"]) == result


async def test_many_ids_enqueued_again_by_0_7_1_at_any_moment_all_end(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    store = client.job_store
    ids = [f"job-{n}" for n in range(10)]
    async with running(*(RRQWorker(settings, ours.registry) for _ in range(3))):
        for round_number in range(3):
            for job_id in ids:
                await legacy.call("enqueue", function_name="echo", args=[round_number], _job_id=job_id)
        for job_id in ids:
            await eventually(partial(last_round_ended, store, job_id, 2), 20)
    assert await store.get_queued_job_ids("default") == []
    assert await store.redis.keys("rrq:lock:job:*") == []
    assert await store.redis.keys("rrq:active:jobs:*") == []


async def last_round_ended(store: JobStore, job_id: str, round_number: int) -> bool:
    fields = await store.get_job_data_dict(job_id)
    assert fields is not None
    if fields["status"] != "COMPLETED":
        return False
    return bool(json.loads(fields["result"])["args"] == [round_number])


# Dead letters


@pytest.mark.parametrize(
    ("buried_by", "requeued_by", "run_by"),
    [("ours", "0.7.1", "ours"), ("0.7.1", "ours", "0.7.1"), ("0.7.1", "0.7.1", "ours")],
)
async def test_a_dead_letter_of_either_is_requeued_by_either_and_run_by_either(
    legacy: Legacy,
    settings: RRQSettings,
    client: RRQClient,
    ours: Ours,
    buried_by: str,
    requeued_by: str,
    run_by: str,
) -> None:
    store = client.job_store
    await client.enqueue("fail", _job_id="j1", _max_retries=1)

    async def run(who: str) -> None:
        if who == "ours":
            await run_burst(settings, ours.registry)
        else:
            await legacy.call("run_burst")

    await run(buried_by)
    assert await store.redis.lrange(DLQ, 0, -1) == [b"j1"]
    assert (await client.get_job_status("j1") or pytest.fail("gone")).last_error == f"{buried_by} failed"
    # The cause has been mended meanwhile.
    await store.redis.hset("rrq:job:j1", "function_name", "echo")

    if requeued_by == "ours":
        assert await store.requeue_dlq("default", "default") == 1
    else:
        assert await legacy.call("call_store", method="requeue_dlq", args=[DLQ, QUEUE]) == 1
    await run(run_by)

    assert (await read_result(client, "j1"))["by"] == run_by
    assert await store.redis.llen(DLQ) == 0


# Together


async def test_a_mixed_fleet_finishes_every_job_of_both_producers(
    legacy: Legacy, settings: RRQSettings, client: RRQClient, ours: Ours
) -> None:
    store = client.job_store
    ids = []
    for n in range(15):
        ids.append((await legacy.call("enqueue", function_name=("echo", "flaky")[n % 2]))["id"])
        job = await client.enqueue(("flaky", "echo")[n % 2])
        assert job is not None
        ids.append(job.id)
    await legacy.call("start_worker", worker_concurrency=4)
    try:
        settings.worker_concurrency = 4
        async with running(*(RRQWorker(settings, ours.registry) for _ in range(2))):
            for job_id in ids:
                await read_result(client, job_id)
    finally:
        await legacy.call("stop_worker")
    runs = await read_runs(store)
    assert sorted(runs) == sorted(ids)
    for job_id in ids:
        job = await store.get_job_definition(job_id)
        assert job is not None
        assert runs[job_id] == job.current_retries + 1, f"a run was not counted: {job}"
        # 0.7.1 reads a job before it locks it: if it stands still in between, it takes the third try of a job
        # for the first, and has it run once more than needed.
        assert runs[job_id] == 1 if job.function_name == "echo" else runs[job_id] >= 3
    assert await store.redis.zcard(QUEUE) == 0
    assert await store.redis.keys("rrq:lock:job:*") == []
    assert await store.redis.llen(DLQ) == 0


async def test_a_job_that_runs_on_a_0_7_1_worker_cannot_be_cancelled(
    legacy: Legacy, client: RRQClient
) -> None:
    job = await client.enqueue("endless")
    assert job is not None
    await legacy.call("start_worker")
    try:
        await eventually(lambda: client.job_store.redis.hexists("test:runs", job.id))
        assert await client.cancel(job.id) is CancelCode.CANNOT_TELL
    finally:
        await legacy.call("stop_worker")
