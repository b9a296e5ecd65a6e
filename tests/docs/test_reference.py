"""The tables of docs/reference match the code and cover everything that users see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily
from pydantic_settings import BaseSettings

import commands_page
import keys_page
import metrics_page
import pool_page
import reference
import settings_page
from reference_text import Undescribed
from rrq.broker.keys import Keys
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from pathlib import Path

CODE = [reference.ROOT / "worker", reference.ROOT / "operator"]


def test_a_page_that_was_edited_by_hand_is_found(tmp_path: Path) -> None:
    assert reference.find_outdated(tmp_path) == list(reference.PAGES)
    reference.write_pages(tmp_path)
    assert reference.find_outdated(tmp_path) == []
    page = tmp_path / "keys.md"
    page.write_text(page.read_text().replace("sorted set", "list", 1))
    assert reference.find_outdated(tmp_path) == ["keys.md"]


def test_every_setting_is_in_exactly_one_section() -> None:
    groups = settings_page.group_by_comment(RRQSettings)
    assert [name for names in groups.values() for name in names] == list(RRQSettings.model_fields)


def test_settings_that_hold_code_have_no_variable() -> None:
    rows = {row[0]: row[1] for row in settings_page.list_settings(RRQSettings)}
    without = {name.strip("`") for name, variable in rows.items() if not variable}
    assert without == {"on_startup", "on_shutdown", "job_registry", "middleware"}


def test_lists_and_mappings_are_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page promises, also for entries that are our objects."""
    monkeypatch.setenv("RRQ_CRON_JOBS", '[{"function_name": "sweep", "schedule": "* * * * *"}]')
    monkeypatch.setenv("RRQ_LIMITS", '{"function:send": {"concurrency": 3}}')
    monkeypatch.setenv("RRQ_EVENT_HANDLERS", '["shop.hooks.Log"]')
    settings = RRQSettings()
    assert [entry.function_name for entry in settings.cron_jobs] == ["sweep"]
    assert settings.limits["function:send"].concurrency == 3
    assert settings.event_handlers == ["shop.hooks.Log"]


def test_an_entry_without_a_description_is_refused() -> None:
    class Incomplete(BaseSettings):
        untold: int = 2

    with pytest.raises(Undescribed, match="Setting untold has no description"):
        list(settings_page.list_settings(Incomplete))
    schema = {"properties": {"worker": {"description": "Pods.", "properties": {"image": {"type": "string"}}}}}
    with pytest.raises(Undescribed, match=r"Field worker\.image of a pool"):
        list(pool_page.list_fields(schema))
    with pytest.raises(Undescribed, match="Metric rrq_new"):
        list(metrics_page.list_metrics([GaugeMetricFamily("rrq_new", "", value=1)], {}))
    with pytest.raises(Undescribed, match="How long key job_key lives"):
        keys_page.read_key(Keys(), "job_key", "Hash with a job.")
    with pytest.raises(Undescribed, match="Command shop bare"):
        list(commands_page.render_program("shop bare", click.Command("bare")))


def test_every_variable_that_the_code_names_is_on_a_page() -> None:
    found = {
        name
        for folder in CODE
        for path in folder.rglob("*.py")
        for name in re.findall(r'"(RRQ_[A-Z_]+)"', path.read_text())
    }
    assert len(found) > 20
    pages = "".join((reference.FOLDER / name).read_text() for name in reference.PAGES)
    assert {name for name in found if f"`{name}`" not in pages} == set()


def test_every_variable_on_the_page_of_settings_is_read_somewhere() -> None:
    code = "".join(path.read_text() for folder in CODE for path in folder.rglob("*.py"))
    assert [name for name in settings_page.OTHER_VARIABLES if f'"{name}"' not in code] == []


def test_stars_and_angle_brackets_are_escaped() -> None:
    rows = dict(
        pool_page.list_rules({"x-kubernetes-validations": [{"message": "such as '*/5 * * * *' or <name>"}]})
    )
    assert list(rows.values()) == [r"such as '\*/5 \* \* \* \*' or &lt;name>"]
