"""Story 2: a pool follows its work up and down, and no job is interrupted in a hundred scale-downs.

A scale-down is one decrease of `spec.replicas` of a Deployment, by however many replicas, each seen in a watch that shows
every version. Pods get no time to drain in that test: one that is taken with a job in hand cuts it, and the ledger tells.
"""

from __future__ import annotations

import asyncio
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rrq_operator.decide.manifests import COST_ANNOTATION
from story import is_ready
from story_watch import Change, Resize, Watch, find_resizes
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from story import Story
    from story_ledger import Entry, StoryLedger

# Pools that shrink as soon as they may, after a moment, by one replica at a time or by any number.
POOLS = {
    "north": {"windowSeconds": 0, "stepReplicas": 1},
    "east": {"windowSeconds": 0, "stepReplicas": 1},
    "south": {"windowSeconds": 1, "stepReplicas": 1},
    "west": {"windowSeconds": 1, "stepReplicas": 2},
    "middle": {"windowSeconds": 1},
}
SCALE_DOWNS = 100
# Of each few jobs the first is long: while it runs, the others end and their pods have to go.
LONG_SECONDS = 5.0
SHORT_SECONDS = (0.2, 0.5, 1.0, 2.0)
# Of a hundred, those in whose moment a job of the same pool ran. Far fewer would mean that nothing was put to the test.
SCALE_DOWNS_BESIDE_JOBS = 25
WINDOW_SECONDS = 3


@pytest.mark.timeout(420)
async def test_a_wave_is_met_at_once_and_let_go_after_the_window(story: Story) -> None:
    story.apply_pool(scaling={"maxReplicas": 4, "scaleDown": {"windowSeconds": WINDOW_SECONDS}})
    await wait_for_deployments(story, {"emails"})
    async with Watch(story.desk, "deployments") as watch:
        # Long enough that there is work left for the pod that comes last.
        ids = await story.enqueue(80, seconds=4)
        await story.wait_until_finished(150)
        await story.wait_for_pods(0)
        # The Deployment was told before its pods went; kubectl may tell us later.
        await eventually(
            lambda: [resize.after for resize in find_resizes(watch.changes)][-1:] == [0],
            60,
            "the watch does not show the pool at zero",
        )
        resizes = find_resizes(watch.changes)
    ledger = await story.read_ledger()
    ledger.assert_each_once(ids)
    sizes = [resizes[0].before, *(resize.after for resize in resizes)]
    assert sizes[:2] == [0, 4], f"not straight to the size that the wave asks for: {sizes}"
    assert sizes[1:] == sorted(sizes[1:], reverse=True), f"the pool grew again without more work: {sizes}"
    assert sizes[-1] == 0
    assert len({entry.pod for entry in ledger.entries}) == 4, "a replica was asked for and did nothing"
    # A second is for the clock of the node and for the time between two looks.
    idle_seconds = resizes[-1].seen_at - max(entry.time for entry in ledger.entries)
    assert idle_seconds > WINDOW_SECONDS - 1


@pytest.mark.timeout(900)
async def test_no_job_is_interrupted_in_a_hundred_scale_downs(
    story: Story, remark: Callable[[str], None]
) -> None:
    for pool, scale_down in POOLS.items():
        story.apply_pool(
            pool,
            worker={"concurrency": 1, "drainSeconds": 0},
            scaling={"maxReplicas": 4, "scaleDown": scale_down},
        )
    await wait_for_deployments(story, set(POOLS))
    async with Watch(story.desk, "pods") as pods, Watch(story.desk, "deployments") as watch:
        async with asyncio.TaskGroup() as producers:
            for number, pool in enumerate(POOLS):
                producers.create_task(send_wavelets(story, pool, Random(number), watch))
        await story.wait_until_finished(120)
        for pool in POOLS:
            await story.wait_for_pods(0, pool, timeout_seconds=120)
        scale_downs = find_scale_downs(watch)
    assert len(scale_downs) >= SCALE_DOWNS
    ledger = await story.read_ledger()
    cut = [*ledger.of("cancelled"), *ledger.interrupted]
    assert not cut, describe_cuts(cut, pods.changes, find_resizes(watch.changes))
    ledger.assert_each_once(story.job_ids)
    beside_jobs = count_beside_jobs(scale_downs, ledger)
    remark(f"{len(scale_downs)} scale-downs, {beside_jobs} of them while a job of the same pool ran")
    assert beside_jobs >= SCALE_DOWNS_BESIDE_JOBS


