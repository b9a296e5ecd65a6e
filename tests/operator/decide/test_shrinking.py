"""Which pods leave a pool that becomes smaller, and when they may.

The last part runs the plan against a small model of Kubernetes and Redis, with everything happening between
everything else, and watches that no pod is taken away with a running job.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrq.broker.messages import Observation, QueueObservation, WorkerObservation
from rrq_operator.api.spec import PoolSpec, ScaleDown, Scaling, Worker
from rrq_operator.decide.objects import PodObject
from rrq_operator.decide.shrinking import VICTIM_COST, Candidate, ShrinkInput, ShrinkPlan, plan_shrinking
from rrq_operator.decide.sizing import SizingInput, SizingMemory, decide_size


def pod(
    uid: str,
    *,
    is_ready: bool = True,
    has_started: bool = True,
    deletion_cost: int = 0,
    busy: int = 0,
    is_draining: bool = False,
    has_workers: bool = True,
    is_settled: bool = True,
) -> Candidate:
    """Return a ready, idle pod; ``uid`` tells its age too: later letters are younger."""
    ready_at = 1.0 if is_ready else None
    known = PodObject(uid, f"pool-{uid}", float(ord(uid[0])), ready_at, deletion_cost, has_started)
    return Candidate(known, busy, is_draining, has_workers, is_settled)


def with_cost(one: Candidate, costs: Mapping[str, int], otherwise: int | None = None) -> Candidate:
    """Return the candidate with the cost that a plan gives its pod."""
    cost = costs.get(one.pod.name, one.pod.deletion_cost if otherwise is None else otherwise)
    return replace(one, pod=replace(one.pod, deletion_cost=cost))


def flagged_pod(uid: str, **changes: Any) -> Candidate:
    return pod(uid, is_draining=True, **changes)


def pending_pod(uid: str, **changes: Any) -> Candidate:
    return pod(uid, is_ready=False, has_workers=False, has_started=False, **changes)


def plan(
    candidates: list[Candidate],
    target: int,
    flagged: Collection[str] = (),
    *,
    requested: int | None = None,
    given_up: Collection[str] = (),
    is_rolling_out: bool = False,
    is_observed: bool = True,
) -> ShrinkPlan:
    requested = len(candidates) if requested is None else requested
    return plan_shrinking(
        ShrinkInput(candidates, requested, target, flagged, given_up, is_rolling_out, is_observed)
    )


#: MODEL_EXAMPLES=5000 draws many more, for a change of these rules.
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "100"))

# Who is flagged


@pytest.mark.parametrize(
    ("candidates", "victims"),
    [
        ([pod("a", busy=1), pod("b")], "b"),
        ([pod("a"), pod("b")], "b"),
        ([pod("a", busy=2), pod("b", busy=1)], "b"),
        ([flagged_pod("a"), pod("b")], "a"),
        ([flagged_pod("a", busy=2), pod("b", busy=1)], "a"),
        ([pod("a"), pod("b", is_ready=False, has_workers=False)], "b"),
        ([pod("a", busy=1, is_ready=False), pod("b")], "a"),
        ([pod("a", busy=1), pod("b", busy=2), pod("c"), pod("d")], "dca"),
        ([flagged_pod("a", busy=2), flagged_pod("b"), pod("c", busy=1)], "ba"),
    ],
    ids=[
        "idle",
        "youngest",
        "least busy",
        "chosen before",
        "chosen before though busier",
        "not ready",
        "not ready though busy",
        "idle ones, then the least busy",
        "of those chosen before the busiest last",
    ],
)
def test_the_pods_that_leave_are_those_that_cost_least(candidates: list[Candidate], victims: str) -> None:
    first = plan(candidates, 1)

    assert first.drain == tuple(victims)
    assert (first.replicas, dict(first.costs), first.waiting_for) == (None, {}, len(victims))


def test_an_idle_pod_leaves_instead_of_a_flagged_one_that_still_works() -> None:
    candidates = [flagged_pod("a", busy=1), pod("b"), pod("c")]

    first = plan(candidates, 2, {"a"})
    second = plan([pod("a", busy=1), pod("b"), flagged_pod("c")], 2, {"c"})

    assert (first.drain, first.release, first.replicas) == (("c",), ("a",), None)
    assert (second.drain, second.release, second.replicas) == (("c",), (), 2)


# When they may go


@pytest.mark.parametrize(
    "victim",
    [
        flagged_pod("b"),
        flagged_pod("b", is_ready=False),
        pod("b", is_ready=False, has_workers=False),
        pending_pod("b", is_settled=False),
    ],
    ids=["idle", "not ready", "its workers never came", "pending, a worker out of sight"],
)
def test_a_pod_seen_flagged_and_idle_goes_by_name(victim: Candidate) -> None:
    step = plan([pod("a", busy=1), victim], 1, {"b"})

    assert (step.replicas, dict(step.costs), step.waiting_for) == (1, {"pool-b": VICTIM_COST}, 0)
    assert step.drain == ("b",)


@pytest.mark.parametrize(
    ("victim", "flagged"),
    [
        (pod("b"), set()),
        (pod("b"), {"b"}),
        (flagged_pod("b", busy=1), {"b"}),
        (flagged_pod("b"), set()),
        (pod("b", has_workers=False), set()),
        (flagged_pod("b", is_settled=False), {"b"}),
        (pod("b", has_workers=False, is_settled=False), {"b"}),
    ],
    ids=[
        "idle but may claim",
        "its flag ended",
        "flagged but busy",
        "flagged by an earlier leader, perhaps about to end",
        "no workers yet and not flagged",
        "a worker of it vanished from sight",
        "all workers of it vanished from sight",
    ],
)
@pytest.mark.parametrize("target", [0, 1])
def test_a_pod_that_is_busy_or_could_start_a_job_never_goes(
    victim: Candidate, flagged: set[str], target: int
) -> None:
    step = plan([pod("a", busy=1), victim], target, flagged)

    assert step.replicas is None
    assert VICTIM_COST not in step.costs.values()
    assert "b" in step.drain


@pytest.mark.parametrize(
    "other",
    [
        pod("a", busy=1, is_ready=False),
        pod("a", is_ready=False, has_workers=False),
        flagged_pod("a", busy=1, is_ready=False),
        flagged_pod("a", is_ready=False, is_settled=False),
    ],
    ids=["not ready", "starting", "flagged and not ready", "workers out of sight"],
)
def test_nothing_is_lowered_while_kubernetes_might_take_another_pod(other: Candidate) -> None:
    step = plan([other, flagged_pod("b", is_ready=False)], 1, {"b"})

    assert step.replicas is None
    assert VICTIM_COST not in step.costs.values()


@pytest.mark.parametrize("target", [60, 30, 11, 10])
def test_pending_pods_are_given_back_whether_or_not_others_stay_pending(target: int) -> None:
    busy = [pod(f"a{number}", busy=1) for number in range(10)]
    pending = [pending_pod(f"b{number}") for number in range(90)]

    first = plan([*busy, *pending], target)
    second = plan([*busy, *pending], target, set(first.drain))

    assert (len(first.drain), first.replicas) == (100 - target, None)
    assert second.replicas == target
    assert not set(second.costs) & {one.pod.name for one in busy}


@pytest.mark.parametrize("target", [60, 30, 11, 10])
def test_pods_that_crash_again_and_again_are_given_back_whether_or_not_others_stay(target: int) -> None:
    idle = [pod(f"a{number}") for number in range(10)]
    crashing = [pod(f"b{number}", is_ready=False, has_workers=False) for number in range(90)]

    first = plan([*idle, *crashing], target)
    idle = [replace(one, is_draining=one.uid in first.drain) for one in idle]
    second = plan([*idle, *crashing], target, set(first.drain))
    # Which of them Kubernetes takes is its choice: each was refused jobs, and those that are left may have some.
    left = [with_cost(one, second.costs, 0) for one in (*idle, *crashing)][:target]
    third = plan(left, target, set(first.drain))

    assert first.replicas is None
    assert set(first.drain) >= {one.uid for one in crashing}
    assert (second.replicas, second.waiting_for, len(second.costs)) == (target, 0, 100 - target)
    assert (third.drain, len(third.release)) == ((), target - 10)


def test_a_pod_that_is_not_ready_is_refused_jobs_only_while_it_could_be_taken_for_another() -> None:
    starting = [pod(uid, is_ready=False, has_workers=False) for uid in "bc"]

    assert plan([pod("a"), *starting, pending_pod("d")], 3).drain == ("d",)
    assert plan([pod("a", busy=1, is_ready=False), *starting], 2).drain == ("c",)
    assert plan([pod("a"), *starting], 2, is_rolling_out=True).drain == ("c",)
    assert plan([flagged_pod("a"), *starting], 3, {"a"}, given_up={"a"}).drain == ("a",)


def test_beside_a_busy_pod_that_is_not_ready_only_pending_pods_are_given_back() -> None:
    unready, idle = pod("a", busy=1, is_ready=False), flagged_pod("b")

    step = plan([unready, idle, pending_pod("c"), pending_pod("d")], 0, {"a", "b", "c", "d"})
    at_most_one = plan([unready, pending_pod("c"), pending_pod("d")], 2, {"d"})

    assert (step.replicas, set(step.costs)) == (2, {"pool-c", "pool-d"})
    assert (at_most_one.replicas, at_most_one.drain) == (2, ("d",))


def test_quiet_pods_leave_while_other_flagged_pods_still_run_jobs() -> None:
    candidates = [pod("a", busy=1), flagged_pod("b"), flagged_pod("c", busy=1), flagged_pod("d")]

    step = plan(candidates, 1, {"b", "c", "d"})

    assert (step.replicas, step.waiting_for) == (2, 1)
    assert dict(step.costs) == {"pool-b": VICTIM_COST, "pool-d": VICTIM_COST}
    assert set(step.drain) == {"b", "c", "d"}


def test_in_a_roll_out_nothing_is_lowered_except_to_nothing() -> None:
    candidates = [flagged_pod("a"), flagged_pod("b")]

    assert plan([pod("a"), flagged_pod("b")], 1, {"b"}, is_rolling_out=True).replicas is None
    assert plan(candidates, 0, {"a", "b"}, requested=1, is_rolling_out=True).replicas == 0


@pytest.mark.parametrize(("requested", "target"), [(1, 1), (1, 2), (2, 2)])
def test_no_pod_is_released_before_kubernetes_has_noted_the_new_size(requested: int, target: int) -> None:
    given_up = [flagged_pod("b", deletion_cost=VICTIM_COST), flagged_pod("c", deletion_cost=VICTIM_COST)]

    step = plan(
        [pod("a"), *given_up],
        target,
        {"b", "c"},
        requested=requested,
        is_rolling_out=True,
        is_observed=False,
    )

    assert step.release == ()
    assert set(step.drain) == {"b", "c"}
    assert step.costs == {}


def test_the_extra_pods_of_a_roll_out_are_not_flagged() -> None:
    assert plan([pod("a"), pod("b"), pod("c")], 2, requested=2, is_rolling_out=True) == ShrinkPlan()


def test_pods_that_never_came_are_given_up_first() -> None:
    assert plan([pod("a"), flagged_pod("b")], 1, {"b"}, requested=10).replicas == 1
    assert plan([pod("a"), pod("b")], 5, requested=10) == ShrinkPlan(replicas=5)
    assert plan([], 0, requested=4).replicas == 0


# Pods that are leaving already


@pytest.mark.parametrize("target", [2, 3, 5])
def test_a_pod_on_its_way_out_stays_flagged_also_when_the_pool_grows(target: int) -> None:
    leaving = flagged_pod("c", deletion_cost=VICTIM_COST)

    step = plan([pod("a"), pod("b"), leaving], target, {"c"}, requested=2)

    assert step == ShrinkPlan(drain=("c",))


def test_no_pod_is_released_before_the_pods_that_leave_are_gone() -> None:
    # "c" and "d" were given up. "e" was flagged too and has gone quiet since; by its age it would go before them.
    candidates = [pod("a", busy=4), *map(flagged_pod, "cde")]

    before = plan(candidates, 2, {"c", "d", "e"}, requested=2)
    after = plan([pod("a", busy=4), flagged_pod("e", deletion_cost=VICTIM_COST)], 2, {"e"}, requested=2)

    assert (set(before.drain), before.release, before.replicas) == ({"c", "d", "e"}, (), None)
    assert (after.drain, after.release, dict(after.costs)) == ((), ("e",), {"pool-e": 0})


@pytest.mark.parametrize("target", [1, 3])
def test_a_pod_given_up_lately_is_not_released_when_the_pool_grows_again(target: int) -> None:
    # It was given up for a pool of none, which grew again before Kubernetes had taken it, or before we saw it taken.
    candidates = [flagged_pod("a")]

    at_once = plan(candidates, target, {"a"}, requested=1, given_up={"a"})
    later = plan(candidates, target, {"a"}, requested=1)

    assert (at_once.drain, at_once.release, at_once.replicas) == (("a",), (), None)
    assert (later.drain, later.release) == ((), ("a",))


# When the work comes back


def test_released_pods_lose_flag_and_cost() -> None:
    candidates = [
        flagged_pod("a", deletion_cost=VICTIM_COST),
        pod("b", has_workers=False),
        flagged_pod("c"),
        pod("d", deletion_cost=7),
    ]

    step = plan(candidates, 4, {"a", "b"})

    assert (set(step.release), dict(step.costs)) == ({"a", "b", "c"}, {"pool-a": 0})
    assert (step.drain, step.replicas) == ((), None)


def test_costs_of_other_people_are_left_alone() -> None:
    assert plan([pod("a", deletion_cost=-5), pod("b", deletion_cost=100)], 2) == ShrinkPlan()


# Properties

Situation = tuple[list[Candidate], int, int, frozenset[str], bool]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Draw a seed instead of each value: many small draws are most of the time that hypothesis takes."""
    random = draw(st.randoms(use_true_random=True))
    candidates = []
    for number in range(random.randrange(8)):
        has_workers = random.random() < 0.8
        has_started = has_workers or random.random() < 0.5
        candidates.append(
            Candidate(
                PodObject(
                    uid=f"uid-{number}",
                    name=f"pod-{number}",
                    created_at=random.random(),
                    ready_at=1.0 if has_started and random.random() < 0.8 else None,
                    deletion_cost=random.choice([0, 0, VICTIM_COST]),
                    has_started=has_started,
                ),
                busy=random.choice([0, 0, 1, 5]) if has_workers else 0,
                is_draining=has_workers and random.random() < 0.6,
                has_workers=has_workers,
                is_settled=random.random() < 0.9,
            )
        )
    flagged = frozenset(one.uid for one in candidates if random.random() < 0.6)
    return candidates, random.randrange(9), random.randrange(9), flagged, random.random() < 0.2


