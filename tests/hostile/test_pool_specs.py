"""Manifests and objects of any shape: a pool, or a SpecError with words for a person, and soon."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad_manifests import GOOD_CHANGES, change, good_manifest
from rrq_operator.api.spec import Pool, SpecError, parse_pool
from rrq_operator.cluster.informer import Informer
from rrq_operator.decide.objects import parse_budget, parse_deployment, parse_job, parse_pod
from rrq_operator.local.manifest import ManifestError, parse_pools

FIELDS = [
    "type", "queues", "redis", "url", "urlFrom", "secretKeyRef", "name", "key", "keyPrefix", "worker", "image", "settings",
    "concurrency", "processes", "resources", "limits", "requests", "cpu", "env", "envFrom", "drainSeconds", "podTemplate",
    "metadata", "spec", "scaling", "minReplicas", "maxReplicas", "idleReplicas", "scaleDown", "job", "start", "schedule",
    "cron", "function", "args", "kwargs", "queue", "unique", "disruption", "maxUnavailable", "replicas", "generation",
    "status", "conditions", "containerStatuses", "state", "terminated", "finishedAt", "ownerReferences", "labels",
    "annotations", "creationTimestamp", "uid", "namespace", "resourceVersion", "managedFields", "phase",
]  # fmt: skip
# Also what JSON has not, because YAML has it: infinities, and keys that are no text.
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("9" * 5000),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6)
    ),
    max_leaves=12,
)
BOUND_SECONDS = 1.0


def judge(manifest: Any) -> Pool | str:
    """What parse_pool says, in time; any other exception fails the test."""
    # Of the processor, which others may have in between.
    started_at = time.thread_time()
    try:
        verdict: Pool | str = parse_pool(manifest)
    except SpecError as refusal:
        verdict = str(refusal)
        assert verdict
    assert time.thread_time() - started_at < BOUND_SECONDS
    return verdict


@given(spec=ANY_JSON, metadata=ANY_JSON)
def test_any_spec_is_a_pool_or_clearly_none(spec: Any, metadata: Any) -> None:
    judge({**good_manifest(), "spec": spec})
    judge({**good_manifest(), "metadata": metadata})
    judge({"apiVersion": spec, "kind": metadata})


def _places(value: Any, place: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [place]
    return [place, *(found for name, inner in value.items() for found in _places(inner, f"{place}.{name}"))]


RICHEST = deepcopy(good_manifest())
for _changes in GOOD_CHANGES.values():
    RICHEST = change(RICHEST, _changes)
PLACES = [place.removeprefix(".") for place in _places(RICHEST) if place.startswith(".spec.")]


@given(place=st.sampled_from(PLACES), value=ANY_JSON)
def test_any_value_at_any_place_is_a_pool_or_clearly_none(place: str, value: Any) -> None:
    try:
        manifest = change(RICHEST, {place: value})
    except (AttributeError, TypeError):
        return
    judge(manifest)


LONG = {
    "a name of many dashes": {"metadata.name": "a" + "-" * 1_000_000},
    "a name of many letters": {"metadata.name": "a" * 1_000_000 + "!"},
    "a URL of many colons": {"spec.redis.url": "redis://" + ":" * 2_000 + "x"},
    "a URL of many schemes": {"spec.redis.url": "redis://" + "://" * 600},
    "a long URL": {"spec.redis.url": "redis://" + "a" * 1_000_000},
    "a Secret of many dots": {"spec.redis": {"urlFrom": {"secretKeyRef": {"name": "a." * 126 + "!", "key": "k"}}}},
    "a schedule of many commas": {"spec.cron": [{"name": "a", "schedule": ",".join(["1-2/3"] * 40), "function": "f"}]},
    "a schedule of many blanks": {"spec.cron": [{"name": "a", "schedule": " " * 100 + "*" + " " * 99, "function": "f"}]},
    "a schedule of many names": {"spec.cron": [{"name": "a", "schedule": "* * * * " + "mon-fri," * 23 + "!", "function": "f"}]},
    "settings of many dots": {"spec.worker.settings": "a." * 126 + "!"},
    "an amount of many digits": {"spec.worker.resources": {"limits": {"cpu": "9" * 1_000_000 + "x"}}},
    "an amount of many dots": {"spec.worker.resources": {"limits": {"cpu": "." * 1_000_000}}},
    "many queues": {"spec.queues": [f"q{number}" for number in range(100_000)]},
    "a hundred entries": {"spec.cron": [{"name": f"a{n}", "schedule": "0 0 29 2 *", "function": "f"} for n in range(100)]},
    "a year of dates that never come": {"spec.cron": [{"name": "a", "schedule": "* * 30,31 2 *", "function": "f"}]},
}  # fmt: skip


@pytest.mark.parametrize("changes", LONG.values(), ids=LONG)
def test_a_long_value_is_judged_soon(changes: dict[str, Any]) -> None:
    judge(change(good_manifest(), changes))


def test_no_name_of_a_pool_has_two_lines() -> None:
    assert isinstance(judge(change(good_manifest(), {"metadata.name": "emails\n"})), str)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    "place",
    ["spec", "spec.worker.podTemplate", "spec.worker.env", "spec.cron", "spec.worker.podTemplate.spec"],
)
def test_a_deep_nesting_is_a_pool_or_clearly_none(place: str) -> None:
    judge(change(good_manifest(), {place: nested(400)}))
    judge(change(good_manifest(), {place: [nested(5_000)]}))


YAMLS = {
    "nested deeply": "[" * 50_000,
    "a date that no calendar has": "kind: 2001-99-99",
    "a number of many digits": "kind: " + "9" * 10_000,
    "odd bytes": "kind: \x00\x07",
    "an object of Python": "!!python/object/apply:os.system ['true']",
    "aliases upon aliases": "a: &a [1]\nb: &b [*a, *a]\nc: &c [*b, *b]\nkind: *c",
    "a mapping as a key": "{a: 1}: 2",
    "two documents": "--- 1\n--- {kind: RRQWorkerPool}\n--- [1]",
    "nothing": "",
}


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
def test_a_file_of_anything_is_refused_in_words(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_pools(text, "pool.yaml")


@given(body=ANY_JSON)
def test_an_object_of_any_shape_hides_no_other(body: Any) -> None:
    known: list[Any] = []
    for parse in (parse_pod, parse_deployment, parse_job, parse_budget):
        informer: Informer[Any] = Informer(
            None,  # type: ignore[arg-type]  # never asked here
            "/pods",
            parse,
            lambda before, after: known.append(after),
        )
        informer._set(
            "uid", {"metadata": {"uid": "uid", "name": "a", "namespace": "b"}, "spec": body, "status": body}
        )
        informer._set("uid", {"metadata": body, "spec": {}})
