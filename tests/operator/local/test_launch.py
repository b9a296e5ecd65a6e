"""How replicas are started and which Redis they get: pure."""

from __future__ import annotations

from typing import Any

import pytest

from local_mode import build_manifest
from rrq import RRQSettings
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import PoolSpec, parse_pool
from rrq_operator.local.launch import (
    build_command,
    build_environment,
    find_missing_variables,
)
from rrq_operator.local.redis_choice import RedisChoice, choose_redis

HERE = RedisIdentity("redis://here:6379/0", "shop:")
FROM_SECRET = {"urlFrom": {"secretKeyRef": {"name": "rrq-redis", "key": "url"}}}


def build_spec(**spec: Any) -> PoolSpec:
    return parse_pool(build_manifest(**spec)).spec


def options_of(spec: PoolSpec) -> str:
    return " ".join(build_command(spec)[1:])


def test_a_replica_is_a_supervisor_with_the_queues_and_processes_of_the_pool() -> None:
    options = options_of(build_spec(queues=["mail", "slow"], worker={"processes": 2}))
    assert options.startswith("-m rrq worker run --settings pod_app.settings --queue mail --queue slow")
    assert "--num-workers 2" in options
    assert "--burst" not in options
    by_limit = {"processes": None, "resources": {"limits": {"cpu": "2500m"}}}
    assert "--num-workers 2" in options_of(build_spec(worker=by_limit))
    burst = options_of(build_spec(type="Job", job={"lingerSeconds": 7}))
    assert "--burst --burst-linger 7" in burst
    assert "--num-workers" not in burst


def test_the_pool_decides_over_manifest_and_shell() -> None:
    manifest = build_manifest(
        worker={
            "concurrency": 3,
            "drainSeconds": 8,
            "env": [
                {"name": "COLOUR", "value": "red"},
                {"name": "RRQ_REDIS_DSN", "value": "redis://elsewhere"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}},
            ],
        }
    )
    inherited = {"COLOUR": "blue", "HOME": "/home/ada", "RRQ_POOL": "that/of-this-shell"}
    environment = build_environment(parse_pool(manifest), HERE, "uid-1", "session-1", inherited)
    assert environment == {
        "HOME": "/home/ada",
        "COLOUR": "red",
        "RRQ_ENVIRONMENT_WINS": "1",
        "RRQ_POD_UID": "uid-1",
        "RRQ_POOL": "default/shop",
        "RRQ_REDIS_DSN": "redis://here:6379/0",
        "RRQ_KEY_PREFIX": "shop:",
        "RRQ_WORKER_CONCURRENCY": "3",
        "RRQ_WORKER_SHUTDOWN_GRACE_PERIOD_SECONDS": "8",
        "RRQ_LOCAL_SESSION": "session-1",
    }


def test_replicas_get_the_weights_of_their_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = build_manifest(queues=["high", "low"], queueWeights={"high": 6})
    environment = build_environment(parse_pool(manifest), HERE, "uid-1", "session-1", {})
    monkeypatch.setenv("RRQ_WORKER_QUEUE_WEIGHTS", environment["RRQ_WORKER_QUEUE_WEIGHTS"])
    assert RRQSettings().worker_queue_weights == {"high": 6.0}, "as a worker reads it"


def test_variables_that_only_a_cluster_sets_are_named() -> None:
    secret = {"secretKeyRef": {"name": "api", "key": "token"}}
    spec = build_spec(
        worker={
            "env": [{"name": "TOKEN", "valueFrom": secret}, {"name": "OTHER", "valueFrom": secret}],
            "envFrom": [{"configMapRef": {"name": "shop"}}],
        }
    )
    assert find_missing_variables(spec, {"OTHER": "set here"}) == ["TOKEN", "all of shop"]
    assert find_missing_variables(build_spec(), {}) == []


@pytest.mark.parametrize(
    ("redis", "option", "variable", "dsn"),
    [
        (None, None, None, None),
        (None, None, "redis://variable", None),
        (None, "redis://option", None, "redis://option"),
        ({"url": "redis://manifest"}, None, "redis://variable", "redis://manifest"),
        ({"url": "redis://manifest"}, "redis://option", None, "redis://option"),
        (FROM_SECRET, None, None, None),
        (FROM_SECRET, None, "redis://variable", "redis://variable"),
        (FROM_SECRET, "redis://option", "redis://variable", "redis://option"),
    ],
)
def test_which_redis_a_pool_gets(
    redis: dict[str, Any] | None, option: str | None, variable: str | None, dsn: str | None
) -> None:
    choice = choose_redis(build_spec(redis=redis), option, variable)
    assert choice.dsn == dsn
    assert bool(choice.reason) == (dsn is None)


def test_the_prefix_of_the_manifest_is_kept() -> None:
    redis = {"url": "redis://manifest", "keyPrefix": "shop:"}
    assert choose_redis(build_spec(redis=redis), None, None) == RedisChoice("redis://manifest", "shop:")