def is_safe_to_lose(candidate: Candidate, flagged: Collection[str]) -> bool:
    return not candidate.has_started or (
        candidate.uid in flagged
        and candidate.busy == 0
        and candidate.is_settled
        and (candidate.is_draining or not candidate.has_workers)
    )


@given(situations())
@settings(max_examples=3 * EXAMPLES)
def test_every_pod_that_kubernetes_removes_after_a_plan_had_gone_quiet(
    situation: Situation,
) -> None:
    candidates, requested, target, flagged, is_rolling_out = situation
    step = plan_shrinking(ShrinkInput(candidates, requested, target, flagged, is_rolling_out=is_rolling_out))
    safe = {one.uid for one in candidates if is_safe_to_lose(one, flagged)}

    for one in candidates:
        if step.costs.get(one.pod.name) == VICTIM_COST:
            assert one.uid in safe
            assert one.uid in step.drain
        if one.uid not in safe:
            assert step.costs.get(one.pod.name, one.pod.deletion_cost) != VICTIM_COST
    assert not set(step.drain) & set(step.release)
    if step.replicas is None:
        return
    assert target <= step.replicas < requested
    for_kubernetes = sorted(
        candidates,
        key=lambda one: (one.has_started, one.is_ready, step.costs.get(one.pod.name, one.pod.deletion_cost)),
    )
    removed = for_kubernetes[: max(0, len(candidates) - step.replicas)]
    assert {one.uid for one in removed} <= safe


