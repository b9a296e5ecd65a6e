"""Metrics for Prometheus: kept in a registry until a scrape reads them.

No port is opened here: that is for the process, which may have other things to show on it.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from rrq.hooks import MetricsExporter
from rrq.runtime.installation import install_command
from rrq.settings import RRQSettings

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        f"Metrics for Prometheus need the package prometheus-client. Run: {install_command('worker')}",
        name="prometheus_client",
    ) from error

__all__ = ["PrometheusExporter"]

logger = logging.getLogger(__name__)

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)


class PrometheusExporter(MetricsExporter):
    """Keeps each metric from its first value on.

    The first value also settles kind and label names; one that comes with others is left out, and
    the log says so once.
    """

    def __init__(self, settings: RRQSettings) -> None:
        super().__init__(settings)
        #: Of its own, so that a worker in the process of an application keeps out of its way.
        self.registry = CollectorRegistry()
        self._metrics: dict[str, tuple[Any, frozenset[str]]] = {}
        self._refused: set[tuple[str, str]] = set()

    async def export_counter(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._record(name, lambda: self._find(Counter, name, labels).inc(value))

    async def export_gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._record(name, lambda: self._find(Gauge, name, labels).set(value))

    async def export_histogram(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._record(name, lambda: self._find(Histogram, name, labels).observe(value))

    def _record(self, name: str, record: Callable[[], None]) -> None:
        try:
            record()
        # A metric that is used wrongly is used so again and again: say it once.
        except (ValueError, TypeError) as error:
            refusal = (name, str(error))
            if refusal not in self._refused:
                self._refused.add(refusal)
                logger.error("metric refused", extra={"metric": name, "error": str(error)})

    def _find(self, kind: type[_Metric], name: str, labels: dict[str, str] | None) -> _Metric:
        labels = labels or {}
        known = self._metrics.get(name)
        if known is None:
            metric: Any = kind(name, _describe(name), sorted(labels), registry=self.registry)
            known = self._metrics[name] = (metric, frozenset(labels))
        metric, label_names = known
        if type(metric) is not kind:
            raise ValueError(
                f"Metric {name} is a {_word(type(metric))} already and cannot be a {_word(kind)} too. "
                "Give one of them another name."
            )
        if labels.keys() != label_names:
            raise ValueError(
                f"Metric {name} has the labels {sorted(label_names)}, and this value came with "
                f"{sorted(labels)}. Use the same labels for every value of a metric."
            )
        found: _Metric = metric.labels(**labels) if labels else metric
        return found


def _describe(name: str) -> str:
    # The format asks for a text, and a caller gives only the name.
    return name.replace("_", " ")


def _word(kind: type[Any]) -> str:
    return kind.__name__.lower()
