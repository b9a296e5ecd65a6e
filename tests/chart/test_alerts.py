"""Alerts and dashboard ask only for metrics that operator and workers export, by labels that these have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from helm_client import CHART
from rendering import HERE, find, read_values, render_objects
from rrq.metrics import METRICS, Meter
from rrq.pod.exposition import PodCollector, PodFigures
from rrq_operator.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from helm_client import Helm

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def exported_names() -> set[str]:
    metrics = Metrics()
    metrics.count_calls(lambda: 0, lambda: 0)
    figures = PodFigures(children=(), is_redis_up=True, seen=None)
    families: Iterable[Metric] = [
        *metrics.registry.collect(),
        *PodCollector(Meter(), lambda: figures).collect(),
    ]
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def asked_names(expression: str) -> set[str]:
    return set(re.findall(r"\brrq_\w+", expression))


@pytest.fixture
def rules(offline: Helm) -> list[dict[str, Any]]:
    values = {"prometheusRule": {"enabled": True}}
    (group,) = find(render_objects(offline, values=values), "PrometheusRule", "rrq-operator")["spec"][
        "groups"
    ]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((CHART / "dashboards" / "rrq.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [
        entry["query"]["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"
    ]
    return [*panels, *variables]


def test_alerts_ask_for_metrics_that_exist(rules: list[dict[str, Any]]) -> None:
    assert len(rules) >= 10
    for rule in rules:
        names = asked_names(rule["expr"])
        assert names, rule["alert"]
        assert names <= exported_names(), rule["alert"]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    expressions = dashboard_expressions()
    assert len(expressions) > 25
    for expression in expressions:
        assert asked_names(expression), expression
        assert asked_names(expression) <= exported_names(), expression


def test_every_metric_of_the_operator_is_on_the_dashboard() -> None:
    asked = set().union(*map(asked_names, dashboard_expressions()))
    metrics = Metrics()
    metrics.count_calls(lambda: 0, lambda: 0)
    missing = [
        family.name
        for family in metrics.registry.collect()
        if not {family.name + suffix for suffix in SUFFIXES[family.type]} & asked
    ]
    assert missing == []


def test_labels_that_alerts_group_workers_by_exist(rules: list[dict[str, Any]]) -> None:
    """Namespace and pool come with the PodMonitor."""
    for rule in rules:
        for name, labels in re.findall(r"by \(([\w, ]+)\) \(increase\((\w+)", rule["expr"]):
            given = {"namespace", "pool", *METRICS[labels].labels}
            assert set(re.split(r", *", name)) <= given, rule["alert"]


def test_every_alert_says_what_happened_and_what_to_do(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "<" not in json.dumps(rule["annotations"]), "a word was not filled in"


def test_names_of_release_and_thresholds_reach_the_alerts(offline: Helm) -> None:
    values = read_values(HERE / "values" / "everything.yaml")
    objects = render_objects(offline, values=values, namespace="queues")
    (group,) = find(objects, "PrometheusRule", "queues-operator")["spec"]["groups"]
    expressions = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert expressions["RRQOperatorAbsent"] == (
        'absent(rrq_operator_build_info{namespace="queues", service="queues-operator"})'
    )
    assert expressions["RRQPoolNotKeepingUp"] == "rrq_operator_oldest_due_age_seconds > 60"
    assert {rule["labels"]["severity"] for rule in group["rules"][:-1]} == {"page", "ticket"}
    assert expressions["Mine"] == "vector(1)"


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: apt install prometheus)"
)
def test_prometheus_accepts_every_expression(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    # Grafana fills in the interval and the choices of the person before it asks.
    filled_in = [expression.replace("$__rate_interval", "5m") for expression in dashboard_expressions()]
    panels = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(filled_in)
        if not expression.startswith("label_values")
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [*rules, *panels]}]}))
    done = subprocess.run(["promtool", "check", "rules", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
