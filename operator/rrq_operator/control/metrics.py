"""What the operator measures of itself and of its pools, for Prometheus.

A figure that is not known is not exported: a gauge that fell to zero would look like an empty queue.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rrq.broker.messages import Observation
from rrq.version import __version__
from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.decide.objects import PoolKey

_POOL = ("namespace", "pool")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class PoolReading(NamedTuple):
    """How a pool stood in its last round."""

    status: PoolStatus
    seen: Observation | None
    """None when its queues could not be read."""


class Metrics:
    """One registry, so that two operators in one test process do not share figures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        #: The pools to export. They are read when Prometheus asks, in another thread.
        self.readings: dict[PoolKey, PoolReading] = {}
        self.registry.register(_PoolFigures(self.readings))
        self.decisions = Counter(
            "rrq_operator_decisions_total",
            "Sizes that were asked for, by reason.",
            (*_POOL, "reason"),
            registry=self.registry,
        )
        self.reaction_seconds = Histogram(
            "rrq_operator_reaction_seconds",
            "From the news that a queue has changed to the acknowledged request for replicas.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tick_seconds = Histogram(
            "rrq_operator_tick_seconds",
            "One round for all pools of a Redis.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.redis_errors = Counter(
            "rrq_operator_redis_errors_total",
            "Rounds in which a Redis could not be read, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.api_errors = Counter(
            "rrq_operator_api_errors_total",
            "Writes that the Kubernetes API did not do, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.returned_jobs = Counter(
            "rrq_operator_returned_jobs_total",
            "Jobs of dead workers requeued, by cause: container (it was reported dead) or lease (it has ended).",
            ("cause",),
            registry=self.registry,
        )
        # From zero on: no increase is seen in a series that begins with its first event.
        for cause in ("container", "lease"):
            self.returned_jobs.labels(cause)
        self.redis_calls = Counter(
            "rrq_operator_redis_calls_total", "Calls to any Redis.", registry=self.registry
        )
        self.is_leader = Gauge("rrq_operator_is_leader", "1 while this replica acts.", registry=self.registry)
        self.pools = Gauge("rrq_operator_pools", "Pools that are looked after.", registry=self.registry)
        build = Gauge(
            "rrq_operator_build_info",
            "The version of the operator, as a label; always 1.",
            ("version",),
            registry=self.registry,
        )
        build.labels(__version__).set(1)

    def count_api_calls(self, read_calls: Callable[[], int]) -> None:
        """Export how often the operator has called the API server: it should not depend on the number of idle pools."""
        self.registry.register(_ApiCalls(read_calls))

    def drop_pool(self, key: PoolKey) -> None:
        """Export nothing of a pool any more."""
        self.readings.pop(key, None)
        self.decisions.remove_by_labels(dict(zip(_POOL, key, strict=True)))

    def drop_pools(self) -> None:
        """Export nothing of any pool any more: another operator does from now on."""
        self.readings.clear()
        self.decisions.clear()
        self.pools.set(0)

    def expose(self) -> bytes:
        return generate_latest(self.registry)


class _PoolFigures(Collector):
    def __init__(self, readings: dict[PoolKey, PoolReading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        readings = list(self._readings.items())  # the loop goes on changing them meanwhile
        for name, words, read in _FIGURES:
            family = GaugeMetricFamily(f"rrq_operator_{name}", words, labels=_POOL)
            for key, reading in readings:
                if (value := read(reading)) is not None:
                    family.add_metric(key, value)
            yield family
        conditions = GaugeMetricFamily(
            "rrq_operator_condition",
            "Conditions of a pool, by type and reason: 1 true, 0 false.",
            labels=(*_POOL, "type", "reason"),
        )
        for key, reading in readings:
            for entry in reading.status.conditions or ():
                if entry.status != "Unknown":
                    conditions.add_metric((*key, entry.type, entry.reason), float(entry.status == "True"))
        yield conditions


class _ApiCalls(Collector):
    def __init__(self, read_calls: Callable[[], int]) -> None:
        self._read_calls = read_calls

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "rrq_operator_api_calls", "Calls to the Kubernetes API.", value=self._read_calls()
        )


def _read_scheduled(reading: PoolReading) -> float | None:
    status = reading.status
    return None if status.later is None else status.later + (status.due_soon or 0)


def _read_oldest_age(reading: PoolReading) -> float | None:
    """Return how long the oldest due job waits that may start. Blocked jobs say nothing about whether the pool keeps up."""
    status, seen = reading
    if seen is None or not seen.queues:
        return None
    is_blocked = bool(status.due) and status.blocked == status.due
    return max(
        0.0 if is_blocked or queue.blocked >= queue.due else queue.oldest_due_age_seconds or 0.0
        for queue in seen.queues.values()
    )


_FIGURES: tuple[tuple[str, str, Callable[[PoolReading], float | None]], ...] = (
    ("due_jobs", "Jobs that are due and wait.", lambda reading: reading.status.due),
    (
        "blocked_jobs",
        "Of those due, jobs that a pause or a limit keeps from starting.",
        lambda reading: reading.status.blocked,
    ),
    ("orphaned_jobs", "Jobs of workers whose lease has ended.", lambda reading: reading.status.orphaned),
    ("scheduled_jobs", "Jobs that become due later.", _read_scheduled),
    (
        "oldest_due_age_seconds",
        "How long the oldest due job that may start has been due.",
        _read_oldest_age,
    ),
    ("busy_jobs", "Jobs that run in the pods of the pool.", lambda reading: reading.status.busy),
    (
        "desired_replicas",
        "Replicas that the pool should have.",
        lambda reading: reading.status.desired_replicas,
    ),
    ("ready_replicas", "Replicas that are ready.", lambda reading: reading.status.ready_replicas),
)
