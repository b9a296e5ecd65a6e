"""Jobs that were in hand in a crash run alone and soon, however many others wait and whatever else is in hand."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fleet import all_done, assert_nothing_in_hand, enqueue_some, running_worker
from queue_steps import QUEUE, ask, done, start_worker
from rrq.broker.messages import DeathCertificate
from rrq.registry import JobRegistry
from waiting import eventually

if TYPE_CHECKING:
    from rrq.client import RRQClient
    from rrq.job import Job
    from rrq.settings import RRQSettings
    from rrq.worker import RRQWorker

PATIENCE_SECONDS = 20.0


class Handlers:
    """Handlers that tell who was started, in which order and in whose handlers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: set[str] = set()
        self.most_at_once: dict[str, int] = {}
        self.may_end = asyncio.Event()
        self.registry = JobRegistry()
        self.registry.register("short", self.short)
        self.registry.register("long", self.long)

    async def short(self, ctx: dict[str, Any]) -> None:
        await self._run(ctx["job_id"], asyncio.sleep(0.02))

    async def long(self, ctx: dict[str, Any]) -> None:
        await self._run(ctx["job_id"], self.may_end.wait())

    async def _run(self, job_id: str, work: Any) -> None:
        self.started.append(job_id)
        self.running.add(job_id)
        for other in self.running:
            self.most_at_once[other] = max(self.most_at_once.get(other, 0), len(self.running))
        await work
        self.running.discard(job_id)

    async def has_started(self, job: Job) -> None:
        async def is_there() -> bool:
            return job.id in self.started

        await eventually(is_there, PATIENCE_SECONDS, "the job was not started")


async def make_suspects(client: RRQClient, count: int) -> list[Job]:
    """Queue jobs, first of all, that were in hand when their worker crashed."""
    store = client.job_store
    # Due later, so that only the victim claims them, by their ids.
    jobs = await enqueue_some(client, "short", count=count, defer_by=timedelta(hours=1))
    victim = await start_worker(store, "victim")
    claim = await victim.claim(count, job_ids=[job.id for job in jobs])
    assert len(claim.jobs) == count
    await store.reap_workers(DeathCertificate(victim.identity, {"signal": "SIGKILL"}))
    await ask(store, "ZADD", QUEUE, "XX", *(part for job in jobs for part in (1, job.id)))
    return jobs


async def has_polled(worker: RRQWorker, times: int) -> None:
    """Wait until a worker has asked for jobs so many times more."""
    enough = worker.consumer._claims_sent + times

    async def is_enough() -> bool:
        return worker.consumer._claims_sent >= enough

    await eventually(is_enough, PATIENCE_SECONDS, "the worker asked for no jobs")


async def test_a_busy_worker_starts_nothing_until_it_has_run_all_suspects_one_by_one(
    client: RRQClient, settings: RRQSettings
) -> None:
    settings.worker_concurrency = 5
    handlers = Handlers()
    async with running_worker(settings, handlers.registry) as worker:
        (long,) = await enqueue_some(client, "long")
        await handlers.has_started(long)
        suspects = await make_suspects(client, 3)
        others = await enqueue_some(client, "short", count=30)
        await has_polled(worker, 3)
        assert handlers.started == [long.id]
        handlers.may_end.set()
        await all_done(client.job_store, [long, *suspects, *others])
    assert sorted(handlers.started[1:4]) == sorted(job.id for job in suspects)
    assert {handlers.most_at_once[job.id] for job in suspects} == {1}
    assert max(handlers.most_at_once.values()) > 1
    await assert_nothing_in_hand(client.job_store)


async def test_a_worker_stops_making_room_when_another_one_has_claimed_the_suspect(
    client: RRQClient, settings: RRQSettings
) -> None:
    settings.worker_concurrency = 5
    handlers = Handlers()
    async with running_worker(settings, handlers.registry) as worker:
        (long,) = await enqueue_some(client, "long")
        await handlers.has_started(long)
        suspects = await make_suspects(client, 1)
        others = await enqueue_some(client, "short", count=10)
        await has_polled(worker, 2)
        assert handlers.started == [long.id]
        idle = await start_worker(client.job_store, "idle")
        (taken,) = await idle.take(5)
        assert taken.job_id.decode() == suspects[0].id
        # The long job is in hand all the time.
        await all_done(client.job_store, others)
        assert handlers.running == {long.id}
        await idle.finish(done(taken))
        handlers.may_end.set()
        await all_done(client.job_store, [long])
    await assert_nothing_in_hand(client.job_store)
