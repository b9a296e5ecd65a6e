"""Alerts and dashboard of the chart, as Prometheus and Grafana get them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helm_client import CHART
from rendering import find, render_objects

if TYPE_CHECKING:
    from helm_client import Helm

ALL_ALERTS = {"prometheusRule": {"enabled": True}, "serviceMonitor": {"enabled": True}}


def render_rules(offline: Helm, values: dict[str, Any] = ALL_ALERTS) -> list[dict[str, Any]]:
    rule = find(render_objects(offline, values=values), "PrometheusRule", "rrq-operator")
    (group,) = rule["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((CHART / "dashboards" / "rrq.json").read_text())
    return dashboard


def list_panels() -> list[dict[str, Any]]:
    """Return the panels that show something, without the rows above them."""
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def list_targets() -> list[dict[str, str]]:
    """Return what the panels ask Prometheus for, each with its expression and legend."""
    return [target for panel in list_panels() for target in panel["targets"]]


def list_variables() -> list[str]:
    """Return the expressions behind what a person may choose above the panels."""
    return [
        entry["query"]["query"]
        for entry in read_dashboard()["templating"]["list"]
        if entry["type"] == "query"
    ]


def list_dashboard_expressions() -> list[str]:
    return [*(target["expr"] for target in list_targets()), *list_variables()]
