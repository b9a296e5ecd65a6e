"""Turns the metrics of a pod into Prometheus text, in the formats of prometheus-client."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from rrq.broker.messages import Observation
from rrq.runtime.metrics import METRICS, Meter
from rrq.version import __version__


@dataclass(frozen=True)
class ChildFigures:
    """One child by the kernel and its own reports; None where that could not be read."""

    place: int
    is_up: bool
    active_jobs: int
    capacity: int
    finished_jobs: int
    cpu_seconds: float | None
    rss_bytes: int | None
    descriptors: int | None
    tasks: int | None = None


@dataclass(frozen=True)
class PodFigures:
    """The current values of a pod; running totals are in the meter."""

    children: Sequence[ChildFigures]
    is_redis_up: bool
    seen: Observation | None
    """The queues, or None while they cannot be read: an unknown depth is not 0."""
    supervisor_tasks: int = 0


class PodCollector:
    """Builds the metric families of one scrape."""

    def __init__(self, meter: Meter, get_figures: Callable[[], PodFigures]) -> None:
        self._meter = meter
        self._get_figures = get_figures
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def expose(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text in the format that the scraper prefers."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._totals()
        figures = self._get_figures()
        yield from _queue_families(figures.seen)
        yield from _pod_families(figures)
        yield from _child_families(figures.children)

    def _totals(self) -> Iterator[Metric]:
        # Each copied in one step, because another thread counts.
        counts, series = dict(self._meter.counts), dict(self._meter.series)
        for name, metric in METRICS.items():
            if metric.bounds:
                histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for key, values in series.items():
                    if key[0] == name:
                        *buckets, total = list(values)
                        edges = [*map(_edge, metric.bounds), "+Inf"]
                        rising = list(zip(edges, accumulate(buckets), strict=True))
                        histogram.add_metric(key[1:], rising, sum_value=total)
                yield histogram
            else:
                counter = CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
                if not metric.labels:
                    counter.add_metric((), counts.get((name,), 0.0))
                for key, value in counts.items():
                    if key[0] == name and metric.labels:
                        counter.add_metric(key[1:], value)
                yield counter


def _edge(bound: float) -> str:
    return str(float(bound))


def _queue_families(seen: Observation | None) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "rrq_queue_jobs",
        "Jobs of a queue: due, scheduled, or orphaned (of workers whose lease has ended).",
        labels=("queue", "state"),
    )
    age = GaugeMetricFamily(
        "rrq_queue_oldest_due_age_seconds", "How long the oldest due job has waited.", labels=("queue",)
    )
    for name, queue in seen.queues.items() if seen is not None else ():
        jobs.add_metric((name, "due"), queue.due)
        jobs.add_metric((name, "scheduled"), queue.due_soon + queue.later)
        jobs.add_metric((name, "orphaned"), queue.orphaned)
        age.add_metric((name,), queue.oldest_due_age_seconds or 0.0)
    yield jobs
    yield age


def _pod_families(figures: PodFigures) -> Iterator[Metric]:
    up = [child for child in figures.children if child.is_up]
    yield _gauge("rrq_jobs_in_flight", "Jobs in progress.", sum(child.active_jobs for child in up))
    yield _gauge("rrq_capacity_jobs", "Jobs this pod can run at once.", sum(child.capacity for child in up))
    yield _gauge("rrq_redis_up", "Whether Redis answers this pod.", figures.is_redis_up)
    yield _gauge(
        "rrq_supervisor_tasks", "Tasks in the event loop of the supervisor.", figures.supervisor_tasks
    )
    build = GaugeMetricFamily("rrq_build_info", "The version of RRQ, as a label.", labels=("version",))
    build.add_metric((__version__,), 1)
    yield build


def _child_families(children: Sequence[ChildFigures]) -> Iterator[Metric]:
    # Labelled with the place, not the process id: a label must not get a new value with every restart.
    label = ("child",)
    up = GaugeMetricFamily("rrq_child_up", "Whether this worker process can claim.", labels=label)
    busy = GaugeMetricFamily("rrq_child_jobs_in_flight", "Jobs in progress in this process.", labels=label)
    done = GaugeMetricFamily(
        "rrq_child_finished_jobs", "Jobs this process has ended since it started.", labels=label
    )
    cpu = GaugeMetricFamily(
        "rrq_child_cpu_seconds", "Processor time this process has used since it started.", labels=label
    )
    rss = GaugeMetricFamily("rrq_child_resident_memory_bytes", "Memory of this process.", labels=label)
    files = GaugeMetricFamily("rrq_child_open_fds", "Descriptors open in this process.", labels=label)
    tasks = GaugeMetricFamily("rrq_child_tasks", "Tasks in the event loop of this process.", labels=label)
    for child in children:
        place = (str(child.place),)
        up.add_metric(place, child.is_up)
        busy.add_metric(place, child.active_jobs)
        done.add_metric(place, child.finished_jobs)
        for family, value in (
            (cpu, child.cpu_seconds),
            (rss, child.rss_bytes),
            (files, child.descriptors),
            (tasks, child.tasks),
        ):
            if value is not None:
                family.add_metric(place, value)
    yield from (up, busy, done, cpu, rss, files, tasks)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
