"""Counting, adding up, and the text that a scraper gets."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from rrq.broker.messages import Observation, QueueObservation
from rrq.pod.exposition import ChildFigures, PodCollector, PodFigures
from rrq.runtime.metrics import METRICS, Meter


def test_taken_figures_pass_through_json_and_add_up() -> None:
    one, other, total = Meter(), Meter(), Meter()
    for meter in (one, other):
        meter.count("rrq_jobs_total", "greet", "done", by=3)
        meter.observe(0.02, "rrq_job_duration_seconds", "greet")
        meter.observe(9_999.0, "rrq_job_duration_seconds", "greet")
        total.add(json.loads(json.dumps(meter.take())))
    assert total.counts == {("rrq_jobs_total", "greet", "done"): 6}
    series = total.series["rrq_job_duration_seconds", "greet"]
    assert sum(series[:-1]) == 4
    assert series[-2] == 2  # beyond the last bound
    assert series[-1] == 2 * (0.02 + 9_999.0)
    assert one.take() == {"counts": [], "series": []}


def test_calls_to_redis_are_counted_by_result() -> None:
    meter = Meter()
    meter.on_redis_call("claim_jobs", 0.002, None)
    meter.on_redis_call("claim_jobs", 5.0, TimeoutError("late"))
    assert meter.counts == {("rrq_redis_errors_total", "claim_jobs", "TimeoutError"): 1}
    assert meter.series["rrq_redis_call_seconds", "claim_jobs"][-1] == 0.002


def make_figures(*, is_redis_up: bool = True) -> PodFigures:
    seen = Observation(0, {"emails": QueueObservation(4, 1, 2, 7.5, None, orphaned=2)})
    return PodFigures(
        [
            ChildFigures(0, True, 3, 10, 99, 1.5, 50_000_000, 16),
            ChildFigures(1, False, 0, 0, 0, None, None, None),
        ],
        is_redis_up,
        seen if is_redis_up else None,
    )


def test_the_text_can_be_read_by_prometheus_and_names_every_metric() -> None:
    meter = Meter()
    meter.count("rrq_jobs_total", "greet", "done", by=2)
    meter.observe(0.003, "rrq_job_duration_seconds", "greet")
    content_type, text = PodCollector(meter, make_figures).expose("")
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert {name.removesuffix("_total") for name in METRICS} <= families.keys()
    [jobs] = families["rrq_jobs"].samples
    assert (jobs.labels, jobs.value) == ({"function": "greet", "outcome": "done"}, 2)
    buckets = {
        s.labels["le"]: s.value for s in families["rrq_job_duration_seconds"].samples if "le" in s.labels
    }
    assert (buckets["0.0025"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)
    due = {s.labels["state"]: s.value for s in families["rrq_queue_jobs"].samples}
    assert due == {"due": 4, "scheduled": 3, "orphaned": 2}
    assert families["rrq_queue_oldest_due_age_seconds"].samples[0].value == 7.5
    assert families["rrq_jobs_in_flight"].samples[0].value == 3
    assert families["rrq_capacity_jobs"].samples[0].value == 10
    # What the kernel would not tell is left out rather than zero.
    assert [s.labels["child"] for s in families["rrq_child_resident_memory_bytes"].samples] == ["0"]


def test_a_client_that_asks_for_openmetrics_gets_it() -> None:
    content_type, text = PodCollector(Meter(), make_figures).expose(
        "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_an_unreadable_redis_drops_the_gauges_of_queues() -> None:
    _, text = PodCollector(Meter(), lambda: make_figures(is_redis_up=False)).expose("")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families["rrq_queue_jobs"].samples == []
    assert families["rrq_redis_up"].samples[0].value == 0
