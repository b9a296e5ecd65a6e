"""A pool and its Redis from values alone: one `helm install` into a cluster that has never heard of pools."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from cluster_choice import name_image
from pools import PoolDesk
from port_forward import PortForward
from rrq.client import RRQClient
from story import SMALL, Story
from story_redis import StoryRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from control_plane import Cluster
    from object_reader import ObjectReader


REDIS = "rrq-redis"
POOL = "emails"


@pytest.fixture
def system(
    cluster: Cluster,
    object_reader: ObjectReader,
    without_definition: None,
    operator_namespace: str,
    tell: Callable[[str], None],
) -> Iterator[PoolDesk]:
    """The namespace of the operator in a cluster without release and definition; left without a pool."""
    desk = PoolDesk(cluster, operator_namespace, object_reader)
    yield desk
    tell(operator_namespace)
    desk.kubectl("delete", "rrqpool", "--all", "--timeout=60s")


async def test_pools_and_redis_of_the_values_work_together(
    system: PoolDesk, install: Callable[..., None]
) -> None:
    install(**build_values())
    password = read_password(system)
    assert len(password) == 32, "made by the chart"
    async with PortForward(system, REDIS, 6379) as way:
        redis = StoryRedis(system, way, password)
        client = RRQClient(redis.settings)
        story = Story(system, redis, client)
        ids = await story.enqueue(8, queue=POOL, seconds=0.2)
        await story.wait_until_finished(90)
        (await story.read_ledger()).assert_each_once(ids)
        await story.wait_for_pods(0, POOL)
        redis_uid = uid(system, f"{REDIS}-0")

        # An upgrade with other values: password, Redis and its data stay, and the pool learns its new size.
        install(**build_values(max_replicas=2))
        assert read_password(system) == password
        assert uid(system, f"{REDIS}-0") == redis_uid
        more = await story.enqueue(8, queue=POOL, seconds=0.2)
        await story.wait_until_finished(90, more)
        (await story.read_ledger()).assert_each_once(ids + more)
        assert system.get("rrqpool", POOL)["spec"]["scaling"]["maxReplicas"] == 2
        await client.close()

    # Taken out of the values, the pool stays.
    install(**build_values() | {"pools": {}})
    assert system.get("rrqpool", POOL)


def build_values(max_replicas: int = 1) -> dict[str, Any]:
    repository, _, tag = name_image("rrq-redis:test").rpartition(":")
    worker = {
        "image": name_image("rrq-e2e:test"),
        "settings": "stories.settings",
        "concurrency": 4,
        "resources": SMALL,
    }
    scaling = {"maxReplicas": max_replicas, "scaleDown": {"windowSeconds": 2}}
    return {
        "redis": {"enabled": True, "image": {"repository": repository, "tag": tag}},
        "pools": {POOL: {"queues": [POOL], "worker": worker, "scaling": scaling}},
    }


def read_password(desk: PoolDesk) -> str:
    return b64decode(desk.get("secret", REDIS)["data"]["password"]).decode()


def uid(desk: PoolDesk, pod: str) -> str:
    return str(desk.get("pod", pod)["metadata"]["uid"])
