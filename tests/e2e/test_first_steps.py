"""Story 1: install the chart, apply the example, enqueue; pods appear, each job runs once, and the pool goes to zero."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cluster_choice import name_image
from diagnosis import OPERATOR_NAMESPACE
from helm_client import CHART
from rrq.broker.connection import open_redis
from rrq.client import JobRequest, RRQClient
from rrq.job import JobStatus
from story import POOL_LABEL, read_labelled
from waiting import eventually

if TYPE_CHECKING:
    from helm_client import Helm
    from pools import PoolDesk
    from rrq.settings import RRQSettings
    from story_redis import StoryRedis

pytestmark = pytest.mark.timeout(420)

RELEASE = "rrq"
EXAMPLE = Path(__file__).parents[2] / "examples" / "pool.yaml"
POOL = "shop"  # and so is its queue
ORDERS = range(1, 81)
BUSY_BANK = [order for order in ORDERS if order % 10 == 0]  # asked to come again, once


async def test_the_first_steps_of_the_readme_work_on_an_empty_cluster(
    without_definition: None, helm: Helm, desk: PoolDesk, redis: StoryRedis
) -> None:
    in_namespace = ("--namespace", OPERATOR_NAMESPACE)
    image = ("--set", f"image.repository={name_image('rrq-operator')}", "--set", "image.tag=test")
    helm.run("install", RELEASE, str(CHART), *in_namespace, "--create-namespace", "--wait", *image)
    # Without any test in the chart Helm is content as well.
    assert "Phase:          Succeeded" in helm.run("test", RELEASE, *in_namespace)
    await assert_example_works(desk, redis.settings)
    # What does not work may hide behind what makes up for it: the list for the watch, the poll for the wake-up.
    log = desk.cluster.kubectl(*in_namespace, "logs", f"deployment/{RELEASE}-operator")
    assert not [line for line in log.splitlines() if json.loads(line)["level"] in ("ERROR", "CRITICAL")]


async def assert_example_works(desk: PoolDesk, settings: RRQSettings) -> None:
    """Apply the example, enqueue for it, and see everything done once and the pods gone."""
    manifest, count = re.subn(
        r"image: \S+", f"image: {name_image('rrq-example:test')}", EXAMPLE.read_text(), count=1
    )
    assert count == 1
    desk.kubectl("apply", "--filename", "-", input=manifest)
    desk.kubectl("wait", "--for=condition=Ready", f"rrqpool/{POOL}", "--timeout=60s")
    assert not find_pods(desk), "a pool without work has no pods"

    client = RRQClient(settings)
    try:
        jobs = await client.enqueue_many(build_requests())
        await eventually(lambda: find_pods(desk), 60, "no pod appeared", interval_seconds=0.3)
        waited_for = [await client.wait_for_completion(job.id, timeout_seconds=90) for job in jobs]
    finally:
        await client.close()
    await eventually(lambda: not find_pods(desk), 90, "the pool never went to zero", interval_seconds=0.3)

    results = [result for result in waited_for if result is not None]
    assert {result.status for result in results} == {JobStatus.COMPLETED}
    assert [result.result for result in results] == expected_results()
    # Redis counts how attempts ended. A job that was begun twice for another reason than its own shows here, too.
    asked_again = [result.last_error for result in results if result.last_error]
    assert asked_again == ["the bank is busy"] * len(BUSY_BANK)
    assert await read_counters(settings) == {"done": len(jobs), "retry": len(BUSY_BANK)}


def build_requests() -> list[JobRequest]:
    emails = [JobRequest("send_email", [f"{number}@example.com"], queue_name=POOL) for number in ORDERS]
    pictures = [
        JobRequest("resize_picture", [f"{number}.png"], {"width": number}, queue_name=POOL)
        for number in ORDERS
    ]
    cards = [JobRequest("charge_card", [order], queue_name=POOL) for order in ORDERS]
    return [*emails, *pictures, *cards]


def expected_results() -> list[object]:
    emails = [f"sent to {number}@example.com" for number in ORDERS]
    pictures = [{"name": f"{number}.png", "width": number} for number in ORDERS]
    return [*emails, *pictures, *(f"order {order} paid" for order in ORDERS)]


def find_pods(desk: PoolDesk) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in read_labelled(desk, "pods", POOL_LABEL, POOL)]


async def read_counters(settings: RRQSettings) -> dict[str, int]:
    connection = open_redis(settings)
    try:
        counters = cast("dict[bytes, bytes]", await connection.hgetall("rrq:counters"))
    finally:
        await connection.aclose()
    return {name.decode(): int(count) for name, count in counters.items()}