@given(situations())
@settings(max_examples=EXAMPLES)
def test_a_plan_that_was_carried_out_is_not_made_again(
    situation: Situation,
) -> None:
    candidates, requested, target, flagged, is_rolling_out = situation
    first = plan_shrinking(ShrinkInput(candidates, requested, target, flagged, is_rolling_out=is_rolling_out))
    assert first == plan_shrinking(
        ShrinkInput(candidates, requested, target, flagged, is_rolling_out=is_rolling_out)
    )

    done = [
        replace(
            with_cost(one, first.costs),
            is_draining=one.has_workers and (one.uid in first.drain),
        )
        for one in candidates
    ]
    second = plan_shrinking(ShrinkInput(done, requested, target, first.drain, is_rolling_out=is_rolling_out))

    assert second.release == ()
    assert not [name for name, cost in second.costs.items() if cost == 0]
    assert set(first.drain) <= set(second.drain)


# The model


STEP_SECONDS = 0.25
FLAG_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
PROBE_SECONDS = 5.0
LEASE_SECONDS = 15.0
PATIENCE_SECONDS = 30.0
SLOW_SECONDS = (0.5, 1.0, 2.0)


@dataclass
class ModelWorker:
    worker_id: str
    job_ends: list[float] = field(default_factory=list)
    registers_at: float | None = None
    """None once it is in Redis."""


