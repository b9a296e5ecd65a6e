"""The metrics of workers, and a meter that counts them at almost no cost per job.

A worker process only adds to plain dictionaries. Once a second the sums go to the supervisor, which adds them up;
``pod/exposition.py`` turns them into Prometheus text. The number of label values must not grow with the jobs: functions
come from the registry, queues are those that the worker serves.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["METRICS", "UNREGISTERED", "Meter", "Metric"]

#: Label of all functions without a handler, whose names are unbounded.
UNREGISTERED: Final = "(unregistered)"

_DURATIONS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
)
_LATENCIES: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_SIZES: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Metric:
    """One metric as it is exported; with ``bounds`` it is a histogram, else a counter."""

    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


METRICS: Final[Mapping[str, Metric]] = {
    "rrq_jobs_total": Metric(
        "Attempts that ended, by outcome: done, retry, dead, cancelled, back (returned to the queue), unknown_function (put off, "
        "because the worker has no handler for it), fenced.",
        ("function", "outcome"),
    ),
    "rrq_job_duration_seconds": Metric("Time a handler took.", ("function",), _DURATIONS),
    "rrq_job_retries_total": Metric("Attempts that failed and will be retried.", ("function",)),
    "rrq_queue_wait_seconds": Metric("Time from when a job was due to its start.", ("queue",), _DURATIONS),
    "rrq_claims_total": Metric("Claims, by result: jobs, empty, refused, failed.", ("result",)),
    "rrq_claim_size_jobs": Metric("Jobs in one answered claim.", (), _SIZES),
    "rrq_lost_races_total": Metric("Wake-ups after which another worker had already taken the job."),
    "rrq_fenced_results_total": Metric("Results refused because the job had been given to another attempt."),
    "rrq_reaped_jobs_total": Metric(
        "Jobs of dead workers that this pod returned to their queues: lease (it expired) or death (certified).",
        ("cause",),
    ),
    "rrq_buried_jobs_total": Metric(
        "Jobs of dead workers that this pod dead-lettered: they killed too many processes, or lost too many workers."
    ),
    "rrq_loop_lag_seconds": Metric("Delay of the event loop of a worker process.", (), _LATENCIES),
    "rrq_redis_call_seconds": Metric("Time of one script, measured by its caller.", ("call",), _LATENCIES),
    "rrq_redis_errors_total": Metric("Calls to Redis that failed.", ("call", "error")),
    "rrq_child_crashes_total": Metric("Worker processes that crashed, by signal or exit code.", ("how",)),
    "rrq_child_restarts_total": Metric(
        "Worker processes started to replace one, by reason: crash, hung, recycled, reload, ended.",
        ("reason",),
    ),
}

#: Name and label values.
_Key = tuple[str, ...]


class Meter:
    """Counts and histograms since the last ``take``."""

    def __init__(self) -> None:
        self.counts: dict[_Key, float] = {}
        #: For each histogram: one number per bound, one for larger values, and the sum of all values.
        self.series: dict[_Key, list[float]] = {}

    def count(self, *key: str, by: float = 1) -> None:
        self.counts[key] = self.counts.get(key, 0) + by

    def observe(self, value: float, *key: str) -> None:
        bounds = METRICS[key[0]].bounds
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = [0.0] * (len(bounds) + 2)
        series[bisect_left(bounds, value)] += 1
        series[-1] += value

    def on_redis_call(self, call: str, seconds: float, error: BaseException | None) -> None:
        """Count one call; for the ``on_call`` of a connection."""
        if error is None:
            self.observe(seconds, "rrq_redis_call_seconds", call)
        else:
            self.count("rrq_redis_errors_total", call, type(error).__name__)

    def take(self) -> dict[str, Any]:
        """Return the sums as plain lists for JSON, and start again from zero."""
        taken = {
            "counts": [[*key, value] for key, value in self.counts.items()],
            "series": [[list(key), values] for key, values in self.series.items()],
        }
        self.counts, self.series = {}, {}
        return taken

    def add(self, taken: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Add what ``take`` of another meter returned."""
        for *key, value in taken["counts"]:
            self.count(*key, by=value)
        for key, values in taken["series"]:
            series = self.series.setdefault(tuple(key), [0.0] * len(values))
            for position, value in enumerate(values):
                series[position] += value
