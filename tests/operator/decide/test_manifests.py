"""What the operator asks Kubernetes for, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_manifests import change, good_manifest
from rrq import RRQSettings
from rrq_operator.api.spec import Pool, parse_pool
from rrq_operator.decide.manifests import (
    POOL_LABEL,
    build_arguments,
    build_deployment,
    build_disruption_budget,
    build_job,
    merge,
)


def pool(**changes: Any) -> Pool:
    """Return the good pool with fields of its spec changed; `__` stands for the dot."""
    manifest = change(
        good_manifest(), {f"spec.{place.replace('__', '.')}": value for place, value in changes.items()}
    )
    return parse_pool(manifest | {"metadata": {"name": "emails", "namespace": "shop", "uid": "1-2-3"}})


def pod_of(given: Pool) -> dict[str, Any]:
    template: dict[str, Any] = build_deployment(given, "7")["spec"]["template"]
    return template


def worker_of(given: Pool) -> dict[str, Any]:
    return next(entry for entry in pod_of(given)["spec"]["containers"] if entry["name"] == "worker")


def variables(given: Pool) -> dict[str, Any]:
    listed = worker_of(given)["env"]
    found = {entry["name"]: entry for entry in listed}
    assert len(found) == len(listed), "no variable twice: server-side apply refuses that"
    return found


FROM_SECRET = {"urlFrom": {"secretKeyRef": {"name": "rrq-redis", "key": "url"}}}


def test_a_deployment_belongs_to_its_pool_and_leaves_the_size_to_others() -> None:
    deployment = build_deployment(pool(), "7")
    [owner] = deployment["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RRQWorkerPool", "emails", "1-2-3")
    assert owner["controller"]
    assert "replicas" not in deployment["spec"]
    assert deployment["spec"]["selector"] == {"matchLabels": {POOL_LABEL: "emails"}}
    assert deployment["spec"]["template"]["metadata"]["labels"][POOL_LABEL] == "emails"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}


def test_the_grace_period_is_longer_than_the_drain() -> None:
    given = pool(worker__drainSeconds=300)
    assert pod_of(given)["spec"]["terminationGracePeriodSeconds"] > 302
    assert variables(given)["RRQ_WORKER_SHUTDOWN_GRACE_PERIOD_SECONDS"]["value"] == "300"


def test_pods_are_locked_down_and_without_an_api_token() -> None:
    spec, container = pod_of(pool())["spec"], worker_of(pool())
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_probes_ask_the_supervisor() -> None:
    container = worker_of(pool())
    [port] = container["ports"]
    paths = {
        name: (container[name]["httpGet"]["path"], container[name]["httpGet"]["port"])
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": ("/startupz", port["name"]),
        "readinessProbe": ("/readyz", port["name"]),
        "livenessProbe": ("/livez", port["name"]),
    }
    assert variables(pool())["RRQ_WORKER_HTTP"]["value"].endswith(f":{port['containerPort']}")


def test_pods_are_spread_and_evicted_one_by_one() -> None:
    [spread] = pod_of(pool())["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    assert spread["labelSelector"] == {"matchLabels": {POOL_LABEL: "emails"}}
    budget = build_disruption_budget(pool(disruption__maxUnavailable="20%"))["spec"]
    assert budget["maxUnavailable"] == "20%"
    assert budget["selector"] == {"matchLabels": {POOL_LABEL: "emails"}}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({}, ["--num-workers", "1"]),
        ({"resources": {"limits": {"cpu": "2"}}}, []),
        ({"resources": {"requests": {"cpu": "1500m"}}}, ["--num-workers", "2"]),
        ({"resources": {"limits": {"cpu": "2"}}, "processes": 3}, ["--num-workers", "3"]),
        ({"resources": {"limits": {"memory": "1Gi"}}}, ["--num-workers", "1"]),
    ],
)
def test_processes_follow_the_cpu_limit_unless_the_spec_sets_them(
    worker: dict[str, Any], expected: list[str]
) -> None:
    given = pool(**{f"worker__{field}": value for field, value in worker.items()})
    arguments = build_arguments(given)
    start = arguments.index("--num-workers") if "--num-workers" in arguments else len(arguments)
    assert arguments[start:] == expected


def test_queues_are_served_in_their_order() -> None:
    arguments = build_arguments(pool(queues=["urgent", "default"]))
    assert arguments[:2] == ["worker", "run"]
    assert arguments[4:8] == ["--queue", "urgent", "--queue", "default"]


def test_workers_get_the_weights_of_their_queues() -> None:
    given = pool(queues=["high", "low"], queueWeights={"high": 6, "low": 0.5})
    told = variables(given)["RRQ_WORKER_QUEUE_WEIGHTS"]["value"]
    settings = RRQSettings(worker_queue_weights=json.loads(told))
    assert settings.worker_queue_weights == {"high": 6.0, "low": 0.5}
    assert "RRQ_WORKER_QUEUE_WEIGHTS" not in variables(pool()), "what the application says holds"


def test_a_burst_is_one_pod_that_ends() -> None:
    job = build_job(pool(type="Job"), 4, "7")
    assert job["metadata"]["name"] == "emails-run-4"
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (1, 1)
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    template = job["spec"]["template"]["spec"]
    assert template["restartPolicy"] == "Never"
    arguments = template["containers"][0]["args"]
    assert "--burst" in arguments
    assert "--num-workers" not in arguments


# podTemplate


def test_a_pod_template_adds_to_what_the_operator_writes() -> None:
    template = {
        "metadata": {"labels": {"team": "shop"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "containers": [
                {
                    "name": "worker",
                    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                    "env": [{"name": "RRQ_LOG_FORMAT", "value": "text"}],
                },
                {"name": "sidecar", "image": "example.com/proxy:1"},
            ],
            "volumes": [{"name": "models", "emptyDir": {}}],
        },
    }
    given = pool(worker__podTemplate=template)
    made = pod_of(given)
    assert made["metadata"]["labels"]["team"] == "shop"
    assert made["metadata"]["annotations"]["a"] == "b"
    assert made["spec"]["nodeSelector"] == {"disk": "fast"}
    assert [entry["name"] for entry in made["spec"]["containers"]] == ["worker", "sidecar"]
    assert [entry["name"] for entry in made["spec"]["volumes"]] == ["tmp", "models"]
    container = worker_of(given)
    assert [entry["mountPath"] for entry in container["volumeMounts"]] == ["/tmp", "/models"]
    assert container["args"][:2] == ["worker", "run"]
    assert variables(given)["RRQ_LOG_FORMAT"]["value"] == "text"


@pytest.mark.parametrize("place", ["env", "podTemplate"])
def test_a_pod_template_cannot_forge_what_ties_a_pod_to_its_pool(place: str) -> None:
    forged = [
        {"name": name, "value": "forged"}
        for name in ("RRQ_POD_UID", "RRQ_POOL", "RRQ_REDIS_DSN", "RRQ_KEY_PREFIX")
    ]
    spec = {"containers": [{"name": "worker", "env": forged}]}
    template = {"metadata": {"labels": {POOL_LABEL: "other"}}, "spec": spec}
    given = pool(**({"worker__env": forged} if place == "env" else {"worker__podTemplate": template}))
    assert variables(given)["RRQ_POD_UID"] == {
        "name": "RRQ_POD_UID",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
    }
    assert variables(given)["RRQ_POOL"]["value"] == "shop/emails", "as a pause in Redis names it"
    assert "forged" not in json.dumps(build_deployment(given, "7"))
    assert pod_of(given)["metadata"]["labels"][POOL_LABEL] == "emails"


def test_a_variable_and_a_volume_are_replaced_whole() -> None:
    by_secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}}
    given = pool(
        worker__env=[{"name": "TOKEN", "value": "x"}],
        worker__podTemplate={
            "spec": {"containers": [{"name": "worker", "env": [by_secret]}], "volumes": [claim]}
        },
    )
    assert variables(given)["TOKEN"] == by_secret
    assert pod_of(given)["spec"]["volumes"] == [claim]


def test_another_kind_of_probe_takes_the_place_of_ours() -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 30}
    given = pool(worker__podTemplate={"spec": {"containers": [{"name": "worker", "livenessProbe": probe}]}})
    made = worker_of(given)["livenessProbe"]
    assert "httpGet" not in made
    assert (made["exec"], made["periodSeconds"], made["failureThreshold"]) == ({"command": ["true"]}, 30, 3)


def test_null_takes_a_field_away() -> None:
    given = pool(worker__podTemplate={"spec": {"topologySpreadConstraints": None}})
    assert "topologySpreadConstraints" not in pod_of(given)["spec"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "worker", "tmp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "labels", "env", "exec", "spec", "mountPath", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional={"metadata": JSON, "spec": JSON}))
def test_no_pod_template_breaks_the_operator(template: dict[str, Any]) -> None:
    """Nonsense is for the API server to refuse; one pool must not stop the round of all others."""
    given = pool(worker__podTemplate=template)
    json.dumps(build_deployment(given, "7"))


@settings(max_examples=30)
@given(JSON, JSON)
def test_merging_changes_neither_side_and_the_empty_change_nothing(base: Any, over: Any) -> None:
    before = json.dumps([base, over])
    merge(base, over)
    assert json.dumps([base, over]) == before
    if isinstance(base, dict):
        assert merge(base, {}) == base
