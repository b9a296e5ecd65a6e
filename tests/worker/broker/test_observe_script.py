"""Observing: what operators and views see, without touching anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_steps import (
    QUEUE,
    ask,
    done,
    end_lease,
    enqueue,
    now_ms,
    snapshot,
    start_worker,
)
from waiting import eventually

if TYPE_CHECKING:
    from rrq.store import JobStore


async def test_due_soon_and_later_jobs_are_told_apart(store: JobStore) -> None:
    current = await now_ms(store)
    await enqueue(store, "due-1", due=f"@{current - 30_000}")
    await enqueue(store, "due-2")
    (soon_ms,) = await enqueue(store, "soon", due="+60000")
    await enqueue(store, "later-1", "later-2", "later-3", due="+3600000")
    seen = await store.observe([QUEUE], horizon_seconds=100)
    queue = seen.queues[QUEUE]
    assert (queue.due, queue.due_soon, queue.later) == (2, 1, 3)
    assert queue.oldest_due_age_seconds == (seen.now_ms - (current - 30_000)) / 1000
    assert queue.next_due_ms == soon_ms


async def test_scores_beyond_all_numbers_do_not_break_the_answer(store: JobStore) -> None:
    current = await now_ms(store)
    await ask(store, "ZADD", QUEUE, "-inf", "a", "+inf", "b", current - 1000.5, "c")
    seen = await store.observe([QUEUE])
    queue = seen.queues[QUEUE]
    assert (queue.due, queue.due_soon, queue.later) == (2, 0, 1)
    assert queue.oldest_due_age_seconds is not None
    assert queue.oldest_due_age_seconds > 0
    assert queue.next_due_ms is not None
    assert queue.next_due_ms > current


async def test_several_queues_are_seen_under_the_names_given(store: JobStore) -> None:
    await enqueue(store, "1", queue_name="emails")
    await enqueue(store, "2", "3")
    seen = await store.observe(["emails", QUEUE, "never-seen"])
    assert [(name, queue.due) for name, queue in seen.queues.items()] == [
        ("emails", 1),
        (QUEUE, 2),
        ("never-seen", 0),
    ]


async def test_workers_are_seen_with_what_they_carry(store: JobStore) -> None:
    worker = await start_worker(store, pod_uid="pod-1", queues=("emails", QUEUE))
    idle = await start_worker(store, "idle")
    await enqueue(store, "1", "2")
    jobs = await worker.take(2)
    await store.set_drain("pod-1")
    seen = await store.observe([QUEUE])
    assert set(seen.workers) == {worker.worker_id, idle.worker_id}
    carrier = seen.workers[worker.worker_id]
    assert (carrier.worker_id, carrier.pod_uid) == (worker.worker_id, "pod-1")
    assert (carrier.busy, carrier.capacity, carrier.is_draining) == (2, 10, True)
    assert carrier.queues == ("emails", QUEUE)
    assert seen.now_ms < carrier.lease_ends_ms <= seen.now_ms + 15_000
    assert carrier.identity == worker.identity
    other = seen.workers[idle.worker_id]
    assert (other.pod_uid, other.busy, other.is_draining) == ("", 0, False)
    await worker.finish(*map(done, jobs))
    assert (await store.observe([])).workers[worker.worker_id].busy == 0


async def test_caller_without_a_record_is_seen_with_little_to_say(store: JobStore) -> None:
    await enqueue(store, "1")
    await store.atomic_lock_and_remove_job("1", QUEUE, "old-style", 60_000)
    seen = (await store.observe([])).workers["old-style"]
    assert (seen.busy, seen.capacity, seen.pod_uid, seen.queues) == (1, 0, "", ())


async def test_key_that_is_no_queue_is_left_out_and_not_an_empty_queue(store: JobStore) -> None:
    """Zero would scale real work away; unknown must not look like it, nor hide the other queues."""
    await ask(store, "SET", QUEUE, "text")
    await enqueue(store, "1", queue_name="emails")
    seen = await store.observe([QUEUE, "emails"])
    assert seen.queues.keys() == {"emails"}
    assert seen.queues["emails"].due == 1


async def test_each_queue_has_a_horizon_of_its_own(store: JobStore) -> None:
    await enqueue(store, "1", due="+60000")
    await enqueue(store, "2", due="+60000", queue_name="emails")
    await enqueue(store, "3", due="+60000", queue_name="reports")
    seen = await store.observe(["emails", QUEUE, "reports"], {"emails": 100, "reports": 10})
    assert {name: queue.due_soon for name, queue in seen.queues.items()} == {
        "emails": 1,
        QUEUE: 0,
        "reports": 0,
    }


async def test_a_worker_is_seen_with_what_it_has_ended_since_it_registered(store: JobStore) -> None:
    before_ms = await now_ms(store)
    worker = await start_worker(store)
    await enqueue(store, "1", "2", "3")
    claimed = await worker.claim(3)
    await worker.finish(done(claimed.jobs[0]), done(claimed.jobs[1]))
    seen = (await store.observe([])).workers[worker.worker_id]
    assert (seen.ended, seen.busy) == (2, 1)
    assert seen.registered_ms is not None
    assert before_ms <= seen.registered_ms <= seen.lease_ends_ms


async def test_whoever_listens_hears_which_queue_has_changed(store: JobStore) -> None:
    async with store.listen() as hear:
        while await hear(0.05) is not None:
            pass
        await enqueue(store, "1", queue_name="emails")
        # That it listens may be told late, which is no name.
        assert await eventually(lambda: hear(1), message="nothing was heard") == "emails"
        assert await hear(0.05) is None


# Orphaned jobs


async def test_jobs_of_ended_leases_are_orphaned_in_the_queue_they_were_claimed_from(store: JobStore) -> None:
    dead, living = (
        await start_worker(store, "dead", queues=(QUEUE, "emails")),
        await start_worker(store, "living"),
    )
    await enqueue(store, "1", "2", "3")
    await enqueue(store, "4", queue_name="emails")
    await living.take_one()
    assert len(await dead.take(3)) == 3
    seen = await store.observe([QUEUE, "emails"])
    assert [queue.orphaned for queue in seen.queues.values()] == [0, 0]
    assert seen.ended_leases == 0
    await end_lease(store, "dead")
    # It expires long before anybody may come to look.
    await ask(store, "DEL", store.keys.worker_key("dead"))
    before = await snapshot(store)
    seen = await store.observe([QUEUE, "emails", "other"])
    assert {name: queue.orphaned for name, queue in seen.queues.items()} == {
        QUEUE: 2,
        "emails": 1,
        "other": 0,
    }
    assert [queue.due for queue in seen.queues.values()] == [0, 0, 0]
    assert seen.ended_leases == 1
    assert await snapshot(store) == before


async def test_jobs_that_are_no_longer_those_of_the_dead_worker_are_not_orphaned(store: JobStore) -> None:
    dead = await start_worker(store, "dead")
    await enqueue(store, "of-another", "ended", "no-hash", "gone", "orphan")
    await dead.take(5)
    await ask(store, "HSET", "rrq:job:of-another", "worker_id", "another")
    await ask(store, "HSET", "rrq:job:ended", "status", "COMPLETED")
    await ask(store, "DEL", "rrq:job:no-hash", "rrq:job:gone")
    await ask(store, "SET", "rrq:job:no-hash", "precious")
    await end_lease(store, "dead")
    assert (await store.observe([QUEUE])).queues[QUEUE].orphaned == 1


async def test_a_look_at_very_many_orphaned_jobs_is_bounded(store: JobStore) -> None:
    dead = await start_worker(store, "dead")
    await enqueue(store, *(f"job-{number}" for number in range(700)))
    assert len(await dead.take(700)) == 700
    await end_lease(store, "dead")
    for number in range(150):
        await ask(store, "ZADD", store.keys.leases, 1, f"idle-{number}")
    seen = await store.observe([QUEUE])
    assert seen.ended_leases == 100
    assert seen.has_more_orphans, "a burst must not take this for an end"
    assert seen.queues[QUEUE].orphaned == 0, "the dead worker is the last of those whose lease has ended"
    await ask(store, "ZREMRANGEBYSCORE", store.keys.leases, 1, 1)
    seen = await store.observe([QUEUE])
    assert (seen.ended_leases, seen.queues[QUEUE].orphaned, seen.has_more_orphans) == (1, 500, True)
