"""Story 7: Redis is gone for a minute and comes back with what was in its append-only file; its password changes."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import pytest

from operator_release import OperatorRelease
from rrq.client import RRQClient
from story import Story
from waiting import eventually

pytestmark = pytest.mark.timeout(400)

OUTAGE_SECONDS = 60.0
DRAIN_SECONDS = 5


def containers(pods: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Of each pod its uid, and how often its containers were started anew."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ())),
        )
        for pod in pods
    }


def operators(story: Story) -> dict[str, tuple[str, int]]:
    pods = OperatorRelease.of(story.desk).pods()
    assert pods, "no operator runs"
    return containers(pods)


async def wait_until_ready(story: Story) -> None:
    def says_so() -> bool:
        ready, reachable = (story.desk.condition(kind) for kind in ("Ready", "QueueReachable"))
        assert (ready[0], reachable[0]) == ("True", "True"), (ready, reachable)
        return True

    await eventually(says_so, 60, "the pool is not ready", interval_seconds=0.5)


async def wait_until_completed(story: Story) -> None:
    await story.wait_until_finished(90)
    await story.assert_completed(story.job_ids)


async def test_a_minute_without_redis_costs_no_job_and_no_pod(story: Story) -> None:
    """Redis is shut down, and started again on its append-only file a minute later: till then nothing listens.

    No worker dies of it, so no job may run twice, although all leases have ended meanwhile: after a restart of Redis
    nobody is reaped for the length of a lease, within which every worker is back and tells what it holds.
    """
    # No size is fixed: an operator that took silence for an empty queue would let all pods go.
    story.apply_pool(worker={"concurrency": 2}, scaling={"minReplicas": 0, "maxReplicas": 2})
    in_hand = await story.enqueue(2, seconds=OUTAGE_SECONDS / 2)
    in_hand += await story.enqueue(2, seconds=OUTAGE_SECONDS + 15)
    await story.wait_until_started(in_hand, 120)
    await story.wait_for_pods(2)
    await story.enqueue(10, seconds=0.1)  # no slot is left for them
    await wait_until_ready(story)
    pods, operator = containers(story.pods()), operators(story)

    story.redis.take_away()
    gone_at = time.monotonic()

    def says_unreachable() -> bool:
        status, reason, message = story.desk.condition("QueueReachable")
        assert (status, reason) == ("False", "Unreachable"), message
        return True

    await eventually(says_unreachable, 30, "the pool does not say that Redis is gone", interval_seconds=0.5)
    while time.monotonic() - gone_at < OUTAGE_SECONDS:
        assert says_unreachable()
        assert story.desk.replicas() == 2, "a pool was scaled by what nobody knows"
        assert containers(story.pods()) == pods
        await asyncio.sleep(1.0)
    story.redis.give_back()

    await wait_until_ready(story)
    assert containers(story.pods()).items() <= pods.items(), "workers did not survive"
    await wait_until_completed(story)
    (await story.read_ledger()).assert_each_once(story.job_ids)
    assert operators(story) == operator


async def test_a_new_password_rolls_the_workers_and_costs_no_job(story: Story) -> None:
    """Redis takes a new password, then the Secret tells it: old pods drain, new ones and the operator use it."""
    story.apply_pool(
        worker={"concurrency": 2, "drainSeconds": DRAIN_SECONDS},
        scaling={"minReplicas": 2, "maxReplicas": 2},
    )
    await story.wait_for_pods(2, timeout_seconds=120)
    short = await story.enqueue(2, seconds=2.0)
    long = await story.enqueue(2, handler="endure")
    await story.wait_until_started([*short, *long])
    await story.enqueue(10, seconds=0.1)
    before, operator = containers(story.pods()), operators(story)

    redis = story.redis.rotate_password(secrets.token_urlsafe(12))
    client = RRQClient(redis.settings)
    try:
        rotated = Story(story.desk, redis, client, story.job_ids)

        def have_rolled() -> bool:
            return not containers(rotated.pods()).keys() & before.keys()

        await eventually(have_rolled, 180, "old pods stay", interval_seconds=0.5)
        await rotated.wait_for_pods(2)
        # Whoever still lives on a connection from before has to log in now.
        redis.cli("client", "kill", "type", "normal")
        await rotated.enqueue(10, seconds=0.1)
        await wait_until_completed(rotated)
        await wait_until_ready(rotated)
        ledger = await rotated.read_ledger()
        assert set(ledger.count("finished").values()) == {1}
        # Long ones were handed back; nothing else was begun twice.
        assert set(ledger.count("cancelled")) == set(long)
        assert ledger.count("started") == {job_id: 2 if job_id in long else 1 for job_id in story.job_ids}
        assert operators(story) == operator
    finally:
        await client.close()
