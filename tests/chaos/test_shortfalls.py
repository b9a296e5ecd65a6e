"""A run that did less than it was meant to, or whose own processes failed, says so."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import chaos_world
from chaos_config import full_config, short_config
from chaos_ledger import KILLED, LedgerWriter
from chaos_network import Network
from chaos_pods import PodPlace
from chaos_processes import read_producers
from chaos_producer import Producer
from chaos_world import World
from fault_plan import PlannedFault
from injected import MAIN, HalfDone, Injected
from shortfalls import find_shortfalls
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_with_nearly_all_its_faults_and_all_its_jobs_lacks_nothing() -> None:
    assert list(find_shortfalls(40, 38, 0, 100, 100)) == []
    assert list(find_shortfalls(40, 35, 5, 0, 7)) == []


def test_a_run_with_too_few_faults_or_jobs_says_so() -> None:
    assert list(find_shortfalls(40, 37, 0, 0, 7)) == ["only 37 of 40 planned faults were injected"]
    assert list(find_shortfalls(40, 40, 0, 100, 99)) == ["only 99 of 100 planned jobs were acknowledged"]


def test_producers_that_fared_well_are_no_complaint() -> None:
    assert read_producers(MAIN, json.dumps({"refused": 7, "crashes": []}), []) == (7, [])


@pytest.mark.parametrize(
    ("said", "exit_codes", "complaint"),
    [
        (json.dumps({"refused": 0, "crashes": ["KeyError('x')"]}), [], "KeyError('x')"),
        (json.dumps({"refused": 0, "crashes": []}), [-11], "ended with -11"),
        ("", [], "did not say"),
    ],
    ids=["an exception", "a death", "no last word"],
)
def test_producers_that_failed_by_themselves_are_a_complaint(
    said: str, exit_codes: list[int], complaint: str
) -> None:
    _, (found,) = read_producers(MAIN, said, exit_codes)
    assert complaint in found


async def test_a_producer_keeps_the_exceptions_that_nobody_expected() -> None:
    class Broken:
        async def enqueue(self, *_: Any, **__: Any) -> None:
            raise KeyError("unexpected")

        async def close(self) -> None:
            pass

    options = {"dsn": "redis://127.0.0.1:1", "queues": ["q"], "producers": 1, "rate": 100.0, "seed": 1}
    options |= {"socket_timeout_seconds": 1.0, "job_timeout_seconds": 10}
    producer = Producer(options, 0, SimpleNamespace(record=lambda *_: None))  # type: ignore[arg-type]
    producer._client = Broken()  # type: ignore[assignment]
    is_over = asyncio.Event()
    running = asyncio.create_task(producer.run(is_over))
    await eventually(lambda: bool(producer.crashes), message="nothing was kept")
    is_over.set()
    await running
    assert producer.crashes[0] == "KeyError('unexpected')"


async def test_a_fault_whose_aftermath_failed_is_recorded_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Injected(1, "fail-over", MAIN, 1.0, 2.0, is_outage=True)

    async def half(*_: Any) -> Injected | None:
        raise HalfDone(done) from TimeoutError("the replica never caught up")

    monkeypatch.setitem(chaos_world.FAULTS, "fail-over", half)
    world: Any = SimpleNamespace(faults=[], missed=[], complaints=[])
    await World._inject(world, PlannedFault(1, 0.0, "fail-over", 0.5, 0.5))
    assert world.faults == [done]
    assert "the replica never caught up" in world.complaints[0]


@pytest.mark.parametrize(
    ("killed", "killed_by_job", "complaints"),
    [({7}, set(), 0), (set(), {7}, 0), (set(), {8}, 1)],
    ids=["by a fault", "by a job", "by itself"],
)
def test_a_pod_that_ended_is_a_complaint_unless_a_fault_or_a_job_killed_it(
    tmp_path: Path, killed: set[int], killed_by_job: set[int], complaints: int
) -> None:
    place = PodPlace("pod-1", "redis://127.0.0.1:1", tmp_path, short_config(1), ["own"], network=Network())
    ended: Any = SimpleNamespace(pid=7, process=SimpleNamespace(poll=lambda: -11))
    place._pods.append(ended)
    place.killed = killed
    place._note_end()
    ledger = LedgerWriter(tmp_path / "ledger")
    for pid in killed_by_job:
        ledger.record(KILLED, "bad", 1, pid)
    ledger.close()
    assert len(place.unexplained_ends()) == complaints


@pytest.mark.parametrize("config", [short_config(1), full_config(1)], ids=["short", "full"])
def test_a_renewal_that_is_lost_in_a_short_silence_leaves_time_for_the_next(config: Any) -> None:
    longest_retry_seconds = 0.75
    spent_seconds = config.lease_seconds / 3 + config.socket_timeout_seconds + longest_retry_seconds
    assert spent_seconds < config.lease_seconds - 0.4
    assert config.socket_timeout_seconds > 0.1 * config.lease_seconds


@pytest.mark.parametrize("config", [short_config(1), full_config(1)], ids=["short", "full"])
def test_a_process_that_stops_keeps_its_lease_for_about_two_renewals(config: Any) -> None:
    two_renewals_seconds = config.lease_seconds * 2 / 3
    assert 0.7 * two_renewals_seconds < config.least_lease_left_seconds < two_renewals_seconds
