"""Story 4: a new image is rolled out while jobs run.

Jobs shorter than `drainSeconds` end where they began; longer ones are handed back and end in the new version. No job is
lost and none is counted as failed.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from story_watch import Change, Watch
from waiting import eventually

if TYPE_CHECKING:
    from story import Story
    from story_ledger import Entry, StoryLedger

pytestmark = pytest.mark.timeout(420)

DRAIN_SECONDS = 7
SHORT_SECONDS = 2.0
PAUSE_SECONDS = 0.25
REPLICAS = 2
CONCURRENCY = 8


async def test_jobs_survive_the_roll_out_of_a_new_image(story: Story) -> None:
    apply_version(story, "test")
    await story.wait_for_pods(REPLICAS)
    old_pods = {pod["metadata"]["name"] for pod in story.pods()}
    long_ids = await enqueue_long_jobs(story, 4)

    async with Watch(story.desk, "pods") as pods, Watch(story.desk, "rrqpool") as pools:
        rolled_out = asyncio.Event()
        producer = asyncio.create_task(send_short_jobs(story, until=rolled_out))
        await eventually(lambda: has_finished_other_than(story, long_ids), 60, "no short job ended")
        apply_version(story, "next")
        await eventually(
            lambda: asyncio.to_thread(is_rolled_out, story, old_pods),
            180,
            "the roll-out never ended",
            interval_seconds=0.5,
        )
        rolled_out.set()
        short_ids = await producer
        await story.wait_until_finished(120)
        # What we have read by now, kubectl may tell later.
        as_desired = ("True", "AsDesired")
        await eventually(
            lambda: find_readiness(pools.changes)[-1:] == [as_desired],
            60,
            "the watch does not show the pool ready",
        )
        await eventually(
            lambda: set(find_ends(pods.changes, old_pods)) == old_pods,
            60,
            "the watch did not show every old pod being told to go",
        )
        readiness = find_readiness(pools.changes)
        told_to_go_at = find_ends(pods.changes, old_pods)

    ledger = await story.read_ledger()
    assert_short_jobs_ended_where_they_began(ledger, short_ids, told_to_go_at)
    assert_long_jobs_went_to_the_new_version(ledger, long_ids, old_pods)
    await story.assert_completed(story.job_ids)
    assert ("False", "RollingOut") in readiness
    # Whoever waits for Ready after the change must not be told so before the last old pod is replaced.
    assert [status for status, _ in readiness] == sorted(status for status, _ in readiness)


def apply_version(story: Story, tag: str) -> None:
    story.apply_pool(
        image=f"rrq-e2e:{tag}",
        worker={"concurrency": CONCURRENCY, "drainSeconds": DRAIN_SECONDS},
        scaling={"minReplicas": REPLICAS, "maxReplicas": REPLICAS},
    )


async def enqueue_long_jobs(story: Story, count: int) -> list[str]:
    """Jobs that the old version never ends. Each comes when the one before has begun: no worker claims them all."""
    ids: list[str] = []
    for _ in range(count):
        ids += await story.enqueue(handler="endure", until_version="next")
        await story.wait_until_started(ids)
    return ids


async def send_short_jobs(story: Story, until: asyncio.Event) -> list[str]:
    """Keep every slot of every pod taken, so that each pod has jobs in hand whenever it is told to go."""
    ids: list[str] = []
    while not until.is_set():
        finished = (await story.read_ledger()).count("finished")
        if len(ids) - sum(job_id in finished for job_id in ids) < 2 * REPLICAS * CONCURRENCY:
            ids += await story.enqueue(CONCURRENCY, seconds=SHORT_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS)
    return ids


async def has_finished_other_than(story: Story, long_ids: list[str]) -> bool:
    return bool(set((await story.read_ledger()).count("finished")) - set(long_ids))


def is_rolled_out(story: Story, old_pods: set[str]) -> bool:
    names = {pod["metadata"]["name"] for pod in story.pods()}
    return not names & old_pods and story.desk.condition("Ready")[0] == "True"


def find_readiness(changes: list[Change]) -> list[tuple[str, str]]:
    """Status and reason of Ready, as told of the last generation of the pool, without repetitions."""
    last = max(change.body["metadata"]["generation"] for change in changes)
    told: list[tuple[str, str]] = []
    for change in changes:
        for entry in change.body.get("status", {}).get("conditions", []):
            if entry["type"] == "Ready" and entry["observedGeneration"] == last:
                ready = (entry["status"], entry["reason"])
                told += [ready] if told[-1:] != [ready] else []
    return told


def find_ends(changes: list[Change], pods: set[str]) -> dict[str, float]:
    """When each pod was told to go, at the latest: kubectl may be behind, and the API server writes whole seconds down."""
    ends: dict[str, float] = {}
    for change in changes:
        about = change.body["metadata"]
        if change.name in pods and "deletionTimestamp" in about:
            due_at = datetime.fromisoformat(about["deletionTimestamp"]).timestamp()
            told_by = due_at - about["deletionGracePeriodSeconds"] + 1
            ends.setdefault(change.name, min(change.seen_at, told_by))
    return ends


def assert_short_jobs_ended_where_they_began(
    ledger: StoryLedger, short_ids: list[str], told_to_go_at: dict[str, float]
) -> None:
    short = type(ledger)([entry for entry in ledger.entries if entry.job_id in set(short_ids)])
    short.assert_each_once(short_ids)
    assert not short.interrupted
    assert not short.of("cancelled")
    assert {entry.version for entry in short.of("finished")} == {"test", "next"}
    # Otherwise nothing was put to the test: a job in each old pod was in progress when the pod was told to go.
    finished = {entry.job_id: entry for entry in short.of("finished")}

    def was_draining(began: Entry) -> bool:
        told_at = told_to_go_at.get(began.pod)
        return told_at is not None and began.time < told_at < finished[began.job_id].time

    draining = {entry.pod for entry in short.of("started") if was_draining(entry)}
    assert draining == set(told_to_go_at), f"no short job ran in the last seconds of {told_to_go_at}"


def assert_long_jobs_went_to_the_new_version(
    ledger: StoryLedger, long_ids: list[str], old_pods: set[str]
) -> None:
    for job_id in long_ids:
        of_job = [entry for entry in ledger.entries if entry.job_id == job_id]
        ends = [(entry.event, entry.version) for entry in of_job if entry.event != "started"]
        # A job that went from one old pod to the other was handed back by that one as well.
        assert ends[0] == ("cancelled", "test"), f"handed back: {of_job}"
        assert ends[-1] == ("finished", "next"), f"run again by the new version: {of_job}"
        assert set(ends[:-1]) == {("cancelled", "test")}
        assert {entry.attempt for entry in of_job} == {1}, f"counted as an attempt: {of_job}"
        assert of_job[0].pod in old_pods
