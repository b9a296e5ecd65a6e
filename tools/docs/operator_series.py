"""What the operator serves on /metrics, for pools in the states that alerts are about.

Its controllers decide on a cluster that is written down here, so that every condition and reason is one that they really
give. What they count while they act is counted by hand: that takes an API server, and labels are all that is asked for.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from rrq.broker.messages import Observation, QueueObservation
from rrq_operator.api.spec import API_VERSION, KIND
from rrq_operator.cluster.cluster_cache import ClusterCache, parse_record
from rrq_operator.control.burst_pool import BurstPool
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.pool_group import Round
from rrq_operator.control.replica_pool import ReplicaPool
from rrq_operator.control.services import Services
from rrq_operator.decide.manifests import POOL_LABEL, RUN_LABEL
from rrq_operator.decide.objects import format_time, parse_job, parse_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

#: Values of each label of each series, by the name of the series.
Series = dict[str, dict[str, set[str]]]

NAMESPACE = "shop"
NEVER_SOON = "0 0 1 1 *"


def read_operator_series() -> Series:
    """Return every series of an operator that has something to say about everything."""
    cluster_cache, metrics = ClusterCache(), Metrics()
    nobody: Any = None
    services = Services(nobody, cluster_cache, metrics)
    cluster_cache.set_pod(None, parse_pod(_crashing_pod("emails")))
    _look(ReplicaPool, services, _pool("emails", scaling={"maxReplicas": 1}))
    cluster_cache.set_job(None, parse_job(_failed_run("imports")))
    _look(BurstPool, services, _pool("imports", type="Job", job={"start": "WhenDue"}))
    schedule = {"start": "OnSchedule", "schedule": NEVER_SOON}
    _look(BurstPool, services, _pool("nightly", type="Job", job=schedule))
    metrics.count_api_calls(lambda: 1)
    metrics.redis_calls.inc()
    metrics.decisions.labels(NAMESPACE, "emails", "Backlog").inc()
    metrics.redis_errors.labels("Unreachable").inc()
    metrics.api_errors.labels("Forbidden").inc()
    metrics.reaction_seconds.observe(0.1)
    metrics.tick_seconds.observe(0.1)
    return read_series(text_string_to_metric_families(metrics.expose().decode()))


def read_series(families: Iterable[Metric]) -> Series:
    """Return what is really served; a family without a sample is not."""
    series: Series = {}
    for family in families:
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return series


def _pool(name: str, **spec: Any) -> dict[str, Any]:
    whole = {
        "queues": ["default"],
        "redis": {"url": "redis://127.0.0.1:1/0"},
        "worker": {"image": "example.com/shop:1", "settings": "shop.jobs.settings", "concurrency": 10},
        **spec,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": whole}


def _look(kind: type[ReplicaPool | BurstPool], services: Services, manifest: dict[str, Any]) -> None:
    manifest["metadata"] |= _metadata(manifest["metadata"]["name"])
    record = parse_record(manifest)
    assert record.pool is not None, record.fault
    controller = kind(record, services)
    controller.queue_names = ("default",)
    queues = {"default": QueueObservation(500, 1, 1, 60.0, None)}
    controller.decide(Round(record.pool, Observation(1_000, queues)))


def _metadata(pool: str) -> dict[str, Any]:
    return {
        "name": pool,
        "namespace": NAMESPACE,
        "uid": f"uid of {pool}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": format_time(time()),
    }


def _crashing_pod(pool: str) -> dict[str, Any]:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    return {
        "metadata": _metadata(pool) | {"labels": {POOL_LABEL: pool}},
        "status": {"containerStatuses": [{"name": "worker", "state": {"waiting": waiting}}]},
    }


def _failed_run(pool: str) -> dict[str, Any]:
    now = format_time(time())
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": now, "message": "it has failed"}
    return {
        "metadata": _metadata(f"{pool}-1")
        | {
            "labels": {POOL_LABEL: pool, RUN_LABEL: "1"},
            "ownerReferences": [{"uid": f"uid of {pool}", "kind": "RRQWorkerPool", "controller": True}],
        },
        "spec": {},
        "status": {"conditions": [failed]},
    }
