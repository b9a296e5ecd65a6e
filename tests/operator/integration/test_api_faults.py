"""An operator whose calls to the API server are refused or cut, and what it writes when nothing has changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fake_node import PodBehaviour
from faulty_api import FaultyApi
from operator_process import START_SECONDS, RunningOperator
from pools import build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fake_node import FakeNode
    from pools import PoolDesk
    from rrq import RRQClient

OBJECTS = ("rrqpool", "deployment", "pdb")
# The garbage collector of Kubernetes learns of a new kind only when it looks around, every 30 s. Of an owner of
# a kind that it does not know it asks again after ever longer: 41 s after it saw the child first, then 82 s.
GARBAGE_SECONDS = 100


@pytest.fixture
async def api(desk: PoolDesk, tmp_path: Path) -> AsyncIterator[FaultyApi]:
    async with FaultyApi(desk.cluster.kubeconfig, tmp_path) as api:
        yield api


def versions(desk: PoolDesk) -> list[str]:
    return [desk.get(kind, "emails")["metadata"]["resourceVersion"] for kind in OBJECTS]


def is_ready(desk: PoolDesk, reason: str) -> bool:
    return desk.condition("Ready")[:2] == ("True", reason)


def uid_of(desk: PoolDesk, kind: str) -> str | None:
    uid: str | None = desk.get(kind, "emails").get("metadata", {}).get("uid")
    return uid


async def stays(holds: Callable[[], bool], seconds: float, message: str) -> None:
    """Something that must not happen can only be waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert holds(), message
        with pytest.raises(AssertionError):
            await eventually(lambda: False, 0.2)


async def settle(desk: PoolDesk) -> None:
    """Wait until figures have been written that were delayed."""
    last_version, since = "", time.monotonic()

    def is_quiet() -> bool:
        nonlocal last_version, since
        version, now = versions(desk)[0], time.monotonic()
        if version != last_version:
            last_version, since = version, now
        return now - since > 6.5

    await eventually(is_quiet, 60, "the status of an idle pool keeps changing")


async def test_an_idle_pool_is_left_alone_also_by_an_operator_that_starts(
    desk: PoolDesk, fake_node: FakeNode, api: FaultyApi, tmp_path: Path, redis_dsn: str
) -> None:
    fake_node.behave(PodBehaviour(ready_after_seconds=1.0))
    pool = build_pool(redis={"url": redis_dsn}, replicas=1)
    with RunningOperator(api.kubeconfig, desk.namespace, tmp_path, name="first"):
        desk.apply(pool)
        await eventually(lambda: is_ready(desk, "AsDesired"), START_SECONDS)
        await eventually(lambda: "startupSeconds" in desk.status(), 30)
        await settle(desk)
        before = versions(desk)
        api.calls.clear()
        await stays(
            lambda: before == versions(desk),
            10,
            "a person wrote",
        )
        assert api.writes == []
    with RunningOperator(api.kubeconfig, desk.namespace, tmp_path, name="second") as second:
        await eventually(lambda: "operator leads" in second.log, START_SECONDS)
        await eventually(lambda: len(api.writes) >= 2, 60, "it looks at what there is")
        await stays(
            lambda: before == versions(desk),
            4,
            "a person wrote",
        )
        base = f"namespaces/{desk.namespace}"
        # These correct what changed during the outage; nothing did.
        assert sorted(api.writes) == [
            f"PATCH /apis/apps/v1/{base}/deployments/emails",
            f"PATCH /apis/policy/v1/{base}/poddisruptionbudgets/emails",
        ]


async def test_pools_are_made_and_sized_once_writes_are_answered_again(
    desk: PoolDesk, api: FaultyApi, tmp_path: Path, client: RRQClient, redis_dsn: str
) -> None:
    with RunningOperator(api.kubeconfig, desk.namespace, tmp_path) as operator:
        desk.apply(build_pool(redis={"url": redis_dsn}))
        await eventually(lambda: is_ready(desk, "AtZero"), START_SECONDS)
        for size, status in enumerate((409, 429, 500), start=1):
            before, other = api.refused, f"letters-{status}"
            api.refuse_writes(status)
            await client.enqueue_many([JobRequest("greet") for _ in range(10)])
            desk.apply(build_pool(other, redis={"url": redis_dsn}, queues=["letters"]))
            await refuses_more(api, before + 6)
            assert (desk.replicas(), desk.replicas(other)) == (size - 1, None)
            assert (await operator.get("/livez"))[0] == 200
            api.relent()
            await is_sized(desk, size, other)
        assert "api_errors_total{reason=" in (await operator.get("/metrics"))[1]


