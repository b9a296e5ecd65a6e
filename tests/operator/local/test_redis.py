"""Local mode and its Redis: named, embedded, gone for a while."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from local_mode import PATIENCE_SECONDS, build_manifest
from rrq.client import RRQClient
from rrq.exc import RedisUnavailable
from rrq.settings import RRQSettings
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_mode import LocalMode
    from rrq.embedded import EmbeddedRedis

FROM_SECRET = {"urlFrom": {"secretKeyRef": {"name": "rrq-redis", "key": "url"}}}


async def test_sizes_stay_while_redis_is_away(
    run_local: Callable[..., LocalMode], make_redis: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    server = make_redis(appendonly=True)
    scaling = {"minReplicas": 2, "idleReplicas": 0, "scaleDown": {"windowSeconds": 2}}
    local_mode = run_local(build_manifest(scaling=scaling), dsn=server.dsn)
    producer = RRQClient(RRQSettings(redis_dsn=server.dsn, default_queue_name="jobs"))
    try:
        # In hand until Redis is back: without work they would go, sooner or later.
        gate = tmp_path / "gate"
        await producer.enqueue("wait_for_file", str(gate))
        await eventually(lambda: local_mode.ledger.count("started") == 1, PATIENCE_SECONDS)
        before = await local_mode.has_replicas(2)
        server.kill()
        await local_mode.says("Redis gives no answer, so sizes stay")
        await stays_true(
            lambda: local_mode.replicas() == before, 3, "the size changed while nothing was known"
        )
        server.start()
        await local_mode.says("Redis answers again")
        gate.touch()
        await producer.enqueue("note")
        await eventually(lambda: local_mode.ledger.count("effect") == 2, PATIENCE_SECONDS)
    finally:
        await producer.close()


async def test_a_redis_is_started_where_the_manifest_brings_none(
    run_local: Callable[..., LocalMode],
) -> None:
    local_mode = run_local(build_manifest(redis=FROM_SECRET), dsn=None)
    line = await local_mode.says("Redis: redis://127.0.0.1:")
    found = re.search(r"redis://\S+", line)
    assert found
    producer = RRQClient(RRQSettings(redis_dsn=found[0], default_queue_name="jobs"))
    try:
        await producer.enqueue("note")
        await eventually(lambda: local_mode.ledger.count("effect") == 1, PATIENCE_SECONDS)
        local_mode.signal(signal.SIGINT)
        assert local_mode.wait() == 0
        with pytest.raises(RedisUnavailable):
            await producer.enqueue("note")
    finally:
        await producer.close()


async def test_pools_of_one_file_are_sized_each_for_itself_and_a_variable_stands_in_for_the_secret(
    run_local: Callable[..., LocalMode], redis_dsn: str
) -> None:
    redis = {"url": redis_dsn, "keyPrefix": "other:"}
    local_mode = run_local(
        build_manifest("here", redis=FROM_SECRET),
        build_manifest("there", queues=["elsewhere"], redis=FROM_SECRET),
        build_manifest("apart", redis=redis),
        dsn=None,
        RRQ_REDIS_DSN=redis_dsn,
    )
    producer = RRQClient(RRQSettings(redis_dsn=redis_dsn, key_prefix="other:", default_queue_name="jobs"))
    try:
        await local_mode.says(f"Redis: {redis_dsn}")
        await producer.enqueue("note")
        await local_mode.says("apart: grows from 0 to 1")
        await eventually(lambda: local_mode.ledger.count("effect") == 1, PATIENCE_SECONDS)
        assert len(local_mode.replicas()) == 1
        assert "started here" not in local_mode.output()
    finally:
        await producer.close()
