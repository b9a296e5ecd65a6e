"""Which complaints about one thing are worth a line of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rrq_operator.redis import complaints
from rrq_operator.redis.complaints import Complaint

if TYPE_CHECKING:
    import pytest


def test_the_same_words_are_logged_once_and_changing_words_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(complaints, "monotonic", lambda: now)
    complaint = Complaint()
    logged = []
    for second in range(200):
        now = 1000.0 + second
        logged += [second] if complaint.is_news(f"error {second}") else []
    assert logged == [0, 60, 120, 180]
    now += 3600
    assert not complaint.is_news("error 180")
    complaint.said = ""
    assert complaint.is_news("error 180")
    complaint.said = ""
    assert not complaint.is_news("error 180"), "it comes and goes"
