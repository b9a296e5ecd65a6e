"""Story 3: pods and processes die in the middle of jobs. No job is lost, and none waits long for its next attempt."""

from __future__ import annotations

import asyncio
from functools import partial
from math import ceil
from statistics import median
from typing import TYPE_CHECKING

import pytest

from real_cluster import RealCluster
from waiting import eventually
from worker_deaths import delete_by_force, delete_in_haste, evict, kill_container, kill_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from story import Story

pytestmark = pytest.mark.timeout(600)

ROUNDS = 6
PODS = 10
DUE_AGAIN_SECONDS = 5.0
LEASE_SECONDS = 15.0
# Of a pod that is deleted by force nobody reports the end. Its node gives it two seconds, and at the latest the leases
# of its workers end by themselves.
BY_FORCE_SECONDS = LEASE_SECONDS + 10.0
BY_FORCE = "pod deleted by force"


def percentile_95(values: Sequence[float]) -> float:
    return sorted(values)[ceil(0.95 * len(values)) - 1]


def tell(waits: Mapping[str, Sequence[float]]) -> str:
    """The figure of the story: of all deaths that somebody saw, and of each kind."""
    seen = [wait for way, seconds in waits.items() if way != BY_FORCE for wait in seconds]
    lines = [
        f"seconds from a death to the next start of its job: p95 {percentile_95(seen):.1f} of {len(seen)}"
    ]
    for way, seconds in waits.items():
        lines.append(f"  {way:22} median {median(seconds):4.1f}  worst {max(seconds):4.1f}")
    return "\n".join(lines)


async def test_jobs_of_workers_that_die_start_elsewhere_within_seconds(
    story: Story, remark: Callable[[str], None]
) -> None:
    """kill -9 of the process, of the container, out of memory, pod deleted by force: side by side, in several rounds."""
    # One job per worker, and as many idle workers as dying ones: a job that is due again starts at once.
    story.apply_pool(worker={"concurrency": 1}, scaling={"minReplicas": PODS, "maxReplicas": PODS})
    ways: dict[str, Callable[[str], float]] = {
        "process killed": partial(kill_processes, story.desk),
        "pod deleted in haste": partial(delete_in_haste, story.desk),
        BY_FORCE: partial(delete_by_force, story.desk),
    }
    if isinstance(story.desk.cluster, RealCluster):
        ways["container killed"] = partial(kill_container, story.desk.cluster, story.desk)
    waits: dict[str, list[float]] = {"out of memory": [], **{way: [] for way in ways}}
    for _ in range(ROUNDS):
        await story.wait_for_pods(PODS, timeout_seconds=120)
        [hungry] = await story.enqueue(handler="exhaust_memory")
        victims = await story.enqueue(len(ways), handler="endure")
        starts = await story.wait_until_started(victims)
        dying = [
            asyncio.to_thread(die, starts[job_id].pod)
            for job_id, die in zip(victims, ways.values(), strict=True)
        ]
        deaths = await asyncio.gather(*dying)
        await story.wait_until_finished(90)
        ledger = await story.read_ledger()
        for way, job_id, died_at in zip(ways, victims, deaths, strict=True):
            again = ledger.of_job(job_id, "started")[1:]
            assert again, f"job {job_id} had ended before its worker died: {way}"
            waits[way].append(again[0].time - died_at)
        # From its start, as nobody knows the moment of its end; so this figure is too high rather than too low.
        first, again_hungry = ledger.of_job(hungry, "started")
        waits["out of memory"].append(again_hungry.time - first.time)
        await assert_out_of_memory(story, hungry)

    remark(tell(waits))
    # Each was begun twice, because its worker died once, and finished once.
    ledger = await story.read_ledger()
    assert set(ledger.count("started").values()) == {2}
    assert set(ledger.count("finished").values()) == {1}
    ledger.assert_none_lost(story.job_ids)
    await story.assert_completed(story.job_ids)
    assert max(waits.pop(BY_FORCE)) < BY_FORCE_SECONDS
    # A machine with more to do than this story makes single ones late, but none that has to wait for its lease.
    for way, seconds in waits.items():
        assert median(seconds) < DUE_AGAIN_SECONDS, f"{way}: {seconds}"
    assert percentile_95([wait for seconds in waits.values() for wait in seconds]) < 2 * DUE_AGAIN_SECONDS


async def assert_out_of_memory(story: Story, job_id: str) -> None:
    """The job really took its worker down: its history tells, as the supervisor or the kubelet saw it."""
    job = await story.client.job_store.get_job_data_dict(job_id)
    history = (job or {}).get("crash_history", "")
    assert "SIGKILL" in history or "OOMKilled" in history, f"job {job_id}: {history!r}"


DRAIN_SECONDS = 8
SHORT_SECONDS = 4.0


async def test_pods_that_are_told_to_go_end_short_jobs_and_hand_long_ones_back(story: Story) -> None:
    """Eviction, as a node drain does it, and kubectl delete. The pool's budget lets one pod go at a time."""
    story.apply_pool(
        worker={"concurrency": 2, "drainSeconds": DRAIN_SECONDS},
        scaling={"minReplicas": 3, "maxReplicas": 3},
    )
    await story.wait_for_pods(3, timeout_seconds=120)

    def allows() -> int:
        budget = story.desk.get("pdb", "emails")
        return int(budget.get("status", {}).get("disruptionsAllowed", 0))

    await eventually(lambda: allows() == 1, 30, "the budget of the pool never allowed anything")
    # As many as there are places, so that every pod has two.
    short = await story.enqueue(3, seconds=SHORT_SECONDS)
    long = await story.enqueue(3, handler="endure")
    starts = await story.wait_until_started([*short, *long])
    first, second, third = {entry.pod for entry in starts.values()}

    assert evict(story.desk, first)
    assert not evict(story.desk, second), "two pods of a pool may go at the same time"
    story.desk.kubectl("delete", "pod", third, "--wait=false")  # which asks no budget
    # The budget only puts it off: until there is a pod in the place of each that went.
    await eventually(lambda: evict(story.desk, second), 120, "a pod may not go", interval_seconds=0.5)

    await story.wait_until_finished(90)
    ledger = await story.read_ledger()
    assert ledger.count("started") == {job_id: 2 if job_id in long else 1 for job_id in story.job_ids}
    assert ledger.count("cancelled") == dict.fromkeys(long, 1)
    assert ledger.count("finished") == dict.fromkeys(story.job_ids, 1)
    await story.assert_completed(story.job_ids)

    def are_gone() -> bool:
        return not {pod["metadata"]["name"] for pod in story.pods()} & {first, second, third}

    await eventually(are_gone, 60, "pods that were told to go stay", interval_seconds=0.5)
    await story.wait_for_pods(3)
