"""What a producer may ask for beyond a job: once only, the last of many, sooner, one after the other, all together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fleet import all_done, running_worker
from queue_steps import (
    QUEUE,
    SteppedWorker,
    ask,
    back,
    dead,
    done,
    due_score,
    enqueue,
    ids,
    is_queued,
    job_fields,
    now_ms,
    retry,
    start_worker,
)
from rrq import App, JobRegistry
from rrq.broker.messages import DeathCertificate, Verdict
from rrq.client import JobRequest
from rrq.exc import InvalidJob
from rrq.flow import Limit
from rrq.job import JobStatus
from rrq.jobs.options import JobOptions
from waiting import eventually

if TYPE_CHECKING:
    from rrq import RRQClient, RRQSettings
    from rrq.store import JobStore


@pytest.fixture
async def worker(store: JobStore) -> SteppedWorker:
    return await start_worker(store)


async def queued(store: JobStore, queue: str = "default") -> list[str]:
    return [entry.decode() for entry in await ask(store, "ZRANGE", store.keys.queue_key(queue), 0, -1)]


# Once only


async def test_an_idempotent_call_made_again_returns_the_first_job(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    first = await client.enqueue("greet", 1, _idempotency_key="order-7")
    again = await client.enqueue("greet", 2, _idempotency_key="order-7")
    assert first is not None
    assert again is not None
    assert (again.id, again.job_args) == (first.id, [1])
    await worker.finish(done(await worker.take_one()))
    late = await client.enqueue("greet", 3, _idempotency_key="order-7")
    assert late is not None
    assert (late.id, late.status) == (first.id, JobStatus.COMPLETED)
    assert await queued(store) == []


# The last of many


async def test_debounced_calls_leave_one_job_with_the_last_arguments(
    store: JobStore, client: RRQClient
) -> None:
    jobs = [
        await client.enqueue("index", number, _debounce_key="page-1", _defer_by=10) for number in range(5)
    ]
    assert len({job.id for job in jobs if job is not None}) == 1
    (job_id,) = await queued(store)
    assert json.loads((await job_fields(store, job_id))["job_args"]) == [4]


async def test_a_call_while_the_debounced_job_runs_makes_another(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    first = await client.enqueue("index", _debounce_key="page-1")
    await worker.take_one()
    second = await client.enqueue("index", _debounce_key="page-1")
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert await queued(store) == [second.id]


async def test_a_debounced_job_is_not_put_off_for_ever(store: JobStore, client: RRQClient) -> None:
    options: dict[str, Any] = {"_debounce_key": "k", "_defer_by": 60, "_debounce_max_seconds": 90}
    first = await client.enqueue("index", **options)
    assert first is not None
    key = store.keys.job_key(first.id)
    since_ms = await now_ms(store) - 80_000
    await ask(store, "HSET", key, "debounced_since_ms", since_ms)
    await client.enqueue("index", **options)
    assert await due_score(store, first.id) == since_ms + 90_000


async def test_replacing_leaves_a_running_job_alone(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("greet", 1, _job_id="x")
    await client.enqueue("greet", 2, _job_id="x", _replace_if_pending=True)
    assert json.loads((await job_fields(store, "x"))["job_args"]) == [2]
    job = await worker.take_one()
    kept = await client.enqueue("greet", 3, _job_id="x", _replace_if_pending=True)
    assert kept is not None
    assert (kept.status, kept.job_args) == (JobStatus.ACTIVE, [2])
    assert await worker.finish(done(job)) == [Verdict.STORED]


# Sooner


async def test_a_priority_overtakes_by_minutes_not_for_ever(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    now = await now_ms(store)
    await enqueue(store, "old", due=f"@{now - 240_000}")
    await enqueue(store, "fresh")
    await client.enqueue("greet", _job_id="urgent", _priority=3)
    await client.enqueue("greet", _job_id="most urgent", _priority=9)
    assert ids(await worker.take(10)) == ["most urgent", "old", "urgent", "fresh"]


async def test_a_priority_does_not_make_the_queue_look_old(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    async def oldest_seconds() -> float:
        return (await store.observe(["default"])).queues["default"].oldest_due_age_seconds or 0.0

    await client.enqueue("greet", _priority=9)
    assert await oldest_seconds() < 50
    await enqueue(store, "old", due=f"@{await now_ms(store) - 60_000}")
    assert 59 < await oldest_seconds() < 120
    await ask(store, "ZREM", QUEUE, "old")

    claim = await worker.claim()
    [job] = claim.jobs
    assert 0 <= claim.now_ms - float(job.due_score) - job.head_start_ms < 60_000
    started = [minute.queues["default"] for minute in await store.read_stats(2) if minute.queues]
    assert sum(queue["started"] for queue in started) == 1
    assert all(queue["wait_max_ms"] < 60_000 for queue in started)


async def test_nothing_starts_before_its_time_whatever_its_priority(
    client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("greet", _priority=9, _defer_by=30)
    assert await worker.take(10) == []


# One after the other


async def test_a_chain_goes_on_when_a_job_is_done(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    chain = [
        JobRequest("resize", job_id="two", options=JobOptions(takes_result=True)),
        JobRequest("publish", ("now",), queue_name="other", job_id="three"),
    ]
    await client.enqueue("fetch", _job_id="one", _then=chain)
    job = await worker.take_one()
    assert not await is_queued(store, "two")
    outcome = done(job, {"path": "/a"})
    assert await worker.finish(outcome) == [Verdict.STORED]
    assert await worker.finish(outcome) == [Verdict.ALREADY_APPLIED]
    assert await queued(store) == ["two"]
    fields = await job_fields(store, "two")
    assert (fields["job_args"], fields["parent_id"]) == ('[{"path": "/a"}]', "one")
    await worker.finish(done(await worker.take_one()))
    assert await queued(store, "other") == ["three"]
    assert (await job_fields(store, "three"))["job_args"] == '["now"]'


async def test_under_a_limit_a_chain_goes_on_and_the_slot_is_free(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await store.set_limit("function:fetch", Limit(concurrency=1))
    await client.enqueue("fetch", _job_id="one", _then=[JobRequest("resize", job_id="two")])
    # Tried twice: what is to be seen to at its end is not forgotten when it takes its slot again.
    for outcome in (retry, done):
        await worker.finish(outcome(await worker.take_one()))
        assert await ask(store, "SCARD", store.keys.slots_key("f:fetch")) == 0
    assert await queued(store) == ["two"]


async def test_a_chain_waits_for_a_retry_and_ends_with_a_dead_letter(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("fetch", _job_id="one", _then=[JobRequest("resize", job_id="two")])
    await worker.finish(retry(await worker.take_one()))
    assert await queued(store) == ["one"]
    await worker.finish(dead(await worker.take_one()))
    assert await queued(store) == []
    # Tried again by hand it goes on.
    await store.requeue_dlq("default", "default")
    await worker.finish(done(await worker.take_one()))
    assert await queued(store) == ["two"]


async def test_a_fenced_attempt_does_not_continue_the_chain(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue("fetch", _job_id="one", _then=[JobRequest("resize", job_id="two")])
    late = await worker.take_one()
    await store.reap_workers(DeathCertificate(worker.identity))
    assert await worker.finish(done(late)) == [Verdict.FENCED]
    assert await queued(store) == ["one"]


async def test_a_follow_up_whose_queue_is_something_else_is_not_lost(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await ask(store, "SET", store.keys.queue_key("broken"), "text")
    follower = JobRequest("b", queue_name="broken", job_id="two")
    await client.enqueue("a", _then=[follower])
    assert await worker.finish(done(await worker.take_one())) == [Verdict.STORED]
    assert await queued(store) == ["two"]


# All together


async def test_the_callback_comes_when_the_last_job_of_a_batch_has_ended(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    requests = [JobRequest("part", (number,)) for number in range(3)]
    batch = await client.enqueue_batch(requests, JobRequest("whole", job_id="callback"))
    first, second, third = await worker.take(3)
    await worker.finish(done(first), dead(second))
    assert not await is_queued(store, "callback")
    await worker.finish(back(third))
    assert not await is_queued(store, "callback")
    await worker.finish(done(await worker.take_one()))
    assert await is_queued(store, "callback")
    fields = await job_fields(store, "callback")
    assert json.loads(fields["job_kwargs"]) == {"batch_id": batch.batch_id}
    state = await store.read_batch(batch.batch_id)
    assert state is not None
    assert (state["total"], state["failed"], state["pending"]) == ("3", "1", "0")


async def test_a_dead_letter_that_is_tried_again_does_not_end_its_batch_twice(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue_batch([JobRequest("part")], JobRequest("whole", job_id="callback"))
    await worker.finish(dead(await worker.take_one()))
    await worker.finish(done(await worker.take_one()))
    await store.requeue_dlq("default", "default")
    await worker.finish(done(await worker.take_one()))
    assert await queued(store) == []


async def test_a_cancelled_job_ends_its_part_of_the_batch(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    batch = await client.enqueue_batch([JobRequest("part")] * 2, JobRequest("whole", job_id="callback"))
    await client.cancel(batch.jobs[0].id)
    assert not await is_queued(store, "callback")
    await client.cancel(batch.jobs[1].id)
    assert await is_queued(store, "callback")


async def test_a_batch_lives_for_as_long_as_one_of_its_jobs(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    batch = await client.enqueue_batch(
        [JobRequest("part")] * 2, JobRequest("whole", job_id="callback"), keep_seconds=1
    )
    keys = [store.keys.batch_key(batch.batch_id), store.keys.batch_pending_key(batch.batch_id)]
    # What expires with the time that was given to the batch is gone by then.
    await ask(store, "SET", "marker", 1, "EX", 2)
    await worker.finish(done(await worker.take_one()))
    assert [await ask(store, "TTL", key) for key in keys] == [-1, -1]

    async def is_over() -> bool:
        return not await ask(store, "EXISTS", "marker")

    await eventually(is_over)
    await worker.finish(done(await worker.take_one()))
    assert await is_queued(store, "callback")
    assert 0 < await ask(store, "TTL", keys[0]) <= 7 * 86_400
    assert not await ask(store, "EXISTS", keys[1])


async def test_a_batch_that_its_producer_never_completes_is_forgotten(
    store: JobStore, client: RRQClient
) -> None:
    await store.open_batch("half", 2, "", 100)
    await client.enqueue_many([JobRequest("part", options=JobOptions(batch_id="half"))])
    assert 0 < await ask(store, "TTL", store.keys.batch_key("half")) <= 100
    assert 0 < await ask(store, "TTL", store.keys.batch_pending_key("half")) <= 30 * 86_400


async def test_a_batch_of_a_killed_worker_still_completes(
    store: JobStore, client: RRQClient, worker: SteppedWorker
) -> None:
    await client.enqueue_batch([JobRequest("part")] * 2, JobRequest("whole", job_id="callback"))
    await worker.take(2)
    await store.reap_workers(DeathCertificate(worker.identity))
    heir = await start_worker(store, "heir")
    await heir.finish(*map(done, await heir.take(10)))
    assert await is_queued(store, "callback")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"_priority": 10}, "0 to 9"),
        ({"_idempotency_key": "k", "_idempotency_seconds": 0}, "_idempotency_seconds"),
        ({"_debounce_max_seconds": 5}, "needs a _debounce_key"),
        ({"_idempotency_key": "k", "_debounce_key": "k"}, "choose one"),
        ({"_then": [JobRequest("b", then=[JobRequest("c")])]}, "has a chain of its own"),
    ],
)
async def test_options_that_make_no_sense_are_refused(
    store: JobStore, client: RRQClient, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidJob, match=complaint):
        await client.enqueue("greet", **options)
    assert await queued(store) == []


async def test_an_option_that_does_not_exist_is_refused_by_each_way_to_enqueue(settings: RRQSettings) -> None:
    app = App(settings)

    @app.job()
    async def greet(ctx: Any) -> None: ...

    misspelt: dict[str, Any] = {"priorty": 3}
    for give in (lambda: JobRequest("greet", **misspelt), lambda: app.job(**misspelt)):
        with pytest.raises(TypeError, match=r"has no option 'priorty'\. Did you mean 'priority'\?"):
            give()
    with pytest.raises(TypeError, match=r"with_options\(\) has no option 'priorty'"):
        greet.with_options(**misspelt)
    with pytest.raises(InvalidJob, match="Did you mean '_priority'"):
        await app.client.enqueue("greet", _priorty=3)


# With real workers


async def test_progress_is_seen_and_a_cursor_outlives_an_attempt(
    store: JobStore, client: RRQClient, settings: RRQSettings
) -> None:
    seen: list[Any] = []

    async def walk(ctx: Any) -> str:
        start = await ctx.load_cursor() or 0
        seen.append(start)
        for number in range(start, 4):
            await ctx.save_cursor(number + 1)
            await ctx.set_progress(number + 1, 4, "walking")
            if number == 1 and start == 0:
                raise RuntimeError("tripped")
        return "there"

    def plain(ctx: Any) -> int:
        ctx.wait(ctx.set_progress(1))
        return 1

    settings.base_retry_delay_seconds = 0.01
    registry = JobRegistry()
    registry.register("walk", walk)
    registry.register("plain", plain)
    jobs = [job for name in ("walk", "plain") if (job := await client.enqueue(name)) is not None]
    async with running_worker(settings, registry):
        await all_done(store, jobs)
    assert seen == [0, 2]
    progress = json.loads((await job_fields(store, jobs[0].id))["progress"])
    assert (progress["done"], progress["total"], progress["note"]) == (4, 4, "walking")
    story = json.loads((await job_fields(store, jobs[0].id))["attempts"])
    assert [(attempt["outcome"], attempt["error"]) for attempt in story] == [("retry", "tripped")]
