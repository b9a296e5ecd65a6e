"""What the operator measures of itself and of its pools, for Prometheus.

A figure that is not known is not exported: a gauge that fell to zero would look like an empty queue.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from rrq.version import __version__
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.status import Condition

_POOL = ("namespace", "pool")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry, so that two operators in one test process do not share figures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        #: Calls to every Redis so far, also to those that are not used any more.
        self.redis_calls = 0
        #: Types and reasons of the conditions that are exported now, by pool.
        self._exported: dict[PoolKey, set[tuple[str, str]]] = {}
        self._gauges = {
            "due": self._gauge("due_jobs", "Jobs that are due and wait."),
            "held": self._gauge(
                "held_jobs", "Of those due, jobs that a pause or a limit keeps from starting."
            ),
            "orphaned": self._gauge("orphaned_jobs", "Jobs of workers whose lease has ended."),
            "scheduled": self._gauge("scheduled_jobs", "Jobs that become due later."),
            "oldest": self._gauge(
                "oldest_due_age_seconds", "How long the oldest due job that may start has been due."
            ),
            "busy": self._gauge("busy_jobs", "Jobs that run in the pods of the pool."),
            "desired": self._gauge("desired_replicas", "Replicas that the pool should have."),
            "ready": self._gauge("ready_replicas", "Replicas that are ready."),
        }
        self._conditions = Gauge(
            "rrq_operator_condition",
            "Conditions of a pool, by type and reason: 1 true, 0 false.",
            (*_POOL, "type", "reason"),
            registry=self.registry,
        )
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
            "Jobs of dead workers given back, by cause: container (it was reported dead) or lease (it has ended).",
            ("cause",),
            registry=self.registry,
        )
        # From zero on: no increase is seen in a series that begins with its first event.
        for cause in ("container", "lease"):
            self.returned_jobs.labels(cause)
        self.is_leader = Gauge("rrq_operator_is_leader", "1 while this replica acts.", registry=self.registry)
        self.pools = Gauge("rrq_operator_pools", "Pools that are looked after.", registry=self.registry)
        build = Gauge(
            "rrq_operator_build_info",
            "The version of the operator, as a label; always 1.",
            ("version",),
            registry=self.registry,
        )
        build.labels(__version__).set(1)

    def count_calls(self, read_api_calls: Callable[[], int], read_redis_calls: Callable[[], int]) -> None:
        """Export how often the operator has called others: it should not depend on the number of idle pools."""
        self.registry.register(_Calls(read_api_calls, read_redis_calls))

    def set_pool(self, key: PoolKey, figures: dict[str, float | None]) -> None:
        """Export the figures of a pool; those that are None are taken away."""
        for name, gauge in self._gauges.items():
            value = figures.get(name)
            if value is None:
                self._drop(gauge, key)
            else:
                gauge.labels(*key).set(value)

    def set_conditions(self, key: PoolKey, conditions: Sequence[Condition]) -> None:
        """Export the conditions of a pool as they are now, and none of those before; one unknown is left out."""
        known = [condition for condition in conditions if condition.status is not None]
        reasons = {(condition.type, condition.reason) for condition in known}
        for kind, reason in self._exported.pop(key, set()) - reasons:
            self._conditions.remove(*key, kind, reason)
        for condition in known:
            self._conditions.labels(*key, condition.type, condition.reason).set(bool(condition.status))
        self._exported[key] = reasons

    def drop_pool(self, key: PoolKey) -> None:
        """Export nothing of a pool any more."""
        for gauge in self._gauges.values():
            self._drop(gauge, key)
        of_pool = dict(zip(_POOL, key, strict=True))
        self.decisions.remove_by_labels(of_pool)
        self._conditions.remove_by_labels(of_pool)
        self._exported.pop(key, None)

    def drop_pools(self) -> None:
        """Export nothing of any pool any more: another operator does from now on."""
        for series in (*self._gauges.values(), self.decisions, self._conditions):
            series.clear()
        self._exported.clear()
        self.pools.set(0)

    def expose(self) -> bytes:
        return generate_latest(self.registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(f"rrq_operator_{name}", words, _POOL, registry=self.registry)

    @staticmethod
    def _drop(gauge: Gauge, key: PoolKey) -> None:
        # Absent where it was not known before either.
        with contextlib.suppress(KeyError):
            gauge.remove(*key)


class _Calls(Collector):
    def __init__(self, read_api_calls: Callable[[], int], read_redis_calls: Callable[[], int]) -> None:
        self._read = {"api": ("the Kubernetes API", read_api_calls), "redis": ("any Redis", read_redis_calls)}

    def collect(self) -> Iterator[Metric]:
        for name, (called, read) in self._read.items():
            yield CounterMetricFamily(f"rrq_operator_{name}_calls", f"Calls to {called}.", value=read())
