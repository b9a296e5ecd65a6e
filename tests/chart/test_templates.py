"""What the chart renders: a snapshot of a release with all values, and what must hold for every one.

After a change that is meant, RENEW_SNAPSHOTS=1 pytest tests/chart writes the snapshot anew; read the difference.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from helm_client import CHART
from pool_definition import CRD_FILE
from rendering import (
    HERE,
    KNOWS_POOLS,
    KUBE_VERSION,
    VALUE_SETS,
    find,
    parse_objects,
    read_values,
    render,
    render_objects,
)
from rrq.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from helm_client import Helm

RENEW_VARIABLE = "RENEW_SNAPSHOTS"

EVERYTHING = HERE / "values" / "everything.yaml"
SNAPSHOT = HERE / "snapshots" / EVERYTHING.name


def test_the_chart_passes_the_strict_lint(offline: Helm) -> None:
    for file in VALUE_SETS:
        offline.run("lint", "--strict", KUBE_VERSION, str(CHART), values=read_values(file))


def test_what_is_rendered_of_all_values_is_what_was_agreed_on(offline: Helm) -> None:
    rendered = "---\n".join(
        map(abridge, re.split(r"^---\n", render(offline, values=read_values(EVERYTHING)), flags=re.MULTILINE))
    )
    if os.environ.get(RENEW_VARIABLE):
        SNAPSHOT.write_text(rendered)
    agreed = SNAPSHOT.read_text()
    difference = "\n".join(
        difflib.unified_diff(
            agreed.splitlines(), rendered.splitlines(), "snapshot", "rendered", lineterm="", n=5
        )
    )
    assert not difference, (
        f"{SNAPSHOT.name} is out of date. If the change is meant: {RENEW_VARIABLE}=1 pytest tests/chart\n{difference}"
    )


def abridge(document: str) -> str:
    """Return a document without the long part that has a source and a test of its own."""
    for beginning in ("\nkind: CustomResourceDefinition\n", "\nkind: ConfigMap\n"):
        if beginning in document:
            return re.split(r"^(?:spec|data):\n", document, flags=re.MULTILINE)[0] + "# and so on\n"
    return document


def test_the_release_says_which_version_of_rrq_it_is(offline: Helm) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    # The same version, spelled the way SemVer wants it.
    assert re.sub(r"-dev\.", ".dev", chart["version"]) == __version__
    image = operator_container(render_objects(offline))["image"]
    assert image.removesuffix(f":{__version__}") == read_values(CHART / "values.yaml")["image"]["repository"]


def test_the_definition_in_the_chart_is_that_of_the_project_and_outlives_the_release(offline: Helm) -> None:
    rendered = find(render_objects(offline), "CustomResourceDefinition", "rrqworkerpools.rrq.dev")
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    committed = yaml.safe_load(CRD_FILE.read_text())
    assert rendered["spec"] == committed["spec"]
    # Helm would install it from there once, and never upgrade it.
    assert not (CHART / "crds").exists()


def test_no_right_is_a_wildcard_and_nothing_may_be_deleted(offline: Helm) -> None:
    objects = [entry for file in VALUE_SETS for entry in render_objects(offline, values=read_values(file))]
    for role in objects:
        if role["kind"] not in ("Role", "ClusterRole") or "-pools-" in role["metadata"]["name"]:
            continue
        for rule in role["rules"]:
            for words in (rule["apiGroups"], rule["resources"], rule["verbs"]):
                assert words
                assert not [word for word in words if "*" in word], rule
            assert not {"delete", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["get"]


def test_roles_for_people_have_no_wildcard_either(offline: Helm) -> None:
    annotations = {"example.com/note": "labels: see the handbook"}
    objects = render_objects(offline, values={"commonAnnotations": annotations})
    for who in ("view", "edit"):
        role = find(objects, "ClusterRole", f"rrq-pools-{who}")
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{who}"] == "true"
        assert role["metadata"]["annotations"] == annotations
        assert "*" not in str(role["rules"])


def test_in_one_namespace_the_operator_has_no_right_in_the_whole_cluster(offline: Helm) -> None:
    objects = render_objects(offline, values=read_values(HERE / "values" / "one-namespace.yaml"))
    assert not [entry for entry in objects if entry["kind"].startswith("ClusterRole")]
    namespaces = {
        entry["metadata"]["name"]: entry["metadata"]["namespace"]
        for entry in objects
        if entry["kind"] == "Role" and "helm.sh/hook" not in entry["metadata"].get("annotations", {})
    }
    assert namespaces == {"rrq-operator": "shop", "rrq-operator-lease": "rrq"}
    variables = {entry["name"]: entry.get("value") for entry in operator_container(objects)["env"]}
    assert variables["RRQ_OPERATOR_NAMESPACE"] == "shop"


def test_secrets_can_be_narrowed_to_names(offline: Helm) -> None:
    role = find(
        render_objects(offline, values={"rbac": {"secretNames": ["a"]}}), "ClusterRole", "rrq-operator"
    )
    (secrets,) = (rule for rule in role["rules"] if rule["resources"] == ["secrets"])
    assert secrets["resourceNames"] == ["a"]


def test_only_two_operators_have_a_disruption_budget(offline: Helm) -> None:
    def kinds(replicas: int) -> set[str]:
        return {entry["kind"] for entry in render_objects(offline, values={"replicas": replicas})}

    assert kinds(2) - kinds(1) == {"PodDisruptionBudget"}


def test_a_pool_without_a_redis_gets_that_of_the_release(offline: Helm) -> None:
    values = read_values(EVERYTHING)
    objects = render_objects(offline, values=values)
    assert find(objects, "StatefulSet", "queues-redis")["metadata"]["namespace"] == "shop"
    emails, nightly = pools_of_job(objects)
    reference = emails["spec"]["redis"]["urlFrom"]["secretKeyRef"]
    secret = find(objects, "Secret", reference["name"])
    assert secret["stringData"][reference["key"]] == "redis://:secret@queues-redis.shop.svc:6379/0"
    assert nightly["spec"]["redis"] == {"url": "redis://reports:6379/0"}


def test_a_job_makes_the_pools_where_the_cluster_does_not_know_their_kind(offline: Helm) -> None:
    values = read_values(HERE / "values" / "evaluation.yaml")
    first = render_objects(offline, values=values)
    assert "RRQWorkerPool" not in {entry["kind"] for entry in first}
    assert [pool["metadata"]["name"] for pool in pools_of_job(first)] == ["emails"]
    later = render_objects(offline, KNOWS_POOLS, values=values)
    assert find(later, "RRQWorkerPool", "emails")["spec"] == pools_of_job(first)[0]["spec"]
    assert "Job" not in {entry["kind"] for entry in later}


@pytest.mark.parametrize(
    ("release", "name"),
    [("rrq", "rrq"), ("shop", "shop-rrq"), ("my.rel", "my-rel-rrq"), ("1rrq", "rrq-1rrq"), ("7", "rrq-7")],
)
def test_every_name_that_helm_allows_becomes_one_that_a_service_may_have(
    offline: Helm, release: str, name: str
) -> None:
    text = offline.run("template", release, str(CHART), KUBE_VERSION, values={"redis": {"enabled": True}})
    services = {entry["metadata"]["name"] for entry in parse_objects(text) if entry["kind"] == "Service"}
    assert services == {f"{name}-operator", f"{name}-redis"}


def test_common_labels_and_annotations_are_on_every_object(offline: Helm) -> None:
    common = {"commonLabels": {"team": "queues"}, "commonAnnotations": {"example.com/contact": "queues"}}
    for entry in render_objects(offline, values=read_values(EVERYTHING) | common):
        assert entry["metadata"]["labels"]["team"] == "queues", entry["metadata"]["name"]
        assert entry["metadata"]["annotations"]["example.com/contact"] == "queues", entry["metadata"]["name"]


def test_objects_are_in_the_namespace_of_the_release_or_in_that_of_the_pools(offline: Helm) -> None:
    for values in map(read_values, VALUE_SETS):
        for entry in render_objects(offline, values=values):
            scope = entry["metadata"].get("namespace")
            if entry["kind"] in ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"):
                assert scope is None
            else:
                assert scope in ("rrq", values.get("watchNamespace")), entry["metadata"]["name"]


def test_every_pod_in_the_namespace_of_the_release_may_ask_dns_and_the_api_server(offline: Helm) -> None:
    """Also where the namespace denies what no policy allows. The evaluation Redis asks nobody."""
    values = read_values(HERE / "values" / "evaluation.yaml") | {"networkPolicy": {"enabled": True}}
    objects = render_objects(offline, values=values)
    policies = [entry["spec"] for entry in objects if entry["kind"] == "NetworkPolicy"]
    pods = [
        entry["metadata"] if entry["kind"] == "Pod" else entry["spec"]["template"]["metadata"]
        for entry in objects
        if entry["kind"] in ("Deployment", "Job", "Pod")
    ]
    assert len(pods) == 3
    for pod in pods:
        (policy,) = (policy for policy in policies if selects(policy["podSelector"], pod["labels"]))
        open_ports = {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}
        assert open_ports >= {53, 5353, 443, 6443}, pod["labels"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector["matchLabels"].items() <= labels.items() and all(
        labels[entry["key"]] in entry["values"] for entry in selector.get("matchExpressions", ())
    )


def test_an_upgrade_of_the_chart_alone_does_not_restart_the_evaluation_redis(
    offline: Helm, tmp_path: Path
) -> None:
    values = read_values(HERE / "values" / "evaluation.yaml")
    text = render(offline, values=values)
    later = text.replace("1.0.0-dev.0", "1.0.1").replace(__version__, "1.0.1")
    templates = [
        find(parse_objects(version), "StatefulSet", "rrq-redis")["spec"]["template"]
        for version in (text, later)
    ]
    assert templates[0] == templates[1]


def test_the_pod_of_the_evaluation_redis_tells_nothing_of_its_password(offline: Helm) -> None:
    one, other = (
        find(
            render_objects(offline, values={"redis": {"enabled": True, "password": password}}),
            "StatefulSet",
            "rrq-redis",
        )
        for password in ("one", "other")
    )
    assert one == other


def pools_of_job(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (job,) = (entry for entry in objects if entry["kind"] == "Job")
    (variable,) = job["spec"]["template"]["spec"]["containers"][0]["env"]
    pools: list[dict[str, Any]] = json.loads(variable["value"])
    return pools


def operator_container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = find(objects, "Deployment", "rrq-operator")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container
