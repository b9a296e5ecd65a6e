"""What is counted, and a place to count it that costs a job next to nothing.

A worker process only adds to plain dictionaries; what has gathered travels to the supervisor once a second
and is added up there (``pod/exposition.py`` turns the sums into Prometheus text). No label may take a value
that grows with jobs: functions are those of the registry, queues those the worker serves.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["METRICS", "UNREGISTERED", "Meter", "Metric"]

#: Stands for every function that no handler is registered for; their names come from outside.
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
        "Attempts that ended, by outcome: done, retry, dead, cancelled, back (handed back), unknown_function (put off, "
        "because the worker has no handler for it), fenced.",
        ("function", "outcome"),
    ),
    "rrq_job_duration_seconds": Metric("Time a handler took.", ("function",), _DURATIONS),
    "rrq_job_retries_total": Metric("Attempts that failed and will be tried again.", ("function",)),
    "rrq_queue_wait_seconds": Metric("Time from when a job was due to its start.", ("queue",), _DURATIONS),
    "rrq_claims_total": Metric("Claims, by result: jobs, empty, refused, failed.", ("result",)),
    "rrq_claim_size_jobs": Metric("Jobs that one answered claim brought.", (), _SIZES),
    "rrq_lost_races_total": Metric("Wake-ups after which another worker had already taken the job."),
    "rrq_fenced_results_total": Metric("Results refused because the job had been given to another attempt."),
    "rrq_reaped_jobs_total": Metric(
        "Jobs of dead workers made due again by this pod: lease (it ran out) or death (proven).", ("cause",)
    ),
    "rrq_buried_jobs_total": Metric(
        "Jobs of dead workers that this pod sent to the dead letter queue: they ended too many processes, or lost "
        "too many workers."
    ),
    "rrq_loop_lag_seconds": Metric("How late the event loop of a worker process turns.", (), _LATENCIES),
    "rrq_redis_call_seconds": Metric("Time one script took, as the caller saw it.", ("call",), _LATENCIES),
    "rrq_redis_errors_total": Metric("Calls to Redis that failed.", ("call", "error")),
    "rrq_child_crashes_total": Metric(
        "Worker processes that died unasked, by signal or exit code.", ("how",)
    ),
    "rrq_child_restarts_total": Metric(
        "Worker processes started to replace one, by reason: crash, hung, recycled, reload, ended.",
        ("reason",),
    ),
}

#: Name and label values.
_Key = tuple[str, ...]


class Meter:
    """Counts and histograms, gathered here and taken away in one go."""

    def __init__(self) -> None:
        self.counts: dict[_Key, float] = {}
        #: Per histogram: one number per bound, one for what is beyond, and the sum of all values.
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
        """Take note of one call; fits ``PipelinedConnection.on_call``."""
        if error is None:
            self.observe(seconds, "rrq_redis_call_seconds", call)
        else:
            self.count("rrq_redis_errors_total", call, type(error).__name__)

    def take(self) -> dict[str, Any]:
        """Return what has gathered, as plain lists for JSON, and start from nothing."""
        taken = {
            "counts": [[*key, value] for key, value in self.counts.items()],
            "series": [[list(key), values] for key, values in self.series.items()],
        }
        self.counts, self.series = {}, {}
        return taken

    def add(self, taken: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Add what another meter gathered."""
        for *key, value in taken["counts"]:
            self.count(*key, by=value)
        for key, values in taken["series"]:
            series = self.series.setdefault(tuple(key), [0.0] * len(values))
            for position, value in enumerate(values):
                series[position] += value
