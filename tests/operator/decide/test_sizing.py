"""What was seen in Redis and of the pods, turned into one step of sizing."""

from dataclasses import replace

import pytest

from rrq.broker.messages import Observation, QueueObservation, WorkerObservation
from rrq_operator.api.spec import PoolSpec, ScaleDown, Scaling, Worker
from rrq_operator.decide.objects import PodObject
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.shrinking import VICTIM_COST, ShrinkPlan
from rrq_operator.decide.sizing import (
    FIRST_STARTUP_SECONDS,
    SETTLING_SECONDS,
    SizingInput,
    SizingMemory,
    SizingStep,
    decide_size,
    remember_startups,
)

SPEC = PoolSpec(
    queues=["fast", "slow"],
    worker=Worker(settings="shop.jobs.settings"),
    scaling=Scaling(max_replicas=20, scale_down=ScaleDown(window_seconds=0)),
)

SMALL = SPEC.model_copy(update={"scaling": Scaling(max_replicas=1)})


def queue(due: int = 0, due_soon: int = 0, later: int = 0, held: int = 0) -> QueueObservation:
    return QueueObservation(due, due_soon, later, None, None, held)


def worker(
    worker_id: str,
    pod_uid: str,
    busy: int = 0,
    ended: int = 0,
    *,
    is_draining: bool = False,
    incarnation: str = "first",
) -> WorkerObservation:
    return WorkerObservation(
        worker_id, pod_uid, busy, 10, is_draining, ("fast", "slow"), 0, incarnation, ended=ended
    )


def seen(*workers: WorkerObservation, now_ms: int = 0, **queues: QueueObservation) -> Observation:
    return Observation(
        now_ms, {"fast": queue(), "slow": queue(), **queues}, {one.worker_id: one for one in workers}
    )


def ready_pod(uid: str, deletion_cost: int = 0) -> PodObject:
    return PodObject(uid, f"pool-{uid}", created_at=0.0, ready_at=4.0, deletion_cost=deletion_cost)


class Sized:
    """A pool of one replica per pod, whose flags are set as soon as they are asked for."""

    def __init__(self, *pods: PodObject, spec: PoolSpec = SPEC) -> None:
        self.pods = pods
        self.spec = spec
        self.memory = SizingMemory()

    def step(
        self, observation: Observation | None, now_seconds: float, *, is_paused: bool = False
    ) -> SizingStep:
        queues = ["fast", "slow"]
        given = SizingInput(queues, observation, self.pods, len(self.pods), now_seconds, is_paused=is_paused)
        step, self.memory = decide_size(self.spec, given, self.memory)
        if observation is not None:
            self.memory = replace(self.memory, flagged=frozenset(step.plan.drain))
        return step


def test_a_pool_that_stays_as_big_as_it_is_because_of_its_roll_out_says_so() -> None:
    pods = [ready_pod("a"), PodObject("b", "pool-b", created_at=0.0, ready_at=None, has_started=False)]
    given = SizingInput(["fast", "slow"], seen(fast=queue(due=1)), pods, 2, 0.0, is_rolling_out=True)
    _, memory = decide_size(SPEC, given, SizingMemory())
    given = replace(given, now_seconds=1.0)
    step, _ = decide_size(SPEC, given, memory)
    assert (step.replicas, step.decision.replicas) == (2, 1)
    assert step.decision.words.endswith("shrinking from 2 to 1, when the roll-out is over")
    # Not while Kubernetes has merely not noted yet what was asked for, and not where all can go.
    for other in (replace(given, is_observed=False), replace(given, seen=seen())):
        step, _ = decide_size(SPEC, other, memory)
        assert step.decision.replicas < 2
        assert "roll-out" not in step.decision.words


# Demand


def test_demand_is_the_sum_of_all_queues_and_own_workers() -> None:
    observation = seen(
        worker("a1", "a", busy=3),
        worker("a2", "a", busy=4),
        worker("b1", "b", busy=5),
        fast=queue(due=10, due_soon=1, later=5000),
        slow=queue(due=20, due_soon=2),
    )

    workload = Sized(ready_pod("a"), ready_pod("b")).step(observation, 0).workload

    assert workload is not None
    assert (workload.due, workload.due_soon, workload.busy, workload.demand) == (30, 3, 12, 45)
    assert workload.free_slots == 7 + 6 + 5


