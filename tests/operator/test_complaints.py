"""Which complaints about one thing are worth a line of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rrq_operator import complaints
from rrq_operator.complaints import Complaint

if TYPE_CHECKING:
    import pytest


def test_what_was_said_is_not_said_again_and_changing_words_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(complaints, "monotonic", lambda: now)
    complaint = Complaint()
    said = []
    for second in range(200):
        now = 1000.0 + second
        said += [second] if complaint.is_news(f"error {second}") else []
    assert said == [0, 60, 120, 180]
    now += 3600
    assert not complaint.is_news("error 180")
    complaint.is_over()
    assert complaint.is_news("error 180")
    complaint.is_over()
    assert not complaint.is_news("error 180"), "it comes and goes"
