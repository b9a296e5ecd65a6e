"""What a run tells: nothing is left unsaid, and only what stands between the marks of a page is replaced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from bars import Bars
from chaos_config import full_config, short_config
from chaos_ledger import EFFECT, STARTED, Entry
from chaos_report import BEGIN, END, build_tables, insert_tables, show, write_documents, write_json
from evidence import Evidence, PartState
from injected import MAIN, DueAgain, Injected, Sample
from verdict import judge

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def evidence() -> Evidence:
    return Evidence(
        acknowledged={MAIN: {"a": 100.0, "b": 100.1}},
        ledger=[
            Entry(STARTED, "a", 1, 7, 100.2),
            Entry(STARTED, "a", 1, 8, 101.2),
            Entry(EFFECT, "a", 1, 8, 101.4),
        ],
        faults=[
            Injected(1, "child killed", MAIN, 100.3, 100.3, (7,), cuts=True),
            Injected(2, "Redis shut down", MAIN, 105.0, 106.0, is_outage=True),
        ],
        states={MAIN: PartState({"a": "COMPLETED", "b": "PENDING"})},
        due_again=[DueAgain("child killed", 100.3, 0.04, 1)],
        samples=[Sample(100.0 + number, None if number == 5 else number % 3) for number in range(10)],
        load_begun_at=100.0,
        load_ended_at=110.0,
        jobs_per_second=10.0,
        lease_seconds=0.5,
        left_out=["clock faults: no libfaketime here"],
    )


def test_the_terminal_is_told_every_violation_and_what_was_left_out(evidence: Evidence) -> None:
    text = show(judge(evidence, Bars()))
    assert "VIOLATION: 1 acknowledged jobs are lost: b (main, now PENDING)" in text
    assert "left out: clock faults: no libfaketime here" in text
    assert "child killed" in text


def test_the_tables_name_command_and_seed_and_do_not_hide_a_broken_promise(evidence: Evidence) -> None:
    tables = build_tables(full_config(7), judge(evidence, Bars()))
    assert (
        'The full run, `make chaos ARGS="--full --seed 7"`: 2 acknowledged jobs in 10 s, 2 of 500 planned'
        in tables
    )
    assert "**Promises were broken:**" in tables
    assert "- 1 acknowledged jobs are lost" in tables
    assert "| **lost** | **1** |" in tables
    assert "| child killed | 1 | 1 | 0.90 / 0.90 / 0.90 s |" in tables


def test_the_tables_do_not_pass_off_a_short_run_as_the_full_one(evidence: Evidence) -> None:
    tables = build_tables(short_config(7), judge(evidence, Bars()))
    assert tables.startswith("A short run, ")
    assert "lease 3 s. The bars on times were stretched by 1.5." in tables
    assert "due again after a whole pod's death (none could be measured) | - |" in tables


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"# Title\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n"
    once = insert_tables(page, "new\n")
    assert once == f"# Title\n\nBefore.\n\n{BEGIN}\n\nnew\n\n{END}\n\nAfter.\n"
    assert insert_tables(once, "new\n") == once


def test_a_page_without_its_marks_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="has lost its marks"):
        insert_tables("# Title\n", "new")


def test_the_documents_are_a_page_its_figures_and_a_plot_that_is_well_formed(
    tmp_path: Path, evidence: Evidence
) -> None:
    write_documents(tmp_path, full_config(7), evidence, judge(evidence, Bars()))
    assert BEGIN in (tmp_path / "reliability.md").read_text()
    assert json.loads((tmp_path / "reliability.json").read_text())["report"]["lost"] == 1
    plot = ElementTree.parse(tmp_path / "img" / "chaos.svg").getroot()
    titles = [element.text for element in plot.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["child killed", "Redis shut down"]
    assert len([one for one in plot.iter() if one.get("class") == "shade"]) == 1


def test_the_json_has_times_from_the_begin_of_the_load(tmp_path: Path, evidence: Evidence) -> None:
    write_json(tmp_path / "report.json", short_config(3), evidence, judge(evidence, Bars()))
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["config"]["seed"] == 3
    assert told["faults"][1]["begun_at"] == 5.0
    assert told["backlog"][5] == [5.0, None]
    assert told["report"]["lost"] == 1