@dataclass
class ModelPod:
    uid: str
    created_at: float
    workers: list[ModelWorker]
    started_at: float
    cost: int = 0
    heard_at: float = 0.0
    probed_at: float = 0.0
    ready_at: float | None = None
    fails_probes_until: float = 0.0
    unready_since: float = 0.0

    @property
    def running(self) -> int:
        return sum(len(worker.job_ends) for worker in self.workers)


class Model:
    """A Deployment, its ReplicaSet, kubelets, a Redis and an operator, none of which waits for another.

    What is taken for granted: from observation to action the operator needs less time than a pod to start, and another
    leader needs more time to take over than Kubernetes to do what the one before asked for. What cannot be foreseen
    is forgiven: a pod that started or turned not ready after the operator had looked at it.
    """

    capacity = 2

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.names = 0
        self.pods: list[ModelPod] = []
        self.listed: list[PodObject] = []
        self.replicas = 0
        self.noted_replicas = 0
        """What Kubernetes goes by: a size that was asked for before, as long as it has not heard of the last one."""
        self.slow_until = 0.0
        """When Kubernetes does what it has noted, whatever was asked for since."""
        self.flags: dict[str, float] = {}
        self.due = 0
        self.claims_from = 0.0
        self.unreachable_until = 0.0
        """By the operator."""
        self.redis_away: tuple[float, float] = (0.0, 0.0)
        """From when until when it cannot be reached."""
        self.listed_at = self.now
        self.lowered_by = self.now
        """When the pods were listed that the size rests on."""
        self.memory = SizingMemory()
        self.actions: list[tuple[str, ShrinkPlan, int, float]] = []
        self.resting_until = 0.0
        self.arrivals_per_second = 0.0
        self.job_seconds = 1.0
        self.removed = 0
        self.calm = self.random.choice([1, 4])
        self.spec = PoolSpec(
            queues=["default"],
            worker=Worker(settings="shop.jobs.settings"),
            scaling=Scaling(
                max_replicas=6,
                jobs_per_replica=4,
                scale_down=ScaleDown(window_seconds=self.random.choice([0, 0, 5]), step_replicas=None),
            ),
        )

    def name(self) -> str:
        self.names += 1
        return f"{self.names:04}"

    @property
    def is_redis_away(self) -> bool:
        return self.redis_away[0] <= self.now < self.redis_away[1]

    def happens(self, every_seconds: float) -> bool:
        return self.random.random() < STEP_SECONDS / every_seconds

    def run(self, seconds: float, *, with_faults: bool) -> None:
        for _ in range(int(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            parts = [self.work, self.kubelet, self.operator, self.replica_set, self.replica_set]
            if with_faults:
                parts.append(self.fault)
            self.random.shuffle(parts)
            for part in parts:
                part()

    def work(self) -> None:
        if self.happens(20):
            self.arrivals_per_second = self.random.choice([0, 0, 0.2, 1, 4])
            self.job_seconds = self.random.choice([0.5, 3, 25])
        self.due += (
            sum(self.happens(4 / self.arrivals_per_second) for _ in range(4))
            if self.arrivals_per_second
            else 0
        )
        self.flags = {uid: end for uid, end in self.flags.items() if end > self.now}
        for one in self.random.sample(self.pods, len(self.pods)):
            for worker in one.workers:
                worker.job_ends = [end for end in worker.job_ends if end > self.now]
                if worker.registers_at is not None:
                    if worker.registers_at > self.now:
                        continue
                    worker.registers_at = None
                if one.uid in self.flags or self.now < self.claims_from or self.is_redis_away:
                    continue
                if self.random.random() < 0.3:
                    continue
                while self.due and len(worker.job_ends) < self.capacity:
                    self.due -= 1
                    worker.job_ends.append(self.now + self.random.expovariate(1 / self.job_seconds))

    def kubelet(self) -> None:
        for one in self.pods:
            is_heartbeat_due = self.now - one.heard_at >= HEARTBEAT_SECONDS or self.happens(HEARTBEAT_SECONDS)
            if is_heartbeat_due and not self.is_redis_away:
                one.heard_at = self.now
            if self.now - one.probed_at >= PROBE_SECONDS or self.happens(PROBE_SECONDS):
                one.probed_at = self.now
                has_started = one.ready_at is not None or any(
                    worker.registers_at is None for worker in one.workers
                )
                is_ready = (
                    has_started
                    and self.now >= one.fails_probes_until
                    and self.now - one.heard_at <= PATIENCE_SECONDS
                )
                if one.ready_at is not None and not is_ready:
                    one.unready_since = self.now
                one.ready_at = (one.ready_at or self.now) if is_ready else None
        if self.random.random() < 0.5:
            self.listed_at = self.now
            self.listed = [
                PodObject(
                    one.uid,
                    one.uid,
                    one.created_at,
                    one.ready_at,
                    one.cost,
                    has_started=one.started_at <= self.now,
                )
                for one in self.pods
            ]

    def replica_set(self) -> None:
        if self.random.random() < 0.5 or self.now < self.slow_until:
            return
        surplus = len(self.pods) - self.noted_replicas
        self.noted_replicas = self.replicas
        if self.random.random() < 0.1:
            self.slow_until = self.now + self.random.choice(SLOW_SECONDS)
        if surplus > 0:
            order = sorted(
                self.pods,
                key=lambda one: (
                    one.started_at <= self.now,
                    one.ready_at is not None,
                    one.cost,
                    -one.created_at,
                    self.random.random(),
                ),
            )
            for one in order[:surplus]:
                is_forgiven = one.ready_at is None and self.lowered_by < max(
                    one.unready_since, one.started_at
                )
                assert one.running == 0 or is_forgiven, f"{one} was taken with a running job at {self.now}"
                self.pods.remove(one)
                self.removed += 1
        for _ in range(-surplus):
            # Some find no node for long.
            registers_at = self.now + self.random.choice([4.0, 6.0, 6.0, 30.0, 120.0])
            workers = [ModelWorker(self.name(), registers_at=registers_at + index) for index in range(2)]
            self.pods.append(
                ModelPod(
                    self.name(),
                    self.now,
                    workers,
                    started_at=registers_at - 2,
                    heard_at=self.now,
                    probed_at=self.now,
                )
            )

    def operator(self) -> None:
        if self.actions:
            if self.random.random() < 0.6:
                self.act(*self.actions.pop(0))
        elif self.now >= self.resting_until:
            self.resting_until = self.now + self.random.choice([0.25, 0.5, 1.0, 1.0, 3.0])
            given = SizingInput(["default"], self.observe(), self.listed, self.replicas, self.now)
            step, self.memory = decide_size(self.spec, given, self.memory)
            self.actions = [
                (kind, step.plan, step.replicas, self.listed_at) for kind in ("flags", "costs", "replicas")
            ]

    def act(self, kind: str, plan: ShrinkPlan, replicas: int, listed_at: float) -> None:
        if kind == "flags":
            if self.now < self.unreachable_until or self.is_redis_away:
                self.actions = []  # what rests on a flag must not happen without it
                return
            self.flags.update(dict.fromkeys(plan.drain, self.now + FLAG_SECONDS))
            for uid in plan.release:
                self.flags.pop(uid, None)
            self.memory = replace(self.memory, flagged=frozenset(plan.drain))
        elif kind == "costs":
            for one in self.pods:
                one.cost = plan.costs.get(one.uid, one.cost)
        else:
            if replicas < self.replicas:
                self.lowered_by = listed_at
                given_up = {**self.memory.given_up, **dict.fromkeys(plan.drain, self.now)}
                self.memory = replace(self.memory, given_up=given_up)
            self.replicas = replicas

    def observe(self) -> Observation | None:
        if self.now < self.unreachable_until or self.is_redis_away:
            return None
        workers = {
            worker.worker_id: WorkerObservation(
                worker_id=worker.worker_id,
                pod_uid=one.uid,
                busy=len(worker.job_ends),
                capacity=self.capacity,
                is_draining=one.uid in self.flags,
                queues=("default",),
                lease_ends_ms=0,
                incarnation=worker.worker_id,
            )
            for one in self.pods
            for worker in one.workers
            if worker.registers_at is None
        }
        queue = QueueObservation(self.due, 0, 0, None, None)
        return Observation(int(self.now * 1000), {"default": queue}, workers)

    def fault(self) -> None:
        if self.happens(40 * self.calm):  # a child crashes, its jobs go back, another one takes its place
            for one in [one for one in self.pods[:1] if one.started_at <= self.now]:
                crashed = one.workers.pop(0)
                self.due += len(crashed.job_ends)
                one.workers.append(ModelWorker(self.name(), registers_at=self.now + 2))
        if self.happens(60 * self.calm):  # Redis restarts and has forgotten all but the queue
            self.flags.clear()
            self.claims_from = self.now + HEARTBEAT_SECONDS
            for worker in (worker for one in self.pods for worker in one.workers):
                worker.registers_at = worker.registers_at or self.now + self.random.uniform(0, 6)
        if self.happens(60 * self.calm):
            self.unreachable_until = self.now + self.random.choice([2, 10, 40])
        # Nobody reaches Redis; leases may end before workers are back.
        if self.happens(80 * self.calm) and not self.is_redis_away:
            away_seconds = self.random.choice([3, 20, 45])
            self.redis_away = (self.now, self.now + away_seconds)
            if away_seconds > LEASE_SECONDS:
                for worker in (worker for one in self.pods for worker in one.workers):
                    back_at = self.redis_away[1] + self.random.uniform(0, HEARTBEAT_SECONDS)
                    worker.registers_at = max(worker.registers_at or 0.0, back_at)
        if self.happens(30 * self.calm) and self.pods:  # a node so busy that probes time out
            self.random.choice(self.pods).fails_probes_until = self.now + self.random.choice([5, 20, 60])
        if self.happens(60 * self.calm):  # another leader, who knows nothing
            self.memory, self.actions = SizingMemory(), []
            self.resting_until = self.now + 1.5 * max(SLOW_SECONDS)
        if self.happens(80 * self.calm):  # this leader again, after a long time without the lead
            self.resting_until, self.actions = self.now + self.random.choice([8, 15, 40]), []


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES // 8)
def test_no_pod_is_removed_with_a_running_job_under_any_fault(seed: int) -> None:
    model = Model(seed)
    model.run(300, with_faults=True)


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES // 20)
def test_a_pool_without_work_comes_to_its_end_with_every_job_done(seed: int) -> None:
    model = Model(seed)
    model.run(150, with_faults=False)
    model.happens = lambda every_seconds: False  # type: ignore[method-assign]  # no more arrivals
    model.arrivals_per_second = 0
    model.run(450, with_faults=False)

    assert (model.due, model.replicas, len(model.pods)) == (0, 0, 0)
    assert model.removed > 0 or model.names == 0
