"""What the story of an upgrade starts from: a chart that makes other objects, not one with other words or numbers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from earlier_chart import extract_earlier_chart, render
from helm_client import CHART

if TYPE_CHECKING:
    from pathlib import Path

    from helm_client import Helm

NOTHING: dict[str, object] = {}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The present chart, to be changed."""
    return shutil.copytree(CHART, tmp_path / "rrq")


def test_words_and_numbers_make_no_other_release(offline: Helm, copy: Path) -> None:
    rewrite(copy / "README.md", "# ", "# Another ")
    rewrite(copy / "Chart.yaml", "version: 1.0.0", "version: 2.0.0")
    assert render(offline, copy, NOTHING) == render(offline, CHART, NOTHING)


def test_another_probe_does(offline: Helm, copy: Path) -> None:
    rewrite(copy / "templates" / "deployment.yaml", "failureThreshold: 300", "failureThreshold: 200")
    assert render(offline, copy, NOTHING) != render(offline, CHART, NOTHING)


def test_the_chart_that_is_found_has_what_it_is_said_to_have_otherwise(offline: Helm, tmp_path: Path) -> None:
    found = extract_earlier_chart(tmp_path, offline, NOTHING)
    if found is None:
        pytest.skip(
            "git has no earlier chart that makes other objects than the present one: a shallow clone?"
        )
    chart, commit, changed = found
    assert len(commit) == 40
    earlier, present = render(offline, chart, NOTHING), render(offline, CHART, NOTHING)
    assert changed
    assert all(earlier.get(name) != present.get(name) for name in changed)


def rewrite(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
