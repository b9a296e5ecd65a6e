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

ON_COUNTERS = ("RRQJobsDie", "RRQWorkersCrash")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: apt install prometheus)"
)


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
    return render_rules(offline, {"prometheusRule": {"enabled": True}, "serviceMonitor": {"enabled": True}})


def render_rules(offline: Helm, values: dict[str, Any]) -> list[dict[str, Any]]:
    rule = find(render_objects(offline, values=values), "PrometheusRule", "rrq-operator")
    (group,) = rule["spec"]["groups"]
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
    checked: set[str] = set()
    for rule in rules:
        for names, metric in re.findall(r"by \((namespace, [\w, ]+)\) \(.*increase\((\w+)", rule["expr"]):
            given = {"namespace", "pool", *METRICS[metric].labels}
            assert set(re.split(r", *", names)) <= given, rule["alert"]
            checked.add(rule["alert"])
    assert checked == set(ON_COUNTERS)


def test_every_alert_says_what_happened_and_what_to_do(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "<" not in json.dumps(rule["annotations"]), "a word was not filled in"


def test_a_severity_that_looks_like_a_number_stays_text(offline: Helm) -> None:
    values = {"prometheusRule": {"enabled": True, "severity": {"warning": "2"}}}
    assert {rule["labels"]["severity"] for rule in render_rules(offline, values)} == {"2"}


def test_without_a_service_monitor_no_alert_asks_for_its_labels(
    offline: Helm, rules: list[dict[str, Any]]
) -> None:
    """Else RRQOperatorAbsent would fire for ever, however well the operator runs."""
    others = render_rules(offline, {"prometheusRule": {"enabled": True}})
    assert not [rule["alert"] for rule in others if "service=" in rule["expr"] or "absent(" in rule["expr"]]
    left_out = [rule["alert"] for rule in rules if rule not in others]
    assert left_out == ["RRQOperatorAbsent", "RRQOperatorWithoutLeader"]


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


@needs_promtool
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


@needs_promtool
def test_the_first_dead_job_and_the_first_crashes_raise_an_alert(
    rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A worker exports no counter before its first event, so that the first sample may be 1 already, or 4."""
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "a", "rules": [pick(rules, name) for name in ON_COUNTERS]}]})
    )
    of_pool = 'namespace="shop",pool="emails"'
    series = [
        {"series": f'rrq_jobs_total{{{of_pool},function="send",outcome="dead"}}', "values": "_x30 1x60"},
        {"series": f'rrq_jobs_total{{{of_pool},function="send",outcome="succeeded"}}', "values": "5+1x90"},
        {"series": f'rrq_child_crashes_total{{{of_pool},how="signal 9"}}', "values": "_x30 4x60"},
        {"series": f'rrq_child_crashes_total{{{of_pool},how="exit 1"}}', "values": "_x30 1x60"},
    ]
    labels = {"severity": "warning", "namespace": "shop", "pool": "emails"}
    raised = {"RRQJobsDie": labels | {"function": "send"}, "RRQWorkersCrash": labels | {"how": "signal 9"}}
    checks = [
        {
            "eval_time": at,
            "alertname": name,
            "exp_alerts": [{"exp_labels": raised[name], "exp_annotations": said(rules, name, raised[name])}]
            if is_raised
            else [],
        }
        for at, is_raised in (("20m", False), ("35m", True), ("50m", False))
        for name in ON_COUNTERS
    ]
    file = tmp_path / "test.yaml"
    cases = [{"interval": "1m", "input_series": series, "alert_rule_test": checks}]
    file.write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases})
    )
    done = subprocess.run(["promtool", "test", "rules", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def pick(rules: list[dict[str, Any]], alert: str) -> dict[str, Any]:
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    return rule


def said(rules: list[dict[str, Any]], alert: str, labels: dict[str, str]) -> dict[str, str]:
    """Return the annotations with the labels filled in, as Prometheus does."""
    return {
        name: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
        for name, text in pick(rules, alert)["annotations"].items()
    }
