"""Values as text for people."""

from __future__ import annotations

from typing import Any

import pytest

from rrq.commands.formatting import (
    format_duration,
    format_value,
    printable,
)
from rrq.commands.output import print_json
from rrq.commands.refusal import Refusal
from rrq.runtime.escaping import as_strict_json


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0123, "12ms"),
        (59.94, "59.9s"),
        (61, "1m 01s"),
        (3600 + 120, "1h 02m"),
        (86400 * 3 + 7200, "3d 02h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_control_characters_are_escaped() -> None:
    assert printable("plain ü 漢") == "plain ü 漢"
    assert printable("a\tb\nc\x1b[0m\ud800\x9b") == "a b c\\x1b[0m\\ud800\\x9b"


def test_json_has_no_infinities() -> None:
    assert as_strict_json({1: [float("nan"), (1.5, float("-inf"))]}) == {"1": ["nan", [1.5, "-inf"]]}


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert format_value(deep) == "(nested too deeply)"
    with pytest.raises(Refusal, match="nested too deeply"):
        print_json(deep)
    # Python would take such a thing apart recursively as well, and not survive it.
    while deep:
        deep = deep.pop()
