"""The Grafana dashboard as a person meets it: questions, words, units, and choices that all panels follow."""

from __future__ import annotations

import re
from itertools import combinations

from monitoring import list_panels, read_dashboard
from operator_series import read_operator_series

UNITS = {"s", "short", "percentunit", "bytes", "none", "suffix: jobs/s", "suffix: calls/s"}


def test_rows_are_the_questions_that_people_come_with() -> None:
    rows = [panel["title"] for panel in read_dashboard()["panels"] if panel["type"] == "row"]
    assert rows == ["Is it keeping up?", "What fails?", "Is there room?", "Is the operator healthy?"]


def test_a_person_chooses_data_source_namespace_and_pool() -> None:
    variables = read_dashboard()["templating"]["list"]
    assert [entry["name"] for entry in variables] == ["datasource", "namespace", "pool"]


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in list_panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"].endswith("."), panel["title"]
        assert unit in UNITS, panel["title"]
        for target in panel["targets"]:
            # A line that is called by its labels in braces tells nobody anything.
            assert target["legendFormat"], target["expr"]
            shows_seconds = re.search(r"_seconds(_bucket)?\b", target["expr"]) is not None
            assert (unit == "s") == shows_seconds, target["expr"]
            assert (unit == "bytes") == ("_bytes{" in target["expr"]), target["expr"]
            assert "rate(" in target["expr"] or not unit.startswith("suffix: "), target["expr"]


def test_every_panel_follows_the_choices() -> None:
    of_operator = {name for name, labels in read_operator_series().items() if "pool" not in labels}
    for target in (target for panel in list_panels() for target in panel["targets"]):
        assert target["datasource"]["uid"] == "${datasource}"
        asked = re.findall(r"\brrq_\w+", target["expr"])
        chosen = target["expr"].count('{namespace=~"$namespace", pool=~"$pool"')
        assert chosen == len([name for name in asked if name not in of_operator]), target["expr"]


def test_panels_lie_side_by_side() -> None:
    places = {panel["title"]: panel["gridPos"] for panel in read_dashboard()["panels"]}
    assert len(places) == len(read_dashboard()["panels"]), "two panels have the same title"
    assert all(place["x"] + place["w"] <= 24 for place in places.values())
    for (name, one), (other_name, other) in combinations(places.items(), 2):
        is_apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert is_apart, f"{name} lies over {other_name}"
    assert len({panel["id"] for panel in read_dashboard()["panels"]}) == len(places)
