"""Burst pools against a real API server with its Job controller; a stand-in kubelet ends the pods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from burst_runs import QUEUE_KEY, build_burst, end_run, holds, is_over, living_pods, read_runs, under_way
from fake_node import FakeNode, PodBehaviour
from rrq_operator.decide.manifests import LACKS_FUNCTIONS_EXIT_CODE
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from operator_process import RunningOperator
    from pools import PoolDesk
    from rrq import RRQClient


@pytest.fixture
def operator(start_operator: Callable[..., RunningOperator]) -> RunningOperator:
    """One operator that acts at once."""
    return start_operator(no_leader_election="")


async def test_a_run_starts_when_work_is_due_ends_and_comes_again(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    desk.apply(build_burst(redis_dsn))
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "Waiting"), 60)
    assert read_runs(desk) == {}

    await client.enqueue("greet")
    await eventually(lambda: under_way(desk) == [1], 30, "the run starts")
    job = read_runs(desk)[1]
    assert job["metadata"]["name"] == "emails-run-1"
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (1, 1)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][-3:] == ["--burst", "--burst-linger", "1"]
    assert "--num-workers" not in container["args"]
    await eventually(lambda: desk.status()["job"].get("active") == "emails-run-1", 30)

    await client.job_store.redis.delete(QUEUE_KEY)
    await end_run(desk, fake_node, 1)
    await eventually(lambda: desk.status()["job"].get("lastResult") == "Succeeded", 30)
    await holds(lambda: list(read_runs(desk)) == [1], 1.5, "nothing is due, so nothing starts")

    await client.enqueue("greet")
    await eventually(lambda: under_way(desk) == [2], 30, "it runs again")
    await eventually(lambda: desk.status()["job"]["runs"] == 2, 30)
    await eventually(lambda: len(desk.events("RunStarted")) == 2, 30)


async def test_there_are_never_two_runs_with_two_operators_and_one_of_them_killed_again_and_again(
    desk: PoolDesk,
    start_operator: Callable[..., RunningOperator],
    fake_node: FakeNode,
    client: RRQClient,
    redis_dsn: str,
) -> None:
    fake_node.behave(PodBehaviour(runs_for_seconds=0.2))
    await client.enqueue("greet")  # no worker takes it, so that there is always work
    # On purpose without an election: both act.
    first, second = (start_operator(name, no_leader_election="") for name in ("first", "second"))
    desk.apply(build_burst(redis_dsn, keepFinished=20))
    runs = 0
    for target in (2, 4, 6):
        while runs < target:
            numbers = read_runs(desk)
            assert len([number for number, job in numbers.items() if not is_over(job)]) <= 1
            assert len(living_pods(desk)) <= 1
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), "no number is left out"
            runs = len(numbers)
        second.kill()
        second.start()
    assert "Traceback" not in first.log + second.log


async def test_missed_ticks_are_made_up_for_once_and_not_lost_to_a_refusal(
    desk: PoolDesk,
    start_operator: Callable[..., RunningOperator],
    fake_node: FakeNode,
    redis_dsn: str,
) -> None:
    now = datetime.now(UTC)
    desk.apply(
        build_burst(redis_dsn, start="OnSchedule", schedule=f"{(now.minute + 30) % 60} * * * *"),
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"count/jobs.batch": "0"}},
        },
    )
    before = (now - timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = f'{{"status": {{"job": {{"runs": 3, "lastScheduleTime": "{before}"}}}}}}'
    desk.kubectl("patch", "rrqpool", "emails", "--subresource=status", "--type=merge", f"--patch={status}")
    await eventually(
        lambda: desk.get("resourcequota", "none").get("status", {}).get("hard"), 20, "the quota is in force"
    )

    start_operator(no_leader_election="")
    await eventually(lambda: desk.condition("Ready")[:2] == ("False", "Forbidden"), 60)
    assert "exceeded quota" in desk.condition("Ready")[2]
    assert desk.status()["job"]["lastScheduleTime"] == before

    desk.kubectl("delete", "resourcequota", "none")
    await eventually(lambda: under_way(desk) == [4], 60, "the run is made up for")
    await end_run(desk, fake_node, 4)
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "Waiting"), 30)
    await holds(lambda: list(read_runs(desk)) == [4], 1.5, "five missed ticks are one run")
    told = desk.status()["job"]
    assert datetime.fromisoformat(told["lastScheduleTime"]) >= now - timedelta(seconds=1)
    assert datetime.fromisoformat(told["nextScheduleTime"]) > now


async def test_once_is_once_also_after_a_restart_and_after_its_job_was_deleted(
    desk: PoolDesk,
    start_operator: Callable[..., RunningOperator],
    fake_node: FakeNode,
    client: RRQClient,
    redis_dsn: str,
) -> None:
    operator = start_operator(no_leader_election="")
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn, start="Once"))
    await eventually(lambda: under_way(desk) == [1], 60, "the one run starts")
    operator.kill()
    operator.start()
    await end_run(desk, fake_node, 1)
    await eventually(lambda: desk.status()["job"].get("lastResult") == "Succeeded", 60)
    await eventually(lambda: desk.status()["reason"] == "Finished")

    desk.kubectl("delete", "job", "emails-run-1")
    await holds(lambda: read_runs(desk) == {}, 1.5, "it stays at one run")
    operator.kill()
    operator.start()
    await eventually(lambda: operator.log.count("operator leads") >= 3, 60, "the operator is back")
    await holds(lambda: read_runs(desk) == {}, 2.5, "it stays at one run after a restart")
    assert desk.status()["job"]["runs"] == 1


async def test_a_run_whose_name_is_taken_by_the_job_of_another_gets_the_next_number(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> None:
    # As a pool leaves it behind that was deleted with --cascade=orphan; suspended, so that it has no pod.
    labels = {"rrq.dev/pool": "emails", "rrq.dev/run": "1"}
    container = {"name": "worker", "image": "example.com/shop:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    orphan = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "emails-run-1", "labels": labels},
        "spec": {"suspend": True, "template": template},
    }
    desk.apply(orphan)
    before = read_runs(desk)[1]["metadata"]
    desk.apply(build_burst(redis_dsn, start="Once"))
    await eventually(lambda: 2 in read_runs(desk), 60, "the one run starts under the next name")
    await end_run(desk, fake_node, 2)
    await eventually(lambda: desk.status()["reason"] == "Finished", 30)
    await holds(lambda: sorted(read_runs(desk)) == [1, 2], 1.5, "once is once")
    after = read_runs(desk)[1]["metadata"]
    assert (after["uid"], after["generation"]) == (before["uid"], before["generation"]), "it is left alone"
    assert "ownerReferences" not in after
    [told] = await eventually(lambda: desk.events("RunStarted"))
    assert told == "emails-run-2: the one run starts, under the next number whose name is free"


async def test_the_last_finished_runs_are_kept_and_older_ones_go(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    fake_node.behave(PodBehaviour(runs_for_seconds=0.1))
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn, keepFinished=2, ttlSecondsAfterFinished=0))
    await eventually(lambda: max(read_runs(desk), default=0) >= 4, 40, "four runs are made")
    await client.job_store.redis.delete(QUEUE_KEY)
    await eventually(lambda: not under_way(desk), 60)
    await eventually(lambda: len(read_runs(desk)) == 2, 60, "older runs go")
    last = desk.status()["job"]["runs"]
    assert sorted(read_runs(desk)) == [last - 1, last]


async def test_a_failed_run_is_reported_and_retried_after_a_while(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    fake_node.behave(PodBehaviour(runs_for_seconds=0.1, exit_code=1))
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn, backoffLimit=0))
    await eventually(lambda: desk.condition("Ready")[:2] == ("False", "RunFailed"), 60)
    fake_node.behave(PodBehaviour())
    assert "backoff limit" in desk.condition("Ready")[2]
    [told] = await eventually(lambda: desk.events("RunFailed"))
    assert told == "run 1 failed: Job has reached the specified backoff limit"
    await eventually(lambda: desk.status()["lastDecision"]["reason"] == "BackingOff")
    assert list(read_runs(desk)) == [1], "not at once"

    operator.kill()
    operator.start()
    await eventually(lambda: under_way(desk) == [2], 60, "it is tried again")
    started = datetime.fromisoformat(read_runs(desk)[2]["metadata"]["creationTimestamp"])
    ended = datetime.fromisoformat(read_runs(desk)[1]["status"]["conditions"][-1]["lastTransitionTime"])
    assert started - ended >= timedelta(seconds=9), "ten seconds, by clocks that know whole ones"
    await client.job_store.redis.delete(QUEUE_KEY)
    await end_run(desk, fake_node, 2)
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "Waiting"), 30, "it heals")
    assert desk.events("RunFailed") == [told], "the failure before the restart makes no second event"


async def test_a_run_that_lacks_functions_is_reported_and_delays_no_other_job(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    fake_node.behave(PodBehaviour(runs_for_seconds=0.1, exit_code=LACKS_FUNCTIONS_EXIT_CODE))
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn, backoffLimit=3))
    told = await eventually(lambda: desk.events("RunFailed"), 60)
    assert told[0].startswith("run 1 failed: it ran all other jobs, but the image has no handler for some")
    # Each is followed by the next after ten seconds, and no pod was started again.
    await eventually(lambda: len(read_runs(desk)) > 2, 60)
    runs = read_runs(desk)
    assert runs[1]["status"]["failed"] == 1
    first, third = (datetime.fromisoformat(runs[run]["metadata"]["creationTimestamp"]) for run in (1, 3))
    assert timedelta(seconds=18) <= third - first < timedelta(seconds=28)


async def test_a_changed_spec_leaves_the_run_that_is_under_way_alone(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn))
    await eventually(lambda: under_way(desk) == [1], 60)
    before = read_runs(desk)[1]
    desk.apply(build_burst(redis_dsn, image="example.com/shop:2", activeDeadlineSeconds=600))
    await eventually(lambda: desk.status().get("observedGeneration") == 2, 30)
    await holds(
        lambda: read_runs(desk)[1]["metadata"]["generation"] == before["metadata"]["generation"],
        1.5,
        "the run is not touched",
    )
    assert read_runs(desk)[1]["metadata"]["uid"] == before["metadata"]["uid"]
    await end_run(desk, fake_node, 1)
    await eventually(lambda: under_way(desk) == [2], 30)
    after = read_runs(desk)[2]["spec"]
    assert after["template"]["spec"]["containers"][0]["image"] == "example.com/shop:2"
    assert after["activeDeadlineSeconds"] == 600


async def test_a_paused_pool_starts_no_run_until_it_is_resumed(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    await client.job_store.set_pause(f"pool:{desk.namespace}/emails", "paused", "ada")
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn))
    await eventually(lambda: desk.condition("ScalingActive")[:2] == ("False", "Paused"), 60)
    await holds(lambda: read_runs(desk) == {}, 1.5, "a paused pool stays paused")
    await client.job_store.set_pause(f"pool:{desk.namespace}/emails", None, "ada")
    await eventually(lambda: under_way(desk) == [1], 30)


async def test_no_run_starts_beside_the_draining_pod_of_a_job_that_was_deleted(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, client: RRQClient, redis_dsn: str
) -> None:
    fake_node.behave(PodBehaviour(gone_after_seconds=600.0))
    await client.enqueue("greet")
    desk.apply(build_burst(redis_dsn))
    await eventually(lambda: under_way(desk) == [1] and len(living_pods(desk)) == 1, 60)
    [draining] = living_pods(desk)
    desk.kubectl("delete", "job", "emails-run-1", "--wait=false")
    await eventually(lambda: desk.status()["lastDecision"]["reason"] == "Stopping", 30)
    await holds(lambda: (read_runs(desk), living_pods(desk)) == ({}, [draining]), 2.5, "a run beside it")
    # Only now is its drain over.
    desk.kubectl("delete", "pod", draining, "--force", "--grace-period=0", "--wait=false")
    await eventually(lambda: under_way(desk) == [2], 30, "the next run comes after it")
