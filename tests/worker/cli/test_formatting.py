"""Values as text for people."""

from __future__ import annotations

from typing import Any

import pytest

from rrq.commands.formatting import (
    as_strict_json,
    describe_page,
    format_duration,
    format_ms,
    format_value,
    printable,
    shorten,
)
from rrq.commands.output import print_json
from rrq.commands.refusal import Refusal


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


def test_scores_are_milliseconds() -> None:
    assert format_ms(1_767_225_600_000) == "2026-01-01 00:00:00Z"
    assert format_ms(float("inf")) == "inf ms"


def test_long_text_is_cut() -> None:
    assert shorten("12345678", 8) == "12345678"
    assert shorten("123456789", 8) == "12345678..."
    assert shorten(None, 8) == "-"


def test_pages_are_counted_from_one() -> None:
    assert describe_page(20, 10, 100) == "Showing 21-30 of 100 jobs"
    assert describe_page(100, 0, 100) == "No jobs beyond --offset 100; there are 100"


def test_control_characters_are_spelled_out() -> None:
    assert printable("plain ü 漢") == "plain ü 漢"
    assert printable("a\tb\nc\x1b[0m\ud800\x9b") == "a b c\\x1b[0m\\ud800\\x9b"


def test_json_has_no_infinities() -> None:
    assert as_strict_json({1: [float("nan"), (1.5, float("-inf"))]}) == {"1": ["nan", [1.5, "-inf"]]}


def test_data_that_is_nested_too_deeply_is_told() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert format_value(deep) == "(nested too deeply)"
    with pytest.raises(Refusal, match="nested too deeply"):
        print_json(deep)
    # Python would take such a thing apart recursively as well, and not survive it.
    while deep:
        deep = deep.pop()
