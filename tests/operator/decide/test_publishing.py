"""What Redis is told of pools: what is new, not too often, and again until it was heard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rrq.flow import PoolReport
from rrq_operator.decide.publishing import Publication, Publisher

IDLE = PoolReport("shop/emails", "Deployment", ("default",), 1, 1, 1, 0, 0, 0, "Idle", "nothing is due", 0)


class Told:
    """A publisher whose every word is heard."""

    def __init__(self) -> None:
        self.publisher = Publisher()

    def at(self, now: float, *reports: PoolReport) -> Publication:
        for report in reports:
            self.publisher.note(replace(report, at_ms=int(now * 1000)))
        told = self.publisher.take(now)
        self.publisher.confirm(told, now)
        return told


def names(told: Publication) -> list[str]:
    return [report.pool for report in told.reports]


def test_a_new_pool_is_told_of_and_noted_as_a_decision() -> None:
    told = Told().at(0, IDLE)
    assert (names(told), sorted(told.decided)) == (["shop/emails"], ["shop/emails"])


@pytest.mark.parametrize(
    ("change", "after_seconds", "is_told", "is_decision"),
    [
        ({}, 1, False, False),
        ({}, 59, False, False),
        ({}, 60, True, False),
        ({"due": 5}, 0.5, False, False),
        ({"due": 5}, 1, True, False),
        ({"due": 5, "words": "5 due"}, 14, True, False),
        ({"due": 5}, 15, True, True),
        ({"busy": 5}, 15, True, True),
        ({"blocked": 5}, 15, True, False),
        ({"desired": 2}, 0.5, False, False),
        ({"desired": 2}, 1, True, True),
        ({"replicas": 2}, 1, True, True),
        ({"ready": 0}, 1, True, True),
        ({"reason": "Backlog"}, 1, True, True),
        ({"is_paused": True}, 1, True, False),
    ],
)
def test_what_changed_is_told_once_a_second_and_noted_when_it_tells_something(
    change: dict[str, Any], after_seconds: float, is_told: bool, is_decision: bool
) -> None:
    publisher = Told()
    publisher.at(0, IDLE)
    told = publisher.at(after_seconds, replace(IDLE, **change))
    assert (bool(told.reports), bool(told.decided)) == (is_told, is_decision)


def test_what_was_not_heard_is_told_again() -> None:
    publisher = Publisher()
    publisher.note(IDLE)
    assert publisher.take(0) == publisher.take(0.01)
    publisher.confirm(publisher.take(0.02), 0.02)
    assert not publisher.take(0.03)


def test_a_pool_that_left_is_told_of_until_that_was_heard() -> None:
    publisher = Publisher()
    publisher.note(IDLE)
    told = publisher.take(0)
    publisher.forget("shop/emails")
    publisher.confirm(told, 0)
    gone = publisher.take(1)
    assert (gone.reports, gone.gone) == ((), ("shop/emails",))
    publisher.confirm(gone, 1)
    assert not publisher.take(2)
    publisher.note(IDLE)
    again = publisher.take(3)
    assert (names(again), again.gone) == (["shop/emails"], ()), "made anew under its name"


def test_only_pools_that_nobody_has_told_of_for_long_are_taken_for_gone() -> None:
    publisher = Publisher()
    publisher.note(IDLE)
    now_ms = 10_000_000
    published = [
        replace(IDLE, at_ms=0),
        replace(IDLE, pool="other/alive", at_ms=now_ms - 90_000),
        replace(IDLE, pool="other/deleted", at_ms=now_ms - 600_001),
    ]
    publisher.note_strangers(published, now_ms)
    assert publisher.take(0).gone == ("other/deleted",)
