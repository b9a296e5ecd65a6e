"""What parse_pool makes of a manifest, and how it refuses one. The API server's half: integration/."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_manifests import BAD_MANIFESTS, GOOD_CHANGES, LEFT_OUT, change, cron, good_manifest
from rrq.cron import CronSchedule
from rrq_operator.api.schedules import JobRuns
from rrq_operator.api.spec import PoolSpec, Scaling, SpecError, parse_pool


def parse(**changes: Any) -> PoolSpec:
    """Parse the good manifest with fields of its spec changed; `__` stands for the dot."""
    return parse_pool(
        change(
            good_manifest(), {f"spec.{place.replace('__', '.')}": value for place, value in changes.items()}
        )
    ).spec


def refusal(manifest: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        parse_pool(manifest)
    return str(caught.value)


def test_the_smallest_pool_has_every_default() -> None:
    spec = parse()
    assert spec.type == "Deployment"
    assert spec.replicas == 0
    assert spec.sizing == Scaling()
    assert spec.runs == JobRuns()
    assert (spec.sizing.min_replicas, spec.sizing.max_replicas) == (0, 10)
    assert spec.sizing.scale_down.window_seconds == 60
    assert spec.worker.concurrency == 10
    assert spec.worker.drain_seconds == 30
    assert spec.redis is not None
    assert spec.redis.key_prefix == "rrq:"
    assert spec.disruption.max_unavailable == 1
    assert spec.cron == []


def test_a_pool_knows_where_it_is_from() -> None:
    metadata = {"name": "emails", "namespace": "shop", "uid": "1-2-3", "generation": 7}
    pool = parse_pool({**good_manifest(), "metadata": metadata})
    assert pool.key == ("shop", "emails")
    assert (pool.uid, pool.generation) == ("1-2-3", 7)
    assert parse_pool(good_manifest()).key == ("default", "emails")


def test_bad_manifests_are_refused_without_an_api_server() -> None:
    told = {bad.name: (bad.local, refusal(bad.build())) for bad in BAD_MANIFESTS if bad.local}
    assert {name: words for name, words in told.items() if words[0] not in words[1]} == {}


def test_good_manifests_are_taken_and_so_is_one_without_what_local_mode_brings() -> None:
    for changes in GOOD_CHANGES.values():
        parse_pool(change(good_manifest(), changes))
    for bad in BAD_MANIFESTS:
        if bad.local is None:
            parse_pool(bad.build())


def test_every_fault_is_named_with_its_place() -> None:
    message = refusal(
        change(
            good_manifest(),
            {
                "spec.queues": ["a b", "c"],
                "spec.worker.settings": LEFT_OUT,
                "spec.scaling.minReplicas": -1,
                "spec.cron": [cron(), cron(name="Weekly")],
                "spec.colour": "red",
            },
        )
    )
    assert message.startswith("RRQWorkerPool emails: ")
    for place in (
        "spec.queues[0]: ",
        "spec.worker.settings: ",
        "spec.scaling.minReplicas: ",
        "spec.cron[1].name: ",
        "spec.colour: ",
    ):
        assert place in message


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@redis", "htp://:hunter2@redis", "redis://redis?password=hunter2", "hunter2"]
)
def test_a_refusal_does_not_repeat_a_password(url: str) -> None:
    assert "hunter2" not in refusal(change(good_manifest(), {"spec.redis.url": url}))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "This is no rrq.dev/v1alpha1 RRQWorkerPool but None None. Write apiVersion: "),
        ({**good_manifest(), "kind": "Deployment"}, "but rrq.dev/v1alpha1 Deployment"),
        ({**good_manifest(), "metadata": None}, "metadata.name: "),
        ({**good_manifest(), "metadata": "emails"}, "metadata.name: "),
        ({**good_manifest(), "spec": None}, "spec.queues: is required"),
        ({**good_manifest(), "spec": []}, "spec.queues: is required"),
        ({**good_manifest(), "spec": "all"}, "spec: "),
    ],
)
def test_something_else_than_a_pool_is_refused(body: dict[str, Any], words: str) -> None:
    assert words in refusal(body)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("0 0 * * 5-1", "runs backwards"),
        ("30-10 * * * *", "runs backwards"),
        ("0 0 30 2 *", "never comes due"),
    ],
)
def test_a_schedule_that_only_looks_right_is_refused(schedule: str, words: str) -> None:
    assert words in refusal(change(good_manifest(), {"spec.cron": [cron(schedule=schedule)]}))
    burst = {"spec.type": "Job", "spec.job": {"start": "OnSchedule", "schedule": schedule}}
    assert words in refusal(change(good_manifest(), burst))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"spec.cron": [cron(timeZone="Local")]},
            "spec.cron[0].timeZone: There is no time zone 'Local'",
        ),
        ({"spec.worker.resources.limits": {"cpu": "2Gi"}}, "CPU quantity '2Gi' is not understood"),
        ({"spec.type": "Job", "spec.replicas": 2, "spec.scaling": {}}, "scaling is not for type: Job"),
    ],
    ids=[
        "a time zone that only the API server knows",
        "a CPU limit that is no number",
        "the second broken rule",
    ],
)
def test_what_the_api_server_might_take_is_refused_too(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(change(good_manifest(), changes))


def field(low: int, high: int, *names: str) -> st.SearchStrategy[str]:
    """A field of a schedule with values of that range, some of which cron does not know."""
    value = st.integers(low, high).map(str)
    if names:
        value |= st.sampled_from(names)
    base = st.just("*") | value | st.tuples(value, value).map("-".join)
    step = st.just("") | st.integers(0, 70).map("/{}".format)
    return st.lists(st.tuples(base, step).map("".join), min_size=1, max_size=2).map(",".join)


@settings(max_examples=50)
@given(
    st.tuples(
        field(0, 62), field(0, 25), field(0, 33), field(0, 14, "jan", "DEC"), field(0, 8, "sun", "Sat")
    ).map(" ".join)
)
def test_a_schedule_is_taken_if_and_only_if_it_comes_due(schedule: str) -> None:
    manifest = change(good_manifest(), {"spec.cron": [cron(schedule=schedule)]})
    try:
        CronSchedule(schedule).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    except ValueError:
        refusal(manifest)
    else:
        parse_pool(manifest)


@pytest.mark.parametrize(
    ("worker", "processes"),
    [
        ({}, 1),
        ({"processes": 3, "resources": {"limits": {"cpu": 8}}}, 3),
        ({"resources": {"limits": {"cpu": 4}}}, 4),
        ({"resources": {"limits": {"cpu": "2500m"}}}, 2),
        ({"resources": {"limits": {"cpu": "500m"}}}, 1),
        ({"resources": {"requests": {"cpu": "1.5"}}}, 2),
        ({"resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m"}}}, 1),
    ],
)
def test_processes_follow_the_cpus_of_a_pod(worker: dict[str, Any], processes: int) -> None:
    spec = parse(worker={**good_manifest()["spec"]["worker"], **worker})
    assert spec.worker.count_processes() == processes
    assert spec.jobs_per_replica == processes * 10


def test_jobs_per_replica_may_be_said() -> None:
    assert parse(scaling__jobsPerReplica=3).jobs_per_replica == 3
