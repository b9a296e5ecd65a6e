"""Only jobs that may start ask for pods: what is put aside before queues are counted, on a real Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from queue_steps import ask, enqueue, start_worker
from rrq.broker.messages import Admission, Observation, QueueObservation
from rrq.flow import Limit
from rrq_operator.redis import admission as admission_module
from rrq_operator.redis.admission import JobAdmission, count_unsorted_as_blocked, take_some
from rrq_operator.redis.queues import QueueTrouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rrq.store import JobStore


class CountedQueues:
    """The queues of the store, with a list of what was asked."""

    def __init__(self, store: JobStore, page: int = 1000) -> None:
        self.store = store
        self.page = page
        self.asked: list[str] = []
        self.is_read_only = False

    async def observe(self, horizons_seconds: Mapping[str, float]) -> Observation:
        self.asked.append("observe")
        return await self.store.observe(list(horizons_seconds), horizons_seconds)

    async def admit(self, queues: Sequence[str]) -> Admission:
        self.asked.append(f"admit {','.join(queues)}")
        if self.is_read_only:
            raise QueueTrouble("Unreachable", "READONLY")
        return await self.store.admit_jobs(queues, self.page)


@pytest.fixture
def queues(store: JobStore) -> CountedQueues:
    return CountedQueues(store)


@pytest.fixture
def troubles() -> list[str]:
    return []


Demand = Callable[..., Awaitable[int]]


@pytest.fixture
def demand(queues: CountedQueues, troubles: list[str]) -> Demand:
    """Count as a group does: jobs are put aside only where something is paused or limited."""
    admission = JobAdmission(queues, lambda trouble: troubles.append(str(trouble)))

    async def count(*names: str) -> int:
        horizons = dict.fromkeys(names or ("default",), 0.0)
        seen = await queues.observe(horizons)
        if seen.is_controlled:
            seen = await admission.set_aside(seen, horizons)
        return sum(queue.due - queue.blocked for queue in seen.queues.values())

    return count


def jobs(count: int, start: int = 0) -> list[str]:
    return [f"job-{number:05}" for number in range(start, start + count)]


async def test_nothing_more_is_asked_while_nothing_is_controlled(
    store: JobStore, queues: CountedQueues, demand: Demand
) -> None:
    await enqueue(store, *jobs(20))
    assert await demand() == 20
    assert queues.asked == ["observe"]


async def test_jobs_over_a_limit_are_no_demand(
    store: JobStore, queues: CountedQueues, demand: Demand
) -> None:
    await store.set_limit("function:greet", Limit(concurrency=3))
    await enqueue(store, *jobs(50))
    assert await demand() == 3
    assert queues.asked == ["observe", "admit default", "observe"]
    queues.asked.clear()
    assert await demand() == 3
    assert queues.asked == ["observe", "admit default"], "nothing was put aside, so nothing looks different"


async def test_a_paused_queue_is_no_demand_and_is_not_looked_through(
    store: JobStore, queues: CountedQueues, demand: Demand
) -> None:
    await store.set_pause("queue:default", "paused")
    await enqueue(store, *jobs(50))
    await enqueue(store, "other", queue_name="other")
    assert await demand("default", "other") == 1
    assert queues.asked == ["observe", "admit other"]


async def test_rated_jobs_are_demand_again_when_their_time_has_come(store: JobStore, demand: Demand) -> None:
    await store.set_limit("function:greet", Limit(rate=2, per_seconds=60))
    worker = await start_worker(store)
    await enqueue(store, *jobs(5))
    assert len(await worker.take(10)) == 2
    assert await demand() == 0
    # As if the minute were over.
    await ask(store, "DEL", store.keys.rate_key("f:greet"))
    await ask(store, "ZADD", store.keys.blocked_scopes, 0, "f:greet")
    assert await demand() == 2


async def test_a_flood_of_jobs_that_may_not_start_asks_for_nothing_also_before_all_are_put_aside(
    store: JobStore, queues: CountedQueues, demand: Demand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "_MOST_CALLS", 3)
    queues.page = 100
    await store.set_limit("function:greet", Limit(concurrency=4))
    await enqueue(store, *jobs(1000))
    demands = [await demand() for _ in range(5)]
    assert demands == [4] * 5
    assert (await store.observe(["default"])).queues["default"].due == 4, "by then all are put aside"


async def test_where_there_is_too_much_for_one_round_every_queue_gets_a_turn(
    store: JobStore, queues: CountedQueues, demand: Demand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "_MOST_CALLS", 1)
    monkeypatch.setattr(admission_module, "_ENTRIES_PER_CALL", 1)
    await store.set_limit("function:other", Limit(concurrency=4))
    for name in ("a", "b", "c"):
        await enqueue(store, f"job-{name}", queue_name=name)
    for _ in range(3):
        await demand("a", "b", "c")
    assert sorted(question for question in queues.asked if question != "observe") == [
        *("admit a", "admit b", "admit c")
    ]


async def test_what_cannot_be_put_aside_is_counted_and_said(
    store: JobStore, queues: CountedQueues, demand: Demand, troubles: list[str]
) -> None:
    queues.is_read_only = True
    await store.set_limit("function:greet", Limit(concurrency=3))
    await enqueue(store, *jobs(50))
    assert await demand() == 50
    assert troubles == ["READONLY"]


# The plan


def seen(**queues: tuple[int, int]) -> Observation:
    return Observation(
        0, {name: QueueObservation(due, 0, 0, None, None, held) for name, (due, held) in queues.items()}
    )


def test_one_call_looks_at_a_bounded_number_of_jobs() -> None:
    full = seen(a=(900, 0), b=(10**6, 0), c=(200, 0), d=(1, 0))
    assert take_some(["a", "b", "c", "d"], full) == ["a", "b"]
    assert take_some(["b", "c", "d"], full) == ["b", "c", "d"]
    assert take_some([], full) == []


def test_jobs_that_were_not_looked_at_count_as_blocked() -> None:
    counted = count_unsorted_as_blocked(seen(a=(500, 3), b=(500, 3), c=(500, 490)), {"a": 20, "c": 20})
    assert {name: queue.blocked for name, queue in counted.queues.items()} == {"a": 480, "b": 3, "c": 490}
