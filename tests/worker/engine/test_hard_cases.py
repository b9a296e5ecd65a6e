"""What is rare and must be right all the same: suspects, stubborn handlers, refused outcomes, idle cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from fleet import all_done, assert_nothing_in_hand, running_worker, status_of
from ledger import Ledger
from rrq.broker.messages import BeatReply, LeaseState, Outcome, Verdict
from rrq.broker.server_risks import ServerFacts, describe_risks
from rrq.client import JobRequest, RRQClient
from rrq.job import JobStatus
from rrq.registry import JobRegistry
from rrq.store import JobStore
from rrq.worker import RRQWorker
from waiting import eventually
from worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rrq.settings import RRQSettings


async def test_a_handler_that_ignores_its_timeout_does_not_keep_its_job(
    client: RRQClient, settings: RRQSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.engine.executor.IGNORED_AFTER_SECONDS", 0.2)
    settings.worker_shutdown_grace_period_seconds = 0.1
    is_over = asyncio.Event()
    registry = JobRegistry()

    async def stubborn(ctx: dict[str, Any]) -> None:
        while not is_over.is_set():
            try:
                await is_over.wait()
            except asyncio.CancelledError:
                continue

    registry.register("stubborn", stubborn)
    async with running_worker(settings, registry):
        job = await client.enqueue("stubborn", _job_timeout_seconds=1)
        assert job is not None

        async def is_dead() -> bool:
            return await status_of(client.job_store, job) is JobStatus.FAILED

        await eventually(is_dead, 30, "the job stayed with a handler that ignores its timeout")
        is_over.set()
    fields = await client.job_store.get_job(job.id)
    assert fields is not None
    assert "ignored the cancellation" in fields["last_error"]
    await assert_nothing_in_hand(client.job_store)


class RefusesOne(JobStore):
    """Fails on one job as a script does that stops half-way.

    A stand-in, because all known ways to make the script fail have been closed.
    """

    refused_id = ""

    async def finish_jobs(self, worker_id: str, outcomes: Sequence[Outcome]) -> list[Verdict]:
        for outcome in outcomes:
            if outcome.job_id == self.refused_id and outcome.kind == "done":
                raise ResponseError("ERR no such thing script: f00, on @user_script:1.")
        return await super().finish_jobs(worker_id, outcomes)


async def test_an_outcome_that_redis_refuses_does_not_stop_the_others(
    client: RRQClient, settings: RRQSettings
) -> None:
    registry = JobRegistry()

    async def nothing(ctx: dict[str, Any]) -> None:
        return None

    registry.register("nothing", nothing)
    jobs = await client.enqueue_many([JobRequest("nothing")] * 10)
    refused = jobs.pop(4)
    worker = RRQWorker(settings, registry, burst=True)
    store = RefusesOne(settings)
    store.refused_id = refused.id
    worker.job_store = store
    await worker.run()
    await all_done(client.job_store, jobs, 1.0)
    fields = await client.job_store.get_job(refused.id)
    assert fields is not None
    assert fields["status"] == "FAILED"
    assert "Redis could not store the outcome" in fields["last_error"]
    await assert_nothing_in_hand(client.job_store)


async def test_an_idle_worker_process_holds_three_connections(
    client: RRQClient, redis_dsn: str, tmp_path: Path
) -> None:
    store = client.job_store
    with WorkerProcess(redis_dsn, Ledger(tmp_path / "ledger")):
        job = await client.enqueue("note")
        assert job is not None
        await all_done(store, [job])

        async def is_idle() -> bool:
            # One waits for work, one for orders; without both the third connection may not be there yet.
            return bool((await store.wire.call("CLIENT", "LIST")).count(b"cmd=blpop") == 2)

        await eventually(is_idle, 20, "the worker does not wait for work")
        everybody = (await store.wire.call("CLIENT", "LIST", "TYPE", "normal")).splitlines()
        # This test has two of its own: the wire and one of the pool behind `store.redis`.
        assert len(everybody) - 2 == 3, everybody


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ServerFacts(1_000_000, "allkeys-lru", True, ""), "may evict jobs"),
        (ServerFacts(0, "noeviction", False, ""), "persists nothing"),
        (ServerFacts(0, "allkeys-lru", True, ""), None),
        (ServerFacts(1_000_000, "noeviction", False, "3600 1"), None),
        (ServerFacts(None, None, None, None), None),
    ],
)
def test_settings_of_a_server_that_lose_jobs_are_named(facts: ServerFacts, words: str | None) -> None:
    risks = describe_risks(facts)
    assert (words in risks[0]) if words else (risks == [])


async def test_a_heartbeat_that_counts_too_few_jobs_in_hand_makes_the_worker_reconcile_at_once(
    client: RRQClient, settings: RRQSettings
) -> None:
    settings.worker_lease_seconds = 90.0  # a second beat, which would notice too, is half a minute away
    settings.worker_idle_poll_max_seconds = 0.1
    begun, let_go = asyncio.Event(), asyncio.Event()
    registry = JobRegistry()

    async def hold(ctx: dict[str, Any]) -> None:
        begun.set()
        await let_go.wait()

    registry.register("hold", hold)
    store = client.job_store
    job = await client.enqueue("hold")
    assert job is not None
    async with running_worker(settings, registry) as worker:
        await asyncio.wait_for(begun.wait(), 20)
        active_set = store.keys.active_jobs_key(worker.worker_id)
        await store.redis.delete(active_set)
        for attempt in worker.book:
            attempt.claimed_at -= 60
        worker.registration.hear(worker.worker_id, {}, BeatReply(LeaseState.ALIVE, False, 0, ()))
        await eventually(lambda: store.redis.zcard(active_set), 20, "Redis never learned of the job again")
        let_go.set()
        await all_done(store, [job])
    await assert_nothing_in_hand(store)
