"""Nothing is exported of pools that are gone, or that another operator looks after, nor of what is over."""

from datetime import UTC, datetime

import pytest

from rrq.broker.messages import Observation, QueueObservation
from rrq_operator.api.pool_status import Condition, PoolStatus
from rrq_operator.control.metrics import Metrics, PoolReading

THEN = datetime(2026, 1, 2, tzinfo=UTC)


def condition(kind: str, status: str, reason: str) -> Condition:
    return Condition.model_validate(
        {"type": kind, "status": status, "reason": reason, "message": "words", "lastTransitionTime": THEN}
    )


def build_metrics() -> Metrics:
    metrics = Metrics()
    for name in ("gone", "here"):
        key = ("test", name)
        conditions = [condition("Ready", "True", "AsDesired"), condition("Draining", "Unknown", "NotYet")]
        metrics.readings[key] = PoolReading(PoolStatus(due=1, conditions=conditions), None)
        metrics.decisions.labels(*key, "Backlog").inc()
    return metrics


def conditions_of(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["pool"], sample.labels["type"], sample.labels["reason"]): sample.value
        for family in metrics.registry.collect()
        if family.name == "rrq_operator_condition"
        for sample in family.samples
    }


def test_a_pool_that_goes_takes_all_its_series_along() -> None:
    metrics = build_metrics()
    metrics.drop_pool(("test", "gone"))
    metrics.drop_pool(("test", "never there"))
    text = metrics.expose().decode()
    assert 'pool="gone"' not in text
    assert text.count('pool="here"') == 4


def test_the_end_of_a_term_takes_the_series_of_all_pools_along() -> None:
    metrics = build_metrics()
    metrics.drop_pools()
    assert "pool=" not in metrics.expose().decode()


def test_a_condition_has_the_reason_of_now_and_no_other() -> None:
    metrics = build_metrics()
    conditions = [
        condition("Ready", "False", "CrashLoopBackOff"),
        condition("ScalingLimited", "True", "AtMaximum"),
    ]
    metrics.readings["test", "gone"] = PoolReading(PoolStatus(conditions=conditions), None)
    assert conditions_of(metrics) == {
        ("gone", "Ready", "CrashLoopBackOff"): 0,
        ("gone", "ScalingLimited", "AtMaximum"): 1,
        ("here", "Ready", "AsDesired"): 1,
    }


@pytest.mark.parametrize(
    ("blocked", "status", "age"),
    [
        ({"a": 0, "b": 0}, {"due": 5, "blocked": 0}, 90.0),
        ({"a": 0, "b": 3}, {"due": 5, "blocked": 3}, 20.0),
        ({"a": 0, "b": 0}, {"due": 5, "blocked": 5}, 0.0),
    ],
    ids=["nothing is blocked", "the oldest is blocked", "the pool is paused"],
)
def test_blocked_jobs_do_not_count_as_behind(
    blocked: dict[str, int], status: dict[str, int], age: float
) -> None:
    queues = {
        "a": QueueObservation(2, 0, 0, 20.0, None, blocked["a"]),
        "b": QueueObservation(3, 0, 0, 90.0, None, blocked["b"]),
    }
    metrics = Metrics()
    metrics.readings["shop", "emails"] = PoolReading(
        PoolStatus.model_validate(status), Observation(0, queues)
    )
    figures = metrics.expose().decode()
    assert f'rrq_operator_oldest_due_age_seconds{{namespace="shop",pool="emails"}} {age}' in figures
    assert f'rrq_operator_blocked_jobs{{namespace="shop",pool="emails"}} {status["blocked"]}.0' in figures


def test_each_figure_of_the_status_is_a_metric() -> None:
    status = PoolStatus(
        due=5, blocked=1, orphaned=2, due_soon=3, later=4, busy=6, desired_replicas=7, ready_replicas=8
    )
    metrics = Metrics()
    metrics.readings["shop", "emails"] = PoolReading(status, Observation(0, {}))
    lines = [line for line in metrics.expose().decode().splitlines() if 'pool="emails"' in line]
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    figures = {
        "due_jobs": 5, "blocked_jobs": 1, "orphaned_jobs": 2, "scheduled_jobs": 7, "busy_jobs": 6,
        "desired_replicas": 7, "ready_replicas": 8,
    }  # fmt: skip
    assert found == {f"rrq_operator_{name}": value for name, value in figures.items()}
