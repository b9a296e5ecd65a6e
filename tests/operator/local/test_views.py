"""What local mode shows: pure, and once in a real terminal."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from rich.console import Console

from commandline import terminal
from local_mode import SUPPORT, build_manifest
from rrq.broker.messages import WorkerObservation
from rrq_operator.local.snapshot import EndedAttempts, History, LocalSnapshot, Sample, draw_chart
from rrq_operator.local.view import build_screen, describe
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = LocalSnapshot(
    name="shop",
    replicas=3,
    ready=2,
    desired=4,
    leaving=1,
    due=1200,
    later=5,
    busy=20,
    done=77,
    words="20 running + 1200 due, 100 per replica: 13 needed; maxReplicas allows 4",
    history=(Sample(0, 0), Sample(1220, 3), Sample(None, 3)),
)


@pytest.mark.parametrize(
    ("values", "chart"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 1000], "▁▂█"),
        ([7, None, 0], "█ ▁"),
        ([None], " "),
    ],
)
def test_a_chart_is_scaled_to_its_largest_value(values: list[int | None], chart: str) -> None:
    assert draw_chart(values) == chart


def test_a_minute_is_remembered_a_sample_a_second() -> None:
    history = History()
    for tenth in range(1200):
        history.add(Sample(tenth, 1), tenth / 10)
    assert len(history.samples) == 60
    assert history.samples[-1].depth == 1190


def test_ended_attempts_are_counted_over_the_coming_and_going_of_workers() -> None:
    def worker(incarnation: str, ended: int) -> WorkerObservation:
        return WorkerObservation("w", "pod", 0, 10, False, (), 0, incarnation, ended=ended)

    ended = EndedAttempts()
    ended.add([worker("a", 3), worker("b", 4)])
    ended.add([worker("b", 9)])
    ended.add([worker("c", 1)])
    assert ended.total == 13


def test_a_pool_in_one_line() -> None:
    assert describe(SHOWN) == (
        "shop: 2/3 (+1 leaving) ready, 4 wanted, 1200 due, 5 later, 20 busy, 77 attempts done: "
        "20 running + 1200 due, 100 per replica: 13 needed; maxReplicas allows 4"
    )


def test_what_redis_does_not_answer_is_shown_as_unknown() -> None:
    unread = replace(SHOWN, due=None, later=None, busy=None)
    assert "? due, ? later, ? busy, 77 attempts done" in describe(unread)


def test_a_screen_has_figures_words_charts_and_events() -> None:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  for this test only
    events = [f"event {number}" for number in range(20)]
    with console.file:
        console.print(build_screen([SHOWN], [*events, "evil \x1b[31m"], "Ctrl+C drains and ends"))
        text = console.export_text()
    for words in (
        "2/3 (+1 leaving)",
        "1,200",
        "maxReplicas allows 4",
        "▁█",
        "max 1,220",
        "event 19",
        "Ctrl+C",
    ):
        assert words in text
    assert "event 3\n" not in text
    assert "\x1b" not in text


@pytest.mark.slow
async def test_a_terminal_shows_the_pool_live_and_ctrl_c_ends_it(tmp_path: Path, redis_dsn: str) -> None:
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(yaml.safe_dump(build_manifest(scaling={"minReplicas": 1})))
    environment = {"POD_LEDGER": str(tmp_path / "ledger"), "PYTHONPATH": str(SUPPORT)}
    arguments = ("local", "-f", str(manifest), "--redis-url", redis_dsn)
    with terminal(environment, *arguments, module="rrq_operator") as shown:
        await eventually(lambda: "1/1" in shown.text, 60, "no replica was shown ready")
        # The rest of the screen may still be on its way.
        await eventually(lambda: "at least 1 by the spec" in shown.text)
        await eventually(lambda: "grows from 0 to 1" in shown.text)
        shown.press_ctrl_c()
        assert shown.wait() == 0
        assert "ended" in shown.text