async def refuses_more(api: FaultyApi, count: int) -> None:
    await eventually(lambda: api.refused > count, 60, "it tries again")


async def is_sized(desk: PoolDesk, size: int, other: str) -> None:
    """Expect that what was refused is now done and reported."""
    await eventually(lambda: (desk.replicas(), desk.replicas(other)) == (size, 0), 30)
    await eventually(lambda: desk.condition("Ready", other)[0] == "True", 30)
    words = f"{size - 1} → {size} replicas"
    await eventually(lambda: any(words in message for message in desk.events("Scaled")), 30)


async def test_changes_are_seen_although_watches_are_cut(
    desk: PoolDesk, api: FaultyApi, fake_node: FakeNode, tmp_path: Path, client: RRQClient, redis_dsn: str
) -> None:
    with RunningOperator(api.kubeconfig, desk.namespace, tmp_path) as operator:
        desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"maxReplicas": 5}))
        await eventually(lambda: is_ready(desk, "AtZero"), START_SECONDS)
        for queue in ("first", "second", "third"):
            assert await api.cut_watches() >= 1
            # Objects come, change and go while the watches are away.
            desk.apply(build_pool(queue, redis={"url": redis_dsn}, queues=[queue]))
        await eventually(
            lambda: [desk.replicas(queue) for queue in ("first", "second", "third")] == [0, 0, 0], 10
        )
        desk.kubectl("delete", "rrqpool", "second")
        await api.cut_watches()
        await client.enqueue_many([JobRequest("greet") for _ in range(50)])
        await eventually(lambda: desk.replicas() == 5, 30)
        await api.cut_watches()
        await eventually(lambda: is_ready(desk, "AsDesired"), 30, "pods that became ready are seen")
        assert "cannot be parsed" not in operator.log


async def test_a_pool_that_is_deleted_can_be_made_again_at_once(
    desk: PoolDesk, fake_node: FakeNode, tmp_path: Path, redis_dsn: str
) -> None:
    pool = build_pool(redis={"url": redis_dsn}, replicas=2)
    with RunningOperator(desk.cluster.kubeconfig, desk.namespace, tmp_path, name="first"):
        desk.apply(pool)
        await eventually(lambda: is_ready(desk, "AsDesired"), START_SECONDS)
        assert "finalizers" not in desk.get("rrqpool", "emails")["metadata"]
        before = {kind: uid_of(desk, kind) for kind in ("deployment", "pdb")}
        # Under the eyes of the operator: deleted, and made again at once.
        desk.kubectl("delete", "rrqpool", "emails")
        desk.apply(pool)

        def has_left() -> bool:
            return all(uid_of(desk, kind) != uid for kind, uid in before.items())

        await eventually(has_left, GARBAGE_SECONDS, "the children of the pool before are collected")
        # From here on it is for the operator, which has asked in vain for as long as that took.
        await eventually(lambda: all(uid_of(desk, kind) for kind in before), 30, "the children are made anew")
        await eventually(lambda: is_ready(desk, "AsDesired"), 60)
        assert not [event for event in desk.read_all("events") if event["reason"] == "NameTaken"]


async def test_an_operator_continues_the_count_of_events_of_the_one_before(
    desk: PoolDesk, tmp_path: Path, redis_dsn: str
) -> None:
    good = build_pool(redis={"url": redis_dsn})
    entry = {"name": "backwards", "schedule": "5-3 * * * *", "function": "greet"}
    bad = build_pool(redis={"url": redis_dsn}, cron=[entry])

    def counts() -> list[int]:
        return [event["count"] for event in desk.read_all("events") if event["reason"] == "InvalidSpec"]

    with RunningOperator(desk.cluster.kubeconfig, desk.namespace, tmp_path, name="first"):
        for _ in range(2):
            desk.apply(bad)
            await eventually(lambda: desk.condition("Ready")[1] == "InvalidSpec", START_SECONDS)
            await eventually(lambda: counts() == [1], 30, "twice within a minute makes one event")
            desk.apply(good)
            await eventually(lambda: is_ready(desk, "AtZero"), 60)
    with RunningOperator(desk.cluster.kubeconfig, desk.namespace, tmp_path, name="second"):
        desk.apply(bad)
        await eventually(lambda: desk.condition("Ready")[1] == "InvalidSpec", START_SECONDS)
        await eventually(lambda: counts() == [2], 30)