@pytest.mark.parametrize(
    ("fast", "paused", "is_paused", "expected"),
    [
        (queue(due=30, held=25, due_soon=4), frozenset(), False, (6, 25, 4, 5)),
        (queue(due=30, held=30, due_soon=4), frozenset({"queue:fast"}), False, (1, 30, 0, 2)),
        (queue(due=30, due_soon=4), frozenset({"queue:other", "function:fast"}), False, (31, 0, 4, 5)),
        (queue(due=30, held=25, due_soon=4), frozenset(), True, (0, 31, 0, 0)),
    ],
    ids=["limited", "queue paused", "others paused", "pool paused"],
)
def test_what_may_not_start_is_no_demand(
    fast: QueueObservation, paused: frozenset[str], is_paused: bool, expected: tuple[int, int, int, int]
) -> None:
    fast, slow = replace(fast, orphaned=3), replace(queue(due=1), orphaned=2)
    observation = replace(seen(worker("a1", "a", busy=2), fast=fast, slow=slow), paused=paused)

    workload = Sized(ready_pod("a")).step(observation, 0, is_paused=is_paused).workload

    assert workload is not None
    assert (workload.due, workload.blocked, workload.due_soon, workload.orphaned) == expected
    assert (workload.busy, workload.is_paused) == (2, is_paused)


def test_a_pool_that_shares_its_queue_with_a_slower_one_starts_no_sooner_than_it_must() -> None:
    # Looked at as far ahead as the slowest pool needs; the first guess of this one is 24.5 s.
    for next_due_ms, replicas in ((24_000, 1), (25_000, 0)):
        shared = replace(queue(due_soon=1), next_due_ms=next_due_ms)
        assert Sized().step(seen(fast=shared), 0).replicas == replicas


def test_workers_of_other_pools_and_queues_of_others_are_not_counted() -> None:
    observation = seen(
        worker("other", "pod-of-another-pool", busy=50),
        worker("bare", "", busy=50),
        worker("a1", "a", busy=1),
        foreign=queue(due=5000),
    )

    workload = Sized(ready_pod("a")).step(observation, 0).workload

    assert workload is not None
    assert (workload.due, workload.busy) == (0, 1)


@pytest.mark.parametrize(
    "observation",
    [None, Observation(0, {}), Observation(0, {"fast": queue(due=3)})],
    ids=["all", "each", "one"],
)
def test_a_pool_with_an_unreadable_queue_keeps_its_size_and_its_pods(observation: Observation | None) -> None:
    pool = Sized(ready_pod("a"), ready_pod("b", VICTIM_COST))

    step = pool.step(observation, 0)

    assert (step.workload, step.replicas, step.plan) == (None, 2, ShrinkPlan())
    assert step.decision.reason == Reason.QUEUE_UNREADABLE


def test_a_lowered_maximum_without_redis_leaves_the_choice_to_kubernetes() -> None:
    pool = Sized(ready_pod("a"), ready_pod("b"), spec=SMALL)

    steps = [pool.step(None, now_seconds) for now_seconds in range(0, 31, 5)]

    assert [step.replicas for step in steps] == [2] * 6 + [1]
    assert all(step.plan == ShrinkPlan() for step in steps)


def test_a_lowered_maximum_drains_first_where_only_a_queue_cannot_be_read() -> None:
    pool = Sized(ready_pod("a"), ready_pod("b"), spec=SMALL)
    workers = {"a1": worker("a1", "a", busy=1), "b1": worker("b1", "b")}
    sizes = []
    for now_seconds in range(0, 41, 5):
        if "b" in pool.memory.flagged:
            workers["b1"] = replace(workers["b1"], is_draining=True)
        step = pool.step(Observation(0, {"fast": queue()}, workers), now_seconds)
        sizes.append(step.replicas)

    assert sizes == [2] * 7 + [1] * 2
    assert step.plan.costs == {"pool-b": VICTIM_COST}


# Speed