def describe_cuts(cut: list[Entry], changes: list[Change], resizes: list[Resize]) -> str:
    """What happened to the pools and pods of jobs that were cut, in the seconds before."""
    lines = []
    for entry in cut:
        pool = find_pool(entry)
        lines.append(f"{entry.time:.2f} {entry.event}: job {entry.job_id} in {entry.pod}")
        since, until = entry.time - 10, entry.time + 5
        lines += [
            f"  {resize.seen_at:.2f} {resize.before} → {resize.after} replicas"
            for resize in resizes
            if resize.name == pool and since < resize.seen_at < until
        ]
        lines += [
            f"  {change.seen_at:.2f} {change.kind} {describe_pod(change.body)}"
            for change in changes
            if change.name.startswith(f"{pool}-") and since < change.seen_at < until
        ]
    return "\n".join(["jobs were cut:", *lines])


def describe_pod(pod: dict[str, Any]) -> str:
    """What Kubernetes chooses by, which pod goes first."""
    metadata = pod["metadata"]
    ready = "ready" if is_ready(pod) else "not ready"
    cost = metadata.get("annotations", {}).get(COST_ANNOTATION, "0")
    goes = ", told to go" if "deletionTimestamp" in metadata else ""
    return f"{metadata['name']} {ready}, cost {cost}{goes}"


def find_pool(entry: Entry) -> str:
    return entry.pod.rsplit("-", 2)[0]  # the name of a pod begins with that of its Deployment


async def wait_for_deployments(story: Story, names: set[str]) -> None:
    await eventually(
        lambda: {item["metadata"]["name"] for item in story.desk.read_all("deployment")} == names,
        60,
        f"the Deployments {sorted(names)} were not made",
    )


async def send_wavelets(story: Story, pool: str, random: Random, watch: Watch) -> None:
    """Keep a pool growing and shrinking, with work that comes back while pods are on their way out."""
    while not await has_enough(story, watch):
        before = len(find_scale_downs(watch, pool))
        for seconds in (LONG_SECONDS, *random.choices(SHORT_SECONDS, k=random.randint(1, 4))):
            await story.enqueue(queue=pool, seconds=seconds)
        await wait_until_shrunk(watch, pool, before)
        await asyncio.sleep(random.uniform(0, 4))  # when the next work comes: nothing is waited for


async def has_enough(story: Story, watch: Watch) -> bool:
    scale_downs = find_scale_downs(watch)
    if len(scale_downs) < SCALE_DOWNS:
        return False
    # How many jobs are still running when a pool shrinks depends on the machine, so it goes on until there were some.
    return count_beside_jobs(scale_downs, await story.read_ledger()) >= SCALE_DOWNS_BESIDE_JOBS


async def wait_until_shrunk(watch: Watch, pool: str, scale_downs_before: int) -> None:
    await eventually(
        lambda: len(find_scale_downs(watch, pool)) > scale_downs_before,
        300,
        f"pool {pool} never shrank",
        interval_seconds=0.5,
    )


def find_scale_downs(watch: Watch, pool: str | None = None) -> list[Resize]:
    return [
        resize
        for resize in find_resizes(watch.changes)
        if resize.after < resize.before and pool in (None, resize.name)
    ]


def count_beside_jobs(scale_downs: list[Resize], ledger: StoryLedger) -> int:
    """How many happened while a job of the same pool ran."""
    finished_at = {entry.job_id: entry.time for entry in ledger.of("finished")}
    runs = [
        (find_pool(entry), entry.time, finished_at.get(entry.job_id, inf)) for entry in ledger.of("started")
    ]
    return sum(
        any(pool == one.name and began < one.seen_at < ended for pool, began, ended in runs)
        for one in scale_downs
    )
