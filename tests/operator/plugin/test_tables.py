"""What `kubectl rrq` prints and advises, without a cluster or a Redis."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from pools import build_pool
from rrq_operator.plugin.cli import rrq
from rrq_operator.plugin.pool_redis import add_credentials, build_forward_advice
from rrq_operator.plugin.pools import SeenPool, parse_seen_pool
from rrq_operator.plugin.tables import (
    PoolFigures,
    QueueFigures,
    add_up,
    build_line,
    build_queue_table,
    build_top_table,
    describe_sources,
    top_json,
)

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


def seen(name: str = "emails", *, status: dict[str, Any] | None = None, **spec: Any) -> SeenPool:
    body = build_pool(name, **spec)
    body["metadata"]["namespace"] = "shop"
    return parse_seen_pool(body | {"status": status or {}})


def row_of(pool: SeenPool, figures: PoolFigures) -> dict[str, str]:
    table = build_top_table([build_line(pool, figures, NOW)], with_namespace=False)
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_a_pool_is_shown_with_the_sum_of_its_queues_and_the_oldest_wait() -> None:
    pool = seen(queues=["mail", "bulk"], status={"due": 1, "readyReplicas": 2, "desiredReplicas": 5})
    figures = PoolFigures({"mail": QueueFigures(3, 1, 0, 61.0, 2), "bulk": QueueFigures(4, 0, 9, None, 1)})
    row = row_of(pool, figures)
    assert (row["Queues"], row["Due"], row["Oldest"], row["Busy"]) == ("mail,bulk", "7", "1m 01s", "3")
    assert row["Ready"] == "2/5"
    assert (row["Reason"], row["Decision"]) == ("-", "-")


def test_figures_of_the_status_are_marked() -> None:
    pool = seen(status={"due": 7, "busy": 0, "oldestDueTime": "2030-01-01T11:59:30Z", "reason": "Backlog"})
    figures = PoolFigures({}, "Redis is away.")
    row = row_of(pool, figures)
    assert (row["Due"], row["Oldest"], row["Busy"], row["Reason"]) == ("7*", "30.0s*", "0*", "Backlog")
    assert top_json(build_line(pool, figures, NOW))["source"] == "status"


def test_an_unknown_number_is_a_dash_and_not_zero() -> None:
    row = row_of(seen(), PoolFigures({}, "Redis is away."))
    assert [row[name] for name in ("Due", "Oldest", "Busy", "Ready")] == ["-", "-", "-", "-/-"]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    total = add_up([QueueFigures(3, 0, 0, 5.0, 1), QueueFigures(busy=2)])
    assert total == QueueFigures(None, None, None, 5.0, 3)


def test_the_same_trouble_is_noted_once() -> None:
    away = PoolFigures({}, "Redis is away.")
    assert len(describe_sources([away, away, PoolFigures({"mail": QueueFigures(0, 0, 0, None, 0)})])) == 1


def test_pools_of_several_namespaces_are_shown_with_their_namespace() -> None:
    pool = seen()
    table = build_queue_table([(pool, "default", QueueFigures(1, 0, 0, 2.0, 0, 3))], with_namespace=True)
    assert table.rows == [("default", "shop/emails", "1", "0", "0", "2.0s", "0", "3")]


def test_a_pool_that_this_version_cannot_read_is_still_listed() -> None:
    body = build_pool("emails", fromTheFuture=True)
    body["metadata"]["namespace"] = "shop"
    pool = parse_seen_pool(body)
    assert pool.pool is None
    assert "fromTheFuture" in pool.fault
    assert row_of(pool, PoolFigures({}, pool.fault))["Reason"] == "InvalidSpec"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        (
            "redis://rrq-redis:6379/0",
            "shop svc/rrq-redis 6379` and pass --redis-url redis://127.0.0.1:6379/0",
        ),
        (
            "redis://:secret@redis.data:6380/2",
            "data svc/redis 6380` and pass --redis-url redis://127.0.0.1:6380/2",
        ),
        (
            "rediss://redis.data.svc.a.b",
            "data svc/redis 6379` and pass --redis-url rediss://127.0.0.1:6379/0",
        ),
        ("redis://10.0.0.7:6379/0", "Run this where Redis can be reached"),
        ("redis://cache.example.com/0", "Run this where Redis can be reached"),
        ("redis+sentinel://one:26379,two:26379/main/0", "Run this where Redis can be reached"),
        ("unix:///run/redis.sock", "Run this where Redis can be reached"),
    ],
)
def test_the_advice_on_reaching_redis_depends_on_its_host(url: str, advice: str) -> None:
    told = build_forward_advice(url, "shop")
    assert advice in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("given", "own", "used"),
    [
        ("redis://127.0.0.1:6379/0", "redis://u:p%40w@redis/0", "redis://u:p%40w@127.0.0.1:6379/0"),
        ("redis://me:mine@127.0.0.1:6379/0", "redis://u:p@redis/0", "redis://me:mine@127.0.0.1:6379/0"),
        ("redis://127.0.0.1:6379/1", "redis://redis/0", "redis://127.0.0.1:6379/1"),
        ("unix:///run/redis.sock", "redis://u:p@redis/0", "unix:///run/redis.sock"),
        ("redis://127.0.0.1:no", "redis://u:p@redis/0", "redis://127.0.0.1:no"),
    ],
)
def test_a_given_url_gets_the_password_of_the_pool_unless_it_has_one(given: str, own: str, used: str) -> None:
    assert add_credentials(given, own) == used


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("pause emails --queue mail --function send", "choose one"),
        ("resume emails --workers --queue mail", "choose one"),
        ("pause emails", "To keep the size of the pool, type `kubectl rrq freeze emails`."),
        ("pause emails -n shop --reason why", "type `kubectl rrq freeze -n shop emails`."),
        ("resume emails", "type `kubectl rrq unfreeze emails`."),
        ("pause emails", "Choose what to pause: --workers, --queue NAME or --function NAME."),
        ("limit emails set --concurrency 5", "set and remove need --queue or --function"),
        ("limit emails --queue mail", "list has no target"),
        ("limit emails remove --queue mail --rate 3", "The options of a limit are for set."),
        ("limit emails set --queue mail --rate 3 --json", "--json is for list."),
        ("limit emails set --workers --rate 3", "No such option"),
        ("disable emails", "Missing option '--function'"),
        ("enable emails", "Missing option '--function'"),
        ("cancel emails", "Missing option '--queue'"),
        ("audit emails --limit 0", "not in the range"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(words: str, complaint: str) -> None:
    result = CliRunner().invoke(rrq, words.split())
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr


def test_help_loads_no_kubernetes_client() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from rrq_operator.plugin.cli import rrq; "
        "result = CliRunner().invoke(rrq, ['--help']); assert 'Show pools' in result.output, result.output; "
        "print([name for name in ('kubernetes', 'kopf', 'redis', 'pydantic', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