def measure_finished(
    before: list[WorkerObservation], after: list[WorkerObservation]
) -> tuple[int, float, int]:
    pool = Sized(ready_pod("a"), ready_pod("b"))
    pool.step(seen(*before, now_ms=10_000, fast=queue(due=50)), 0)
    workload = pool.step(seen(*after, now_ms=12_000, fast=queue(due=50)), 2).workload
    assert workload is not None
    return workload.finished, workload.elapsed_seconds, workload.working_replicas


@pytest.mark.parametrize(
    "newcomer",
    [
        worker("b2", "b", ended=40),
        worker("b1", "b", ended=2),
        worker("b1", "b", ended=900, incarnation="second"),
        worker("b1", "b", ended=60, is_draining=True),
    ],
    ids=["not seen before", "counts from zero again", "restarted under its name", "no longer claims"],
)
def test_only_workers_that_were_there_all_the_time_count_for_the_speed(
    newcomer: WorkerObservation,
) -> None:
    before = [worker("a1", "a", ended=100), worker("b1", "b", ended=50)]

    finished, _, working = measure_finished(before, [worker("a1", "a", ended=110), newcomer])

    assert finished == 10
    assert working == (2 if newcomer.ended == 2 else 1)


# Start-up


def test_each_pod_is_measured_once_however_often_it_becomes_ready() -> None:
    memory = remember_startups(SizingMemory(), [PodObject("a", "a", 100.0, 108.0)])
    for ready_at in (None, 300.0, 500.0):
        memory = remember_startups(memory, [PodObject("a", "a", 100.0, ready_at)])

    assert memory.startup_seconds == 8.0
    assert memory.horizon_seconds == 8 * 1.5 + 2, "the poll and the clock of Kubernetes count whole seconds"


def test_later_pods_move_the_measured_start_up_a_little() -> None:
    memory = remember_startups(SizingMemory(), [PodObject("a", "a", 0.0, 10.0)])
    memory = remember_startups(memory, [PodObject("a", "a", 0.0, 10.0), PodObject("b", "b", 50.0, 70.0)])

    assert memory.startup_seconds == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("created_at", "ready_at", "horizon_seconds"),
    [
        (100.0, None, FIRST_STARTUP_SECONDS * 1.5 + 2),
        (0.0, 500.0, 600.0),
        (100.0, 99.0, 2.0),
        (0.0, 7200.0, FIRST_STARTUP_SECONDS * 1.5 + 2),
    ],
    ids=[
        "a guess before the first pod is ready",
        "at most",
        "clocks differ",
        "became ready again after hours",
    ],
)
def test_the_horizon_has_its_limits(
    created_at: float, ready_at: float | None, horizon_seconds: float
) -> None:
    memory = remember_startups(SizingMemory(), [PodObject("a", "a", created_at, ready_at)])

    assert memory.horizon_seconds == horizon_seconds
    assert remember_startups(memory, []).horizon_seconds == horizon_seconds, "also when the pod is gone"


# Down


def watched_pool(*pods: PodObject) -> Sized:
    """Return a pool that has been busy, and watched, for longer than it takes to trust what is seen."""
    pool = Sized(*pods)
    for now_seconds in range(0, int(SETTLING_SECONDS) + 1, 2):
        pool.step(seen(*idle_workers(pool), fast=queue(due=10 * len(pods))), now_seconds)
    return pool


def idle_workers(pool: Sized, *, is_draining: bool = False) -> list[WorkerObservation]:
    return [worker(f"{pod.uid}1", pod.uid, is_draining=is_draining) for pod in pool.pods]


def test_pods_are_flagged_first_and_go_when_seen_flagged_and_idle() -> None:
    pool = watched_pool(ready_pod("a"), ready_pod("b"))

    first = pool.step(seen(*idle_workers(pool)), 21)
    second = pool.step(seen(*idle_workers(pool, is_draining=True)), 22)

    assert (set(first.plan.drain), first.replicas) == ({"a", "b"}, 2)
    assert (second.replicas, set(second.plan.costs.values())) == (0, {VICTIM_COST})


def test_one_worker_of_a_pod_that_may_claim_keeps_the_pod() -> None:
    pool = watched_pool(ready_pod("a"))
    pool.step(seen(*idle_workers(pool)), 21)

    step = pool.step(seen(worker("a1", "a", is_draining=True), worker("a2", "a")), 22)

    assert step.replicas == 1


