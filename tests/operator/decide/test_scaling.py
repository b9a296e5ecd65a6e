"""How many replicas a pool needs, and why."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrq_operator.api.spec import PoolSpec, RedisSource, ScaleDown, Scaling, Worker
from rrq_operator.decide.scaling import (
    Reason,
    ScalingDecision,
    ScalingMemory,
    ScalingPolicy,
    Workload,
    build_policy,
    decide_replicas,
)

POLICY = ScalingPolicy(min_replicas=0, max_replicas=20, idle_replicas=0, jobs_per_replica=10)
IDLE = Workload(due=0, due_soon=0, busy=0)
#: Wants the last job to start within ten seconds.
FAST = replace(POLICY, target_latency_seconds=10, jobs_per_replica=100)
#: A replica that was saturated for 100 seconds and finished a job every two.
MEASURED = ScalingMemory(finished=50, replica_seconds=100)


def decide(
    policy: ScalingPolicy,
    workload: Workload | None,
    requested: int = 0,
    memory: ScalingMemory | None = None,
    now_seconds: float = 0.0,
) -> ScalingDecision:
    return decide_replicas(policy, workload, requested, memory or ScalingMemory(), now_seconds)[0]


class Watched:
    """A pool that follows each decision at once."""

    def __init__(self, policy: ScalingPolicy, requested: int = 0) -> None:
        self.policy = policy
        self.requested = requested
        self.memory = ScalingMemory()

    def step(self, workload: Workload | None, now_seconds: float) -> ScalingDecision:
        decision, self.memory = decide_replicas(
            self.policy, workload, self.requested, self.memory, now_seconds
        )
        self.requested = decision.replicas
        return decision


# What the work asks for


@pytest.mark.parametrize(
    ("workload", "replicas", "reason"),
    [
        (IDLE, 0, Reason.IDLE),
        (Workload(due=1, due_soon=0, busy=0), 1, Reason.BACKLOG),
        (Workload(due=10, due_soon=0, busy=0), 1, Reason.BACKLOG),
        (Workload(due=11, due_soon=0, busy=0), 2, Reason.BACKLOG),
        (Workload(due=0, due_soon=1, busy=0), 1, Reason.DUE_SOON),
        (Workload(due=0, due_soon=0, busy=1), 1, Reason.RUNNING),
        (Workload(due=0, due_soon=1, busy=1, orphaned=9), 2, Reason.ORPHANED),
        (Workload(due=1, due_soon=0, busy=0, orphaned=10), 2, Reason.BACKLOG),
        (Workload(due=4, due_soon=4, busy=4), 2, Reason.BACKLOG),
        (Workload(due=2000, due_soon=0, busy=0), 20, Reason.BACKLOG),
    ],
)
def test_running_due_and_soon_due_jobs_ask_for_replicas(
    workload: Workload, replicas: int, reason: Reason
) -> None:
    decision = decide(POLICY, workload)

    assert (decision.replicas, decision.reason) == (replicas, reason)


# Blocked jobs and paused pools


@pytest.mark.parametrize(
    ("workload", "replicas", "reason", "words"),
    [
        (Workload(0, 0, 0, blocked=500), 0, Reason.BLOCKED, "nothing is running; 500 due are blocked"),
        (Workload(0, 0, 3, blocked=500), 1, Reason.RUNNING, "500 more due are blocked by a pause or a limit"),
        (
            Workload(11, 0, 0, blocked=500),
            2,
            Reason.BACKLOG,
            "0 running + 11 due, 10 per replica: 2 needed, 500 more",
        ),
        (Workload(0, 2, 0, blocked=500), 1, Reason.DUE_SOON, "500 more due are blocked"),
        (Workload(0, 0, 0, blocked=500, is_paused=True), 0, Reason.PAUSED, "0 running, 500 due wait until"),
        (Workload(0, 0, 11, blocked=500, is_paused=True), 2, Reason.PAUSED, "paused: 11 running, 500 due"),
        (Workload(0, 0, 0, is_paused=True), 0, Reason.PAUSED, "paused: 0 running, 0 due wait"),
    ],
)
def test_jobs_that_may_not_start_ask_for_no_replica(
    workload: Workload, replicas: int, reason: Reason, words: str
) -> None:
    decision = decide(POLICY, workload)

    assert (decision.replicas, decision.reason) == (replicas, reason)
    assert words in decision.words


def test_a_paused_pool_gets_no_headroom_but_keeps_what_the_spec_demands() -> None:
    policy = replace(POLICY, headroom_replicas=5, min_replicas=3, idle_replicas=2)

    assert decide(policy, Workload(0, 0, 1, blocked=9, is_paused=True)).replicas == 3
    assert decide(policy, Workload(0, 0, 0, blocked=9, is_paused=True)).replicas == 2


def test_a_pool_paused_becomes_smaller_and_says_all_the_while_that_it_is_paused() -> None:
    pool = Watched(replace(POLICY, window_seconds=10), requested=5)
    paused = Workload(0, 0, 0, blocked=50, is_paused=True)

    waiting = [pool.step(paused, now) for now in (0, 5, 9)][-1]
    gone = pool.step(paused, 11)

    assert (waiting.replicas, waiting.reason) == (5, Reason.PAUSED)
    assert (gone.replicas, gone.reason) == (0, Reason.PAUSED)
    resumed = pool.step(Workload(50, 0, 0), 12)
    assert (resumed.replicas, resumed.reason) == (5, Reason.BACKLOG), "at once and as large as before"


# Growing


@pytest.mark.parametrize(
    ("policy", "memory", "workload", "replicas", "reason"),
    [
        (FAST, MEASURED, Workload(due=40, due_soon=0, busy=0), 8, Reason.LATENCY),
        (FAST, MEASURED, Workload(0, 0, 1, blocked=400), 1, Reason.RUNNING),
        (FAST, ScalingMemory(), Workload(due=40, due_soon=0, busy=0), 1, Reason.BACKLOG),
        (FAST, MEASURED, Workload(due=0, due_soon=20, busy=20), 1, Reason.DUE_SOON),
        (POLICY, MEASURED, Workload(due=40, due_soon=0, busy=0), 4, Reason.BACKLOG),
        (replace(POLICY, target_latency_seconds=1000), MEASURED, Workload(40, 0, 0), 4, Reason.BACKLOG),
    ],
    ids=[
        "the last in time",
        "blocked jobs",
        "speed not measured",
        "nothing due",
        "no target",
        "depth asks for more",
    ],
)
def test_the_latency_term_adds_replicas_until_the_last_job_starts_in_time(
    policy: ScalingPolicy, memory: ScalingMemory, workload: Workload, replicas: int, reason: Reason
) -> None:
    decision = decide(policy, workload, memory=memory)

    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_more_work_than_the_limit_allows_is_said() -> None:
    decision = decide(POLICY, Workload(due=201, due_soon=0, busy=0))

    assert (decision.replicas, decision.wanted, decision.is_limited) == (20, 21, True)
    assert not decide(POLICY, Workload(due=200, due_soon=0, busy=0)).is_limited


def test_headroom_comes_on_top_while_there_is_work() -> None:
    policy = replace(POLICY, headroom_replicas=3)

    assert decide(policy, Workload(due=11, due_soon=0, busy=0)).replicas == 5
    assert decide(policy, IDLE).replicas == 0


def test_an_idle_pool_has_its_idle_size_and_the_first_job_brings_the_minimum() -> None:
    policy = replace(POLICY, min_replicas=4, idle_replicas=1)

    assert decide(policy, IDLE).replicas == 1
    assert decide(policy, Workload(due=1, due_soon=0, busy=0)).replicas == 4


# The manifest


def spec_with(scaling: Scaling | None = None, replicas: int = 0) -> PoolSpec:
    return PoolSpec(
        queues=["default"],
        redis=RedisSource(url="redis://redis:6379/0"),
        worker=Worker(image="shop:1", settings="shop.jobs.settings", concurrency=5, processes=2),
        scaling=scaling,
        replicas=replicas,
    )


def test_everything_the_manifest_says_about_size_is_used() -> None:
    scaling = Scaling(
        min_replicas=2,
        max_replicas=9,
        idle_replicas=1,
        jobs_per_replica=7,
        target_latency_seconds=30,
        headroom_replicas=1,
        scale_down=ScaleDown(window_seconds=5, step_replicas=3),
        paused=True,
    )

    assert build_policy(spec_with(scaling)) == ScalingPolicy(2, 9, 1, 7, 30, 1, 5, 3, True)


def test_kubectl_scale_sets_a_floor_under_work_and_idleness_alike() -> None:
    policy = build_policy(spec_with(Scaling(min_replicas=2, idle_replicas=0), replicas=4))

    assert decide(policy, IDLE).replicas == 4
    assert decide(policy, Workload(due=1, due_soon=0, busy=0)).replicas == 4
    assert decide(policy, Workload(due=60, due_soon=0, busy=0)).replicas == 6


def test_the_maximum_wins_over_every_floor() -> None:
    policy = ScalingPolicy(min_replicas=8, max_replicas=5, idle_replicas=8, jobs_per_replica=1)

    assert decide(policy, IDLE).replicas == 5
    assert decide(policy, Workload(due=100, due_soon=0, busy=0)).replicas == 5


# When nothing may change


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({"scaling": Scaling(min_replicas=5)}, 5),
        ({"replicas": 8}, 8),
        ({"scaling": Scaling(min_replicas=5, idle_replicas=0)}, 5),
        ({"scaling": Scaling(min_replicas=5, idle_replicas=1)}, 1),
        ({"scaling": Scaling(min_replicas=5, idle_replicas=2)}, 2),
        ({"scaling": Scaling(min_replicas=5, paused=True)}, 1),
    ],
    ids=[
        "minReplicas",
        "kubectl scale",
        "minReplicas: the pool was not idle",
        "idleReplicas: the pool was idle",
        "idleReplicas, raised: the pool was idle",
        "frozen: the size stays",
    ],
)
def test_a_pool_grows_to_its_floor_while_its_queues_cannot_be_read(
    spec: dict[str, Any], replicas: int
) -> None:
    decision = decide(build_policy(spec_with(**spec)), None, requested=1)

    assert (decision.replicas, decision.reason) == (replicas, Reason.QUEUE_UNREADABLE)


@pytest.mark.parametrize(("step_replicas", "second"), [(None, 2), (10, 10)])
def test_a_lowered_maximum_applies_without_redis_after_a_while(
    step_replicas: int | None, second: int
) -> None:
    policy = replace(POLICY, max_replicas=2, step_replicas=step_replicas)
    pool = Watched(policy, requested=20)

    first = [pool.step(None, float(now_seconds)) for now_seconds in range(30)]
    decision = pool.step(None, 30)

    assert {one.replicas for one in first} == {20}
    assert len({one.words for one in first}) == 1
    assert (decision.replicas, decision.reason) == (second, Reason.QUEUE_UNREADABLE)
    assert decision.words == (
        f"the queues cannot be read; maxReplicas allows 2; shrinking from 20 to {second}"
    )


def test_an_answer_of_redis_gives_a_pool_above_its_maximum_time_to_drain_again() -> None:
    busy = Workload(due=0, due_soon=0, busy=200)
    memory = ScalingMemory()
    for now_seconds, workload in ((0, None), (29, busy), (31, None)):
        decision, memory = decide_replicas(replace(POLICY, max_replicas=2), workload, 20, memory, now_seconds)

    assert decision.replicas == 20


# Down


def test_shrinking_waits_until_the_smaller_size_was_enough_for_the_whole_window() -> None:
    pool = Watched(POLICY)
    pool.step(Workload(due=100, due_soon=0, busy=0), 0)

    assert pool.step(IDLE, 1).reason == Reason.COOLING_DOWN
    assert pool.step(IDLE, 59.9).replicas == 10
    decision = pool.step(IDLE, 60)

    assert (decision.replicas, decision.reason) == (0, Reason.SHRINKING)


def test_a_pool_shrinks_to_the_most_that_was_needed_in_the_window() -> None:
    pool = Watched(POLICY)
    for now_seconds, due in ((0, 100), (30, 40), (45, 60), (50, 0)):
        pool.step(Workload(due=due, due_soon=0, busy=0), now_seconds)

    assert pool.step(IDLE, 61).replicas == 6
    assert pool.step(IDLE, 106).replicas == 0


def test_after_an_outage_the_window_starts_anew() -> None:
    pool = Watched(POLICY, requested=9)
    pool.step(IDLE, 0)
    pool.step(None, 30)
    pool.step(None, 300)

    assert pool.step(IDLE, 301).reason == Reason.COOLING_DOWN
    assert pool.step(IDLE, 359).replicas == 9
    assert pool.step(IDLE, 360).replicas == 0


@pytest.mark.parametrize("window_seconds", [0, 1, 60])
def test_after_a_gap_between_rounds_the_window_starts_anew(window_seconds: int) -> None:
    pool = Watched(replace(POLICY, window_seconds=window_seconds), requested=9)
    pool.step(Workload(due=90, due_soon=0, busy=0), 0)

    assert pool.step(IDLE, 500).replicas == 9
    assert pool.step(IDLE, 500 + max(1, window_seconds)).replicas == 0


@pytest.mark.parametrize("window_seconds", [0, 1, 60])
def test_a_lowered_maximum_has_no_window(window_seconds: int) -> None:
    pool = Watched(replace(POLICY, window_seconds=window_seconds))
    pool.step(Workload(due=200, due_soon=0, busy=0), 0)
    pool.policy = replace(pool.policy, max_replicas=5)

    decision = pool.step(Workload(due=200, due_soon=0, busy=0), 1)

    assert (decision.replicas, decision.reason, decision.is_limited) == (5, Reason.SHRINKING, True)
    assert pool.step(Workload(due=200, due_soon=0, busy=0), 2).replicas == 5


def test_a_pool_shrinks_by_no_more_than_a_step_per_window() -> None:
    pool = Watched(replace(POLICY, step_replicas=3), requested=10)

    sizes = {now_seconds: pool.step(IDLE, now_seconds).replicas for now_seconds in range(400)}

    assert [now_seconds for now_seconds in range(1, 400) if sizes[now_seconds] != sizes[now_seconds - 1]] == [
        60,
        121,
        182,
        243,
    ]
    assert sorted(set(sizes.values()), reverse=True) == [10, 7, 4, 1, 0]


def test_a_step_whose_pods_leave_one_by_one_is_still_one_step() -> None:
    policy = replace(POLICY, step_replicas=3, window_seconds=60)
    memory = ScalingMemory()
    _, memory = decide_replicas(policy, IDLE, 10, memory, 0)
    targets = []
    for now_seconds, requested in ((60, 10), (61, 9), (70, 8), (100, 8), (130, 7), (189, 7), (190, 7)):
        decision, memory = decide_replicas(policy, IDLE, requested, memory, now_seconds)
        targets.append(decision.replicas)

    assert targets == [7, 7, 7, 7, 7, 7, 4]


# Speed


def saturated(finished: int, elapsed_seconds: float = 1.0, replicas: int = 1) -> Workload:
    return Workload(
        due=100,
        due_soon=0,
        busy=10,
        finished=finished,
        elapsed_seconds=elapsed_seconds,
        working_replicas=replicas,
    )


def measure(workloads: list[Workload]) -> float | None:
    memory = ScalingMemory()
    for at, workload in enumerate(workloads):
        _, memory = decide_replicas(POLICY, workload, 1, memory, float(at))
    return memory.jobs_per_second_per_replica


def test_speed_is_what_a_replica_finishes_while_it_has_enough_to_do() -> None:
    assert measure([saturated(0), *[saturated(12, replicas=3)] * 5]) == pytest.approx(4)


def test_seconds_in_which_nothing_ended_count_for_the_speed_of_long_jobs() -> None:
    ten_seconds = [*[saturated(0)] * 9, saturated(1)]

    assert measure(ten_seconds * 20) == pytest.approx(0.1, rel=0.15)


def test_speed_follows_jobs_that_become_slower() -> None:
    assert measure([*[saturated(20)] * 100, *[saturated(2)] * 60]) == pytest.approx(2, rel=0.1)


def test_workers_that_waited_for_work_do_not_count_for_the_speed() -> None:
    trickle = Workload(
        due=1, due_soon=0, busy=0, finished=1, elapsed_seconds=1, working_replicas=2, free_slots=20
    )
    burst = replace(trickle, due=100)

    assert measure([trickle] * 20) is None
    assert measure([*[trickle] * 20, burst]) is None


def test_an_outage_is_no_measurement_of_speed() -> None:
    memory = ScalingMemory()
    for at, workload in enumerate((saturated(0), None, saturated(1, 500))):
        _, memory = decide_replicas(POLICY, workload, 1, memory, float(at))

    assert memory.jobs_per_second_per_replica is None


# Words


def test_the_words_of_a_decision_have_all_its_inputs() -> None:
    policy = replace(POLICY, target_latency_seconds=10, headroom_replicas=1, min_replicas=3, idle_replicas=2)

    def words(workload: Workload | None, requested: int = 0, memory: ScalingMemory | None = None) -> str:
        return decide(policy, workload, requested, memory, 100.0).words

    assert words(IDLE) == "nothing is running or due; at least 2 by the spec"
    assert words(Workload(40, 0, 5)) == "5 running + 40 due, 10 per replica: 5 needed, 1 spare"
    assert (
        words(Workload(0, 12, 0, soon_seconds=22.5))
        == "0 running + 0 due + 12 due within 22 s, 10 per replica: 2 needed, 1 spare"
    )
    assert words(Workload(60, 0, 0), memory=MEASURED) == (
        "0 running + 60 due, 10 per replica: 6 needed, 12 to start the last within 10 s, 1 spare"
    )
    assert (
        words(Workload(500, 0, 0))
        == "0 running + 500 due, 10 per replica: 50 needed, 1 spare; maxReplicas allows 20"
    )
    assert words(Workload(0, 0, 0, orphaned=3)) == (
        "0 running + 0 due + 3 orphaned, 10 per replica: 1 needed, 1 spare; at least 3 by the spec"
    )
    assert words(None, 4) == "the queues cannot be read, so the size stays at 4"
    assert words(IDLE, 4) == (
        "nothing is running or due; at least 2 by the spec; "
        "the size stays at 4 until it has not been needed for 60 s"
    )
    assert words(IDLE, 4, ScalingMemory(enough=((99.0, 3),))) == (
        "nothing is running or due; at least 2 by the spec; shrinking from 4 to 3"
    )


@pytest.mark.parametrize("step_replicas", [None, 3])
@pytest.mark.parametrize("workload", [IDLE, Workload(due=5, due_soon=2, busy=3, soon_seconds=6.0)])
def test_words_stay_the_same_while_nothing_but_time_changes(
    workload: Workload, step_replicas: int | None
) -> None:
    pool = Watched(replace(POLICY, step_replicas=step_replicas), requested=10)
    told: dict[tuple[int, Reason], set[str]] = {}
    for tick in range(400):
        requested = pool.requested
        decision = pool.step(workload, tick / 2)
        told.setdefault((requested, decision.reason), set()).add(decision.words)

    assert {len(words) for words in told.values()} == {1}
    assert Reason.COOLING_DOWN in {reason for _, reason in told}
    assert Reason.SHRINKING in {reason for _, reason in told}


# Properties

EXAMPLES = 50

workloads = st.builds(
    Workload,
    due=st.integers(0, 3000),
    due_soon=st.integers(0, 3000),
    busy=st.integers(0, 3000),
    finished=st.integers(0, 500),
    elapsed_seconds=st.floats(0, 100),
    working_replicas=st.integers(0, 30),
    free_slots=st.integers(0, 300),
)


@st.composite
def policies(draw: st.DrawFn) -> ScalingPolicy:
    max_replicas = draw(st.integers(1, 50))
    min_replicas = draw(st.integers(0, max_replicas))
    return ScalingPolicy(
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        idle_replicas=draw(st.integers(0, min_replicas)),
        jobs_per_replica=draw(st.integers(1, 100)),
        target_latency_seconds=draw(st.none() | st.integers(1, 600)),
        headroom_replicas=draw(st.integers(0, 5)),
        window_seconds=draw(st.integers(0, 120)),
        step_replicas=draw(st.none() | st.integers(1, 10)),
    )


histories = st.lists(
    st.tuples(st.floats(0.01, 40), st.none() | workloads | st.just(IDLE)), min_size=1, max_size=25
)


@given(policies(), histories)
@settings(max_examples=EXAMPLES)
def test_a_size_is_never_outside_the_limits_nor_below_what_running_jobs_need(
    policy: ScalingPolicy, history: list[tuple[float, Workload | None]]
) -> None:
    pool = Watched(policy)
    now_seconds = 0.0
    for pause_seconds, workload in history:
        now_seconds += pause_seconds
        before = pool.requested
        decision = pool.step(workload, now_seconds)
        if workload is None:
            was_idle = before <= policy.idle_replicas
            assert decision.replicas == max(before, policy.idle_replicas if was_idle else policy.min_replicas)
            continue
        lowest = policy.min_replicas if workload.demand else policy.idle_replicas
        assert lowest <= decision.replicas <= policy.max_replicas
        assert decision.replicas >= min(policy.max_replicas, ceil(workload.busy / policy.jobs_per_replica))
        assert decision.is_limited == (decision.wanted > policy.max_replicas)


@given(policies(), st.none() | workloads, st.integers(0, 100), st.floats(0, 1e6))
@settings(max_examples=EXAMPLES)
def test_a_frozen_pool_never_changes_and_says_what_it_would_need(
    policy: ScalingPolicy, workload: Workload | None, requested: int, now_seconds: float
) -> None:
    frozen = decide(replace(policy, is_frozen=True), workload, requested, None, now_seconds)

    assert frozen.replicas == requested
    if workload is not None:
        assert frozen.reason == Reason.FROZEN
        assert f"the size is frozen at {requested}" in frozen.words


@given(policies(), workloads, st.tuples(*[st.integers(0, 100)] * 3), st.integers(0, 60), st.booleans())
@settings(max_examples=EXAMPLES)
def test_more_work_never_makes_a_pool_smaller(
    policy: ScalingPolicy, less: Workload, more: tuple[int, int, int], requested: int, is_measured: bool
) -> None:
    memory = replace(MEASURED if is_measured else ScalingMemory(), enough=((0.0, 3),))
    grown = replace(less, due=less.due + more[0], due_soon=less.due_soon + more[1], busy=less.busy + more[2])

    assert (
        decide(policy, less, requested, memory, 1.0).replicas
        <= decide(policy, grown, requested, memory, 1.0).replicas
    )


@given(policies(), st.integers(0, 2000), st.lists(st.integers(0, 60), min_size=150, max_size=150))
@settings(max_examples=EXAMPLES // 3)
def test_noise_around_a_level_does_not_make_a_pool_flap(
    policy: ScalingPolicy, level: int, noise: list[int]
) -> None:
    policy = replace(policy, window_seconds=max(30, policy.window_seconds))
    pool = Watched(policy)
    needs: list[int] = []
    changes = [0, 0]
    for at, extra in enumerate(noise):
        workload = Workload(due=level + extra, due_soon=0, busy=0)
        needs.append(decide(policy, workload).replicas)
        before = pool.requested
        after = pool.step(workload, float(at)).replicas
        assert after >= max(needs[max(0, at - policy.window_seconds + 1) :])
        changes[0] += after > before
        changes[1] += after < before
    # Each size stays for a window, so downs are few, and ups are bounded by the levels there are.
    levels = len(set(needs))
    assert changes[1] <= levels * (1 + len(noise) // policy.window_seconds)
    assert changes[0] <= levels * (1 + changes[1])


@given(policies(), workloads, st.integers(0, 60))
@settings(max_examples=EXAMPLES // 3)
def test_constant_work_brings_a_pool_to_exactly_what_it_needs(
    policy: ScalingPolicy, workload: Workload, requested: int
) -> None:
    workload = replace(workload, finished=0, elapsed_seconds=0.0)
    need = decide(policy, workload).replicas
    pool = Watched(policy, requested)
    step = policy.step_replicas or 1_000
    seconds = (policy.window_seconds + 1) * (2 + max(0, requested - need) // step)

    for at in range(seconds):
        pool.step(workload, float(at))

    assert pool.requested == need
    assert {pool.step(workload, float(seconds + at)).replicas for at in range(5)} == {need}
