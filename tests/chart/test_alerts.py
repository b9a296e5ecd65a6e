"""What the alerts say, what of them values change, and that each has a page that says what to do.

When they are raised is in test_alert_cases.py, what they ask for in test_exported_metrics.py.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

from helm_client import CHART
from monitoring import render_rules
from rendering import HERE, find, read_values, render_objects
from rrq.cli import rrq
from rrq_operator.plugin.cli import rrq as kubectl_rrq

if TYPE_CHECKING:
    from helm_client import Helm

RUNBOOKS = CHART.parents[1] / "docs" / "runbooks"
COMMAND = re.compile(r"(?:^|`|-- )(kubectl rrq|rrq) ([a-z][^`|\n]+)", flags=re.MULTILINE)
SECTIONS = ["What it means", "How to look", "Likely causes", "What to do", "How to know that it is over"]


@pytest.fixture
def rules(offline: Helm) -> list[dict[str, Any]]:
    return render_rules(offline)


def names_of(rules: list[dict[str, Any]]) -> list[str]:
    return [rule["alert"] for rule in rules]


def render_with_everything(offline: Helm) -> list[dict[str, Any]]:
    values = read_values(HERE / "values" / "everything.yaml")
    objects = render_objects(offline, values=values, namespace="queues")
    (group,) = find(objects, "PrometheusRule", "queues-operator")["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_every_alert_says_what_happened_and_what_to_do(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert not re.search(r"<\w", json.dumps(rule)), "a word was not filled in"


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


def test_names_of_release_and_severities_reach_the_alerts(offline: Helm) -> None:
    *rules, mine = render_with_everything(offline)
    assert rules[0]["alert"] == "RRQOperatorAbsent"
    assert rules[0]["expr"] == (
        'absent(rrq_operator_build_info{namespace="queues", service="queues-operator"})'
    )
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket"}
    assert mine == {"alert": "Mine", "expr": "vector(1)"}


def test_thresholds_reach_their_alerts(offline: Helm) -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in render_with_everything(offline)}
    for alert, ending in {
        "RRQPoolNotKeepingUp": "_seconds > 60 unless",
        "RRQAttemptsFail": "> 0.05 and",
        "RRQJobsDie": "> 5",
        "RRQDeadLettersGrow": "> 1e+06",
        "RRQWorkersCrash": "> 10",
        "RRQJobsReaped": "> 50",
        "RRQEventLoopBlocked": "> 0.25",
        "RRQRedisSlow": "> 0.1",
        "RRQOperatorSlow": "> 2",
    }.items():
        assert ending in expressions[alert], alert


def test_every_threshold_is_that_of_an_alert() -> None:
    thresholds = yaml.safe_load((CHART / "values.yaml").read_text())["prometheusRule"]["thresholds"]
    used = re.findall(r"> <(\w+)>", (CHART / "files" / "alerts.yaml").read_text())
    assert sorted(used) == sorted(thresholds)


def test_an_alert_can_be_left_out(offline: Helm, rules: list[dict[str, Any]]) -> None:
    left_out = set(names_of(rules)) - set(names_of(render_with_everything(offline)))
    assert left_out == {"RRQPoolAtMaximum", "RRQOperatorWithoutLeader"}


def test_the_schema_knows_every_alert_that_can_be_left_out(rules: list[dict[str, Any]]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["prometheusRule"]["properties"]["disabled"]["items"]["enum"]
    assert known == names_of(rules)


def test_every_alert_has_a_page_and_every_page_an_alert(rules: list[dict[str, Any]]) -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(names_of(rules))


def test_an_alert_names_its_page_where_people_read_it(offline: Helm, rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
    for rule in render_with_everything(offline)[:-1]:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/rrq/{rule['alert']}.md"


def test_every_page_answers_the_same_questions(rules: list[dict[str, Any]]) -> None:
    for name in names_of(rules):
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n"), name
        assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == SECTIONS, name
        assert "```\n" in text.partition("## How to look")[2].partition("## Likely")[0], name


def test_commands_of_the_pages_are_ones_that_rrq_understands() -> None:
    checked = 0
    for page in RUNBOOKS.glob("*.md"):
        for program, rest in COMMAND.findall(page.read_text()):
            group: Any = kubectl_rrq if program.startswith("kubectl") else rrq
            words = shlex.split(rest)
            # With the settings of the group above it, as when it is run: click keeps the help option that it made first.
            context = click.Context(group, **group.context_settings)
            while isinstance(group, click.Group):
                name = words.pop(0)
                group = group.get_command(context, name)
                assert group is not None, f"{page.name} knows a command {name!r} that {program} does not"
                if isinstance(group, click.Group):
                    context = click.Context(group, parent=context, **group.context_settings)
            with group.make_context(rest, words, parent=context):
                checked += 1
    assert checked > 20


def test_the_index_lists_the_pages_in_the_order_of_the_alerts(rules: list[dict[str, Any]]) -> None:
    index = (RUNBOOKS / "README.md").read_text()
    linked = re.findall(r"\| \[(\w+)\]\((\w+)\.md\) \|", index)
    assert [name for name, _ in linked] == [page for _, page in linked]
    of_operator, others = names_of(rules)[:2], names_of(rules)[2:]
    assert [name for name, _ in linked] == [*others, *of_operator]
