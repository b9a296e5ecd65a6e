"""When each alert is raised and when it is not, told by promtool. The series are in alert_cases.yaml."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import yaml

from monitoring import list_dashboard_expressions, render_rules
from rendering import HERE

if TYPE_CHECKING:
    from pathlib import Path

    from helm_client import Helm

CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load((HERE / "alert_cases.yaml").read_text())


def test_alerts_are_raised_when_they_should_be_and_only_then(
    offline: Helm, promtool: Path, tmp_path: Path
) -> None:
    # Words have values in them that this is not about; promtool would compare every one.
    rules = [
        {name: value for name, value in rule.items() if name != "annotations"}
        for rule in render_rules(offline)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}))
    labels = {rule["alert"]: rule["labels"] for rule in rules}
    tests = [build_test(alert, labels[alert], case) for alert, cases in CASES.items() for case in cases]
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    run_promtool(promtool, "test", "rules", file)


def build_test(alert: str, labels: dict[str, str], case: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{alert}: {case['case']}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
        "alert_rule_test": [
            {
                "eval_time": moment,
                "alertname": alert,
                "exp_alerts": [{"exp_labels": labels | expected} for expected in raised],
            }
            for moment, raised in case["raised"].items()
        ],
    }


def test_every_alert_has_a_case_that_raises_it_and_one_that_does_not(offline: Helm) -> None:
    assert set(CASES) == {rule["alert"] for rule in render_rules(offline)}
    for alert, cases in CASES.items():
        assert any(any(case["raised"].values()) for case in cases), alert
        assert any(not any(case["raised"].values()) for case in cases), alert
        # 0x30 without quotes is 48.
        assert all(isinstance(values, str) for case in cases for values in case["series"].values()), alert


def test_prometheus_accepts_every_expression_and_every_word(
    offline: Helm, promtool: Path, tmp_path: Path
) -> None:
    # Grafana fills in the interval and the choices of the person before it asks.
    panels = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(list_dashboard_expressions())
        if not expression.startswith("label_values")
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [*render_rules(offline), *panels]}]}))
    run_promtool(promtool, "check", "rules", file)


def run_promtool(promtool: Path, *arguments: str | Path) -> None:
    done = subprocess.run([promtool, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
