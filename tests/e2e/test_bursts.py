"""Story 5: a burst pool. Its Job runs, ends, and runs again when more arrives; never two at once.

"At once" is taken strictly: from the creation of a pod until the kubelet has reported its end, in a watch that shows
every version. What the handlers wrote is held against it.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from burst_runs import is_over, read_runs
from container_killer import kill_container
from story_watch import Watch, find_living
from waiting import eventually

if TYPE_CHECKING:
    from story import Story
    from story_ledger import StoryLedger

pytestmark = pytest.mark.timeout(420)

RUNS = 4
DRAIN_SECONDS = 4
WAYS_TO_GO = ("deleted", "killed", "stopped")


async def test_a_burst_runs_again_when_more_arrives_and_never_twice_at_once(story: Story) -> None:
    apply_burst(story, "emails")
    async with Watch(story.desk, "pods") as watch:
        await send_wavelets(story, Random(5))
        await wait_until_at_rest(story)
        ledger = await story.read_ledger()
        history = await wait_for_history(watch, "emails", ledger)
    ledger.assert_each_once(story.job_ids)
    assert_never_two(history, ledger, pods_at_least=RUNS)

    def tells() -> tuple[str, tuple[str, ...]]:
        return story.desk.status()["job"]["lastResult"], story.desk.condition("Ready")[:2]

    # The operator learns of the end when we do, and tells it a moment later.
    at_rest = ("Succeeded", ("True", "Waiting"))
    await eventually(lambda: tells() == at_rest, 30, "the pool does not say that its runs have ended")


async def test_a_burst_that_is_cut_short_goes_on_after_its_pod_has_ended(story: Story) -> None:
    """Side by side: the pod deleted, its container killed, and the Job of the run deleted."""
    for pool in WAYS_TO_GO:
        apply_burst(story, pool)
    async with Watch(story.desk, "pods") as watch:
        long_jobs = {pool: await story.enqueue(queue=pool, handler="endure") for pool in WAYS_TO_GO}
        starts = await story.wait_until_started([job for ids in long_jobs.values() for job in ids], 120)
        pods = {pool: starts[job_id].pod for pool, [job_id] in long_jobs.items()}
        story.desk.kubectl("delete", "pod", pods["deleted"], "--wait=false")
        story.desk.kubectl("delete", "job", "stopped-run-1", "--wait=false")
        kill_container(story.desk, pods["killed"])
        for pool in WAYS_TO_GO:
            # Work that could tempt somebody to start another run while the first is on its way out.
            await story.enqueue(queue=pool, seconds=0.1)
        await story.wait_until_finished(180)
        ledger = await story.read_ledger()
        ledgers = {pool: of_pool(ledger, pool) for pool in WAYS_TO_GO}
        histories = {pool: await wait_for_history(watch, pool, ledgers[pool]) for pool in WAYS_TO_GO}
    for pool, of_it in ledgers.items():
        assert_never_two(histories[pool], of_it, pods_at_least=2)
        [long_job] = long_jobs[pool]
        # One end for each job, although the long one was begun twice: nothing is lost and nothing done over again.
        assert set(of_it.count("finished").values()) == {1}
        assert of_it.count("started")[long_job] == 2
        assert of_it.count("cancelled")[long_job] == (0 if pool == "killed" else 1)
    await story.assert_completed(story.job_ids)


def apply_burst(story: Story, name: str) -> None:
    story.apply_pool(
        name,
        type="Job",
        worker={"concurrency": 2, "drainSeconds": DRAIN_SECONDS},
        job={"lingerSeconds": 1},
    )


async def send_wavelets(story: Story, random: Random) -> None:
    """Send work while a run goes on, while it ends, and when it has ended, until there were enough runs."""
    while len(read_runs(story.desk)) < RUNS:
        await story.enqueue(random.randint(1, 6), seconds=0.3)
        if random.random() < 0.5:
            await wait_until_at_rest(story)
        else:
            await asyncio.sleep(random.uniform(0, 3))  # when the next work comes: nothing is waited for


async def wait_until_at_rest(story: Story) -> None:
    await story.wait_until_finished(90)
    await eventually(
        lambda: all(map(is_over, read_runs(story.desk).values())),
        60,
        "a run never ended",
        interval_seconds=0.3,
    )


def of_pool(ledger: StoryLedger, pool: str) -> StoryLedger:
    return type(ledger)([entry for entry in ledger.entries if entry.pod.startswith(f"{pool}-")])


async def wait_for_history(watch: Watch, pool: str, ledger: StoryLedger) -> list[frozenset[str]]:
    """Which pods lived when, up to the last one of the ledger at least: kubectl may tell of it later than Redis does."""
    pods = {entry.pod for entry in ledger.entries}
    await eventually(
        lambda: pods <= frozenset().union(*find_living(watch.changes, pool)),
        60,
        "a pod that the watch never showed has run jobs",
    )
    return find_living(watch.changes, pool)


def assert_never_two(history: list[frozenset[str]], ledger: StoryLedger, pods_at_least: int) -> None:
    assert max(map(len, history)) == 1, f"two pods at once: {max(history, key=len)}"
    pods = [entry.pod for entry in ledger.entries]
    assert len(set(pods)) >= pods_at_least
    # Entries are in the order of time: a pod that has had its last word is not heard of again.
    changes = sum(before != after for before, after in pairwise(pods))
    assert changes == len(set(pods)) - 1, f"pods ran jobs at the same time: {pods}"