def steps_until_gone(pool: Sized, start_seconds: int) -> int:
    """Return for how many seconds an idle, flagged pool is kept."""
    for now_seconds in range(start_seconds, start_seconds + 100):
        if pool.step(seen(*idle_workers(pool, is_draining=True)), now_seconds).replicas == 0:
            return now_seconds - start_seconds
    raise AssertionError("the pool was never let go")


def test_a_leader_relies_on_no_pod_before_it_has_watched_for_a_while() -> None:
    assert steps_until_gone(Sized(ready_pod("a")), 0) == SETTLING_SECONDS, "a new one"
    assert steps_until_gone(watched_pool(ready_pod("a")), 100) == SETTLING_SECONDS, "one who was away"
    blinded = watched_pool(ready_pod("a"))
    blinded.step(None, 21)
    assert steps_until_gone(blinded, 22) == SETTLING_SECONDS - 1, "after an outage"
    assert steps_until_gone(watched_pool(ready_pod("a")), 21) == 1, "a flag that it has not set it sets first"


def test_a_pod_that_lost_a_worker_from_sight_is_kept_until_it_would_be_back() -> None:
    pool = watched_pool(ready_pod("a"))
    pool.step(seen(worker("a1", "a"), worker("a2", "a")), 21)
    pool.step(seen(worker("a1", "a", is_draining=True)), 22)

    assert steps_until_gone(pool, 23) == SETTLING_SECONDS - 1


def test_a_pod_whose_worker_is_seen_has_started_before_the_kubelet_reports_it() -> None:
    late = PodObject("b", "pool-b", created_at=20.0, ready_at=None, has_started=False)
    pool = watched_pool(ready_pod("a"), late)
    busy = [worker("a1", "a", busy=1), worker("b1", "b", busy=1, is_draining=True)]

    assert [pool.step(seen(*busy), now_seconds).replicas for now_seconds in (21, 22, 23)] == [2, 2, 2]


def test_a_worker_that_redis_forgot_before_it_was_seen_keeps_its_pod() -> None:
    pool = watched_pool(ready_pod("a"), PodObject("b", "pool-b", created_at=20.0, ready_at=None))
    forgotten = seen()  # Redis restarted; the worker of "b" had come, claimed a job and was never looked at

    replicas = [pool.step(forgotten, now_seconds).replicas for now_seconds in range(21, 31)]

    assert set(replicas) == {2}


def test_idle_pods_leave_while_a_flagged_pod_works_for_an_hour() -> None:
    pool = watched_pool(*map(ready_pod, "abcd"))
    busy = {"a": 5, "b": 1}
    sizes = []
    for now_seconds in range(21, 25):
        flagged = pool.memory.flagged
        workers = [
            worker(f"{pod.uid}1", pod.uid, busy.get(pod.uid, 0), is_draining=pod.uid in flagged)
            for pod in pool.pods
        ]
        step = pool.step(seen(*workers), now_seconds)
        assert step.decision.replicas == 1
        assert "b" in step.plan.drain
        pool.pods = tuple(pod for pod in pool.pods if step.replicas == 4 or pod.uid in busy)
        sizes.append(step.replicas)

    assert sizes == [4, 2, 2, 2]


def test_a_pool_with_the_size_it_needs_has_nothing_to_do() -> None:
    pool = watched_pool(ready_pod("a"), ready_pod("b"))

    steps = [
        pool.step(seen(*idle_workers(pool), fast=queue(due=20)), now_seconds)
        for now_seconds in range(21, 90, 2)
    ]

    assert all((step.plan, step.replicas) == (ShrinkPlan(), 2) for step in steps)
    assert len({step.decision.words for step in steps}) == 1


def test_when_work_comes_back_flags_are_taken_away() -> None:
    pool = watched_pool(ready_pod("a"), ready_pod("b"))
    pool.step(seen(*idle_workers(pool)), 21)
    back = pool.step(seen(*idle_workers(pool, is_draining=True), fast=queue(due=20)), 22)
    assert (set(back.plan.release), back.replicas) == ({"a", "b"}, 2)

    again = pool.step(seen(*idle_workers(pool), fast=queue(due=20)), 23)
    assert (again.plan, again.replicas) == (ShrinkPlan(), 2)
