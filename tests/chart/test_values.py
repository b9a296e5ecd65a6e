"""Wrong values are refused before anything is installed, and Helm says which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from helm_client import CHART, HelmFailed
from rendering import HERE, read_values, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helm_client import Helm

POOL = {"queues": ["default"], "worker": {"image": "a:1", "settings": "a.b"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replicaCount": 2}, "additional properties 'replicaCount' not allowed"),
    "an unknown value inside": (
        {"log": {"lvl": "INFO"}},
        "at '/log': additional properties 'lvl' not allowed",
    ),
    "a mistyped monitor": (
        {"serviceMonitor": {"enable": True}},
        "at '/serviceMonitor': additional properties 'enable' not allowed",
    ),
    "an unknown level": ({"log": {"level": "info"}}, "at '/log/level': value must be one of 'DEBUG'"),
    "three operators": ({"replicas": 3}, "at '/replicas': maximum: got 3, want 2"),
    "no operator": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "a number in quotes": ({"replicas": "2"}, "at '/replicas': got string, want integer"),
    "a word for a switch": ({"redis": {"enabled": "yes"}}, "at '/redis/enabled': got string, want boolean"),
    "a digest without its kind": ({"image": {"digest": "abc"}}, "at '/image/digest': 'abc' does not match"),
    "several namespaces": ({"watchNamespace": ["a", "b"]}, "at '/watchNamespace': got array, want string"),
    "no name of a namespace": (
        {"watchNamespace": "Shop"},
        "at '/watchNamespace': 'Shop' does not match pattern",
    ),
    "a name that no Service may have": (
        {"fullnameOverride": "1rrq"},
        "at '/fullnameOverride': '1rrq' does not match pattern",
    ),
    "a name that leaves no room for its endings": (
        {"fullnameOverride": "a" * 46},
        "at '/fullnameOverride': maxLength: got 46, want 45",
    ),
    "a password that would need quoting": (
        {"redis": {"password": "a b"}},
        "at '/redis/password': 'a b' does not match pattern",
    ),
    "a pull Secret without its name": (
        {"imagePullSecrets": ["registry"]},
        "at '/imagePullSecrets/0': got string, want object",
    ),
    "a label that is no text": ({"commonLabels": {"a": 1}}, "at '/commonLabels/a': got number, want string"),
    "a pool without queues": ({"pools": {"a": {"worker": {}}}}, "at '/pools/a': missing property 'queues'"),
    "a pool with no name for Kubernetes": ({"pools": {"E-Mails": POOL}}, "'E-Mails' does not match pattern"),
    "a mistyped field of a pool": (
        {"pools": {"a": {**POOL, "scaling": {"maxReplica": 3}}}},
        "at '/pools/a/scaling': additional properties 'maxReplica' not allowed",
    ),
    "too many pods of a pool": (
        {"pools": {"a": {**POOL, "scaling": {"maxReplicas": 1001}}}},
        "at '/pools/a/scaling/maxReplicas': maximum: got 1,001, want 1,000",
    ),
    "pools as a list": ({"pools": [POOL]}, "at '/pools': got array, want object"),
    "a port beyond the last": (
        {"networkPolicy": {"redis": {"ports": [70000]}}},
        "at '/networkPolicy/redis/ports/0': maximum: got 70,000, want 65,535",
    ),
    "a severity that is no word": (
        {"prometheusRule": {"severity": {"warning": "a: b"}}},
        "at '/prometheusRule/severity/warning': 'a: b' does not match pattern",
    ),
    "an alert that is not there": (
        {"prometheusRule": {"disabled": ["RRQPoolAtMinimum"]}},
        "at '/prometheusRule/disabled/0': value must be one of 'RRQOperatorAbsent'",
    ),
    "runbooks that nobody can open": (
        {"prometheusRule": {"runbookBaseUrl": "wiki/rrq"}},
        "at '/prometheusRule/runbookBaseUrl': 'wiki/rrq' does not match",
    ),
    "a threshold beyond what is measured": (
        {"prometheusRule": {"thresholds": {"reactionSeconds": 10}}},
        "at '/prometheusRule/thresholds/reactionSeconds': exclusiveMaximum: got 10, want 10",
    ),
    "no port for DNS, which would be every port": (
        {"networkPolicy": {"dnsPorts": []}},
        "at '/networkPolicy/dnsPorts': minItems: got 0, want 1",
    ),
    "tokens of the dashboard that are short": (
        {"dashboard": {"auth": {"viewToken": "short", "sessionKey": "short"}}},
        "at '/dashboard/auth/sessionKey'",
    ),
    "an interval without unit": (
        {"podMonitor": {"interval": "30"}},
        "at '/podMonitor/interval': '30' does not match",
    ),
}


def test_wrong_values_are_refused_with_their_place(offline: Helm) -> None:
    """Helm tells of all that is wrong at once, so that a few calls try everything."""
    left = dict(REFUSED)
    while left:
        together: dict[str, dict[str, Any]] = {}
        for name, (values, _) in left.items():
            if not any(values.keys() & others.keys() for others in together.values()):
                together[name] = values
        merged = {place: value for values in together.values() for place, value in values.items()}
        with pytest.raises(HelmFailed) as refused:
            render(offline, values=merged)
        unsaid = {name: left.pop(name)[1] for name in together if left[name][1] not in str(refused.value)}
        assert not unsaid, refused.value
        left = {name: case for name, case in left.items() if name not in together}


def test_an_older_kubernetes_is_refused(offline: Helm) -> None:
    with pytest.raises(HelmFailed, match=r"chart requires kubeVersion: >=1\.29\.0-0"):
        render(offline, "--kube-version=1.28.9")


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = set(schema_paths(schema)) - {"global"}
    assert known == {path for path in known if has_path(values, path)}
    assert not [path for path in value_paths(values) if path not in known]


def test_the_set_with_everything_really_sets_everything() -> None:
    """Else a value could stop having an effect and no snapshot would tell."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    used = read_values(HERE / "values" / "everything.yaml")
    assert [path for path in value_paths(values) if not has_path(used, path)] == []


def schema_paths(schema: dict[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the paths of all values whose shape the schema fixes."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{parent}/{name}".removeprefix("/")
        if inner.get("additionalProperties") is False and path.rpartition("/")[2] != "resources":
            yield from schema_paths(inner, path)
        else:
            yield path


def value_paths(values: dict[str, Any], parent: str = "") -> Iterator[str]:
    for name, value in values.items():
        path = f"{parent}/{name}".removeprefix("/")
        if isinstance(value, dict) and value and name not in ("resources", "labels"):
            yield from value_paths(value, path)
        else:
            yield path


def has_path(values: Any, path: str) -> bool:
    for name in path.split("/"):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True
