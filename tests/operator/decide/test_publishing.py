"""Which reports on pools are published: new ones, not too often, and again until that is confirmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rrq.flow import PoolReport
from rrq_operator.decide.publishing import Publication, Publisher

IDLE = PoolReport("shop/emails", "Deployment", ("default",), 1, 1, 1, 0, 0, 0, "Idle", "nothing is due", 0)


class Confirmed:
    """A publisher whose every publication is confirmed."""

    def __init__(self) -> None:
        self.publisher = Publisher()

    def at(self, now: float, *reports: PoolReport) -> Publication:
        for report in reports:
            self.publisher.note(replace(report, at_ms=int(now * 1000)))
        published = self.publisher.take(now)
        self.publisher.confirm(published, now)
        return published


def names(published: Publication) -> list[str]:
    return [report.pool for report in published.reports]


def test_a_new_pool_is_published_with_an_entry_in_its_history() -> None:
    published = Confirmed().at(0, IDLE)
    assert (names(published), sorted(published.decided)) == (["shop/emails"], ["shop/emails"])


@pytest.mark.parametrize(
    ("change", "after_seconds", "is_published", "is_decision"),
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
def test_changes_are_published_once_a_second_and_enter_the_history_less_often(
    change: dict[str, Any], after_seconds: float, is_published: bool, is_decision: bool
) -> None:
    publisher = Confirmed()
    publisher.at(0, IDLE)
    published = publisher.at(after_seconds, replace(IDLE, **change))
    assert (bool(published.reports), bool(published.decided)) == (is_published, is_decision)


def test_an_unconfirmed_report_is_published_again() -> None:
    publisher = Publisher()
    publisher.note(IDLE)
    assert publisher.take(0) == publisher.take(0.01)
    publisher.confirm(publisher.take(0.02), 0.02)
    assert not publisher.take(0.03)


def test_a_pool_that_left_is_removed_until_that_is_confirmed() -> None:
    publisher = Publisher()
    publisher.note(IDLE)
    published = publisher.take(0)
    publisher.forget("shop/emails")
    publisher.confirm(published, 0)
    gone = publisher.take(1)
    assert (gone.reports, gone.gone) == ((), ("shop/emails",))
    publisher.confirm(gone, 1)
    assert not publisher.take(2)
    publisher.note(IDLE)
    again = publisher.take(3)
    assert (names(again), again.gone) == (["shop/emails"], ()), "made anew under its name"


def test_only_pools_that_were_not_published_for_long_count_as_gone() -> None:
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
