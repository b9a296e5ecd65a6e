"""Builds docs/reference/metrics.md from the metrics that workers and operator serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from operator_series import read_operator_series
from reference_text import Undescribed, code, render_page, render_table, words
from rrq.broker.messages import Observation, QueueObservation
from rrq.pod.exposition import ChildFigures, PodCollector, PodFigures
from rrq.runtime.metrics import METRICS, Meter
from rrq_operator.control.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

OPENING = """
All metrics on `/metrics`, in the format of Prometheus. [Monitoring](../monitoring.md) has queries and alerts. A histogram has
the series `_bucket`, `_count` and `_sum`. RRQ does not export an unknown value, because a zero would look like an empty queue.
"""

WORKERS = """
## Workers

`rrq worker run --http HOST:PORT` serves them, once for all processes of a pod. The values of the labels do not grow with the
number of jobs.
"""

OPERATOR = """
## Operator

`rrq-operator run --http HOST:PORT` serves them. Only the leader exports the metrics of pools.
"""

_HEADINGS = ("metric", "type", "labels", "what it is")
_REMEDY = "Say what it counts where it is made."


def render() -> str:
    return render_page(
        "Metrics",
        "worker/rrq/runtime/metrics.py, worker/rrq/pod/exposition.py and operator/rrq_operator/control/metrics.py",
        OPENING,
        WORKERS,
        render_table(_HEADINGS, list_worker_metrics()),
        OPERATOR,
        render_table(_HEADINGS, list_operator_metrics()),
    )


def list_worker_metrics() -> Iterator[tuple[str, ...]]:
    """Yield name, type, labels and words of what a pod with work serves, each as a cell of the table."""
    child = ChildFigures(0, True, 1, 10, 1, 1.0, 1, 1, 1)
    seen = Observation(0, {"default": QueueObservation(1, 0, 0, 1.0, None)})
    figures = PodFigures([child], True, seen)
    labels = {name: metric.labels for name, metric in METRICS.items()}
    yield from list_metrics(PodCollector(Meter(), lambda: figures).collect(), labels)


def list_operator_metrics() -> Iterator[tuple[str, ...]]:
    """Yield the same of an operator that has something to say about everything."""
    metrics = Metrics()
    metrics.count_api_calls(lambda: 0)
    series = read_operator_series()
    labels = {
        name: tuple(values)
        for family in metrics.registry.collect()
        for name, values in ((served_name(family), series.get(served_name(family))),)
        if values is not None
    }
    yield from list_metrics(metrics.registry.collect(), labels)


def list_metrics(
    families: Iterable[Metric], labels: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each family; labels that are not given are those of its first sample."""
    for family in families:
        name = served_name(family)
        told = words(family.documentation, f"Metric {name}", _REMEDY)
        if name in labels:
            names = labels[name]
        elif family.samples:
            names = tuple(label for label in family.samples[0].labels if label != "le")
        else:
            raise Undescribed(
                f"Metric {name} has no series, so its labels are not known. Have tools/docs/operator_series.py "
                "give it a value."
            )
        yield code(name), family.type, ", ".join(map(code, names)), told


def served_name(family: Metric) -> str:
    """Return the name that queries use; a family of counters lacks the end of it."""
    return f"{family.name}_total" if family.type == "counter" else family.name
