"""What of a pool is worth an event, and what is written when."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from rrq.messages import Observation, QueueObservation
from rrq_operator import reporting
from rrq_operator.kube import KubeUnavailable
from rrq_operator.metrics import Metrics
from rrq_operator.reporting import Reporter
from rrq_operator.shell import Round, Shell
from rrq_operator.status import Condition
from rrq_operator.world import World, parse_record

BODY: dict[str, Any] = {
    "apiVersion": "rrq.dev/v1alpha1",
    "kind": "RRQWorkerPool",
    "metadata": {
        "namespace": "shop",
        "name": "emails",
        "uid": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-02T03:04:05Z",
    },
    "spec": {},
}


class FakeKube:
    """Takes what is written, or refuses it."""

    def __init__(self) -> None:
        self.is_away = False
        self.loses_answers = False
        self.written: list[dict[str, Any]] = []

    async def apply(self, path: str, manifest: dict[str, Any]) -> None:
        if self.is_away:
            raise KubeUnavailable("away")
        self.written.append(manifest["status"])
        if self.loses_answers:
            raise KubeUnavailable("timeout")


class FakeEvents:
    def __init__(self) -> None:
        self.is_away = False
        self.told: list[str] = []

    async def tell(
        self, key: Any, uid: str, reason: str, message: str, now: float, *, is_warning: bool
    ) -> bool:
        if not self.is_away:
            self.told.append(f"{reason}!" if is_warning else reason)
        return not self.is_away


class Desk:
    """A reporter and what comes of it."""

    def __init__(self) -> None:
        self.kube, self.events, self.world = FakeKube(), FakeEvents(), World()
        self.world.set_pool(parse_record(BODY))
        self.metrics = Metrics()
        self.shell = Shell(self.kube, self.world, self.events, self.metrics)  # type: ignore[arg-type]  # both are stand-ins
        self.reporter = Reporter(("shop", "emails"), self.shell)

    async def say(self, *conditions: Condition, **status: Any) -> bool:
        """Take in what is to be said, and say it if it is time; returns whether it was."""
        self.reporter.note(Round(self.world.pools["shop", "emails"]), status, conditions)
        has_news = self.reporter.has_news
        if has_news:
            await self.reporter.write()
        return has_news


@pytest.fixture
def desk() -> Desk:
    return Desk()


def ready(reason: str, status: bool = False) -> Condition:
    return Condition("Ready", status, reason, f"because of {reason}")


async def test_trouble_is_told_once_and_so_is_its_end(desk: Desk) -> None:
    await desk.say(ready("Growing"))
    await desk.say(ready("ImagePullBackOff"))
    await desk.say(ready("RollingOut"))
    await desk.say(ready("ImagePullBackOff"))
    await desk.say(ready("AsDesired", True))
    await desk.say(ready("RollingOut"))
    await desk.say(ready("AsDesired", True))
    assert desk.events.told == ["ImagePullBackOff!", "AsDesired"]


@pytest.mark.parametrize(
    ("held", "status", "age"),
    [
        ({"a": 0, "b": 0}, {"due": 5, "held": 0}, 90.0),
        ({"a": 0, "b": 3}, {"due": 5, "held": 3}, 20.0),
        ({"a": 0, "b": 0}, {"due": 5, "held": 5}, 0.0),
    ],
    ids=["nothing is held", "the oldest is held", "the pool is on hold"],
)
def test_what_is_held_back_does_not_count_as_behind(
    desk: Desk, held: dict[str, int], status: dict[str, int], age: float
) -> None:
    queues = {
        "a": QueueObservation(2, 0, 0, 20.0, None, held["a"]),
        "b": QueueObservation(3, 0, 0, 90.0, None, held["b"]),
    }
    record = desk.world.pools["shop", "emails"]
    desk.reporter.note(Round(record, seen=Observation(0, queues)), status, [])
    figures = desk.metrics.expose().decode()
    assert f'rrq_operator_oldest_due_age_seconds{{namespace="shop",pool="emails"}} {age}' in figures
    assert f'rrq_operator_held_jobs{{namespace="shop",pool="emails"}} {status["held"]}.0' in figures


def test_each_figure_of_the_status_is_a_metric(desk: Desk) -> None:
    told = {"due": 5, "held": 1, "orphaned": 2, "dueSoon": 3, "later": 4, "busy": 6}
    status = {**told, "desiredReplicas": 7, "readyReplicas": 8}
    desk.reporter.note(Round(desk.world.pools["shop", "emails"], seen=Observation(0, {})), status, [])
    lines = [line for line in desk.metrics.expose().decode().splitlines() if 'pool="emails"' in line]
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    figures = {
        "due_jobs": 5, "held_jobs": 1, "orphaned_jobs": 2, "scheduled_jobs": 7, "busy_jobs": 6,
        "desired_replicas": 7, "ready_replicas": 8,
    }  # fmt: skip
    assert found == {f"rrq_operator_{name}": value for name, value in figures.items()}


async def test_a_pool_on_hold_is_told_of_once_and_so_is_its_end(desk: Desk) -> None:
    def active(reason: str) -> Condition:
        return Condition("ScalingActive", reason == "Idle", reason, f"because of {reason}")

    for reason in (
        "Idle",
        "OnHold",
        "OnHold",
        "QueueUnreadable",
        "OnHold",
        "Paused",
        "OnHold",
        "Idle",
        "Idle",
    ):
        await desk.say(active(reason), lastDecision={"reason": reason})
    assert desk.events.told == ["OnHold", "Resumed"]


async def test_an_operator_that_starts_knows_from_the_status_that_a_pool_was_on_hold(desk: Desk) -> None:
    body = BODY | {"status": {"lastDecision": {"reason": "OnHold"}}}
    desk.world.set_pool(parse_record(body))
    await desk.say(lastDecision={"reason": "OnHold"})
    assert desk.events.told == []
    await desk.say(lastDecision={"reason": "Idle"})
    assert desk.events.told == ["Resumed"]


class Clock:
    """A minute passes in no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(reporting, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def limited(status: bool) -> Condition:
    return Condition("ScalingLimited", status, "AtMaximum" if status else "WithinLimits", "words")


async def test_figures_of_a_busy_pool_are_written_every_15_seconds(desk: Desk, clock: Clock) -> None:
    written = []
    for second in range(61):
        reason = ("Backlog", "JobsRunning", "Idle")[second % 3]
        active = Condition("ScalingActive", True, reason, f"because of {reason}")
        if await desk.say(active, ready("AsDesired", True), due=second, reason=reason):
            written.append(second)
        clock.now += 1
    assert written == [0, 15, 30, 45, 60]


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 2},
        {"readyReplicas": 2},
        {"desiredReplicas": 2},
        {"observedGeneration": 2},
        {"job": {"runs": 2}},
    ],
    ids=str,
)
async def test_a_size_and_the_state_of_a_run_are_written_at_once(desk: Desk, change: dict[str, Any]) -> None:
    assert await desk.say(ready("AsDesired", True), due=1)
    assert await desk.say(ready("AsDesired", True), due=1, **change)


async def test_another_fault_is_written_at_once_and_other_words_for_it_are_not(desk: Desk) -> None:
    def reachable(reason: str, words: str) -> Condition:
        return Condition("QueueReachable", False, reason, words)

    assert await desk.say(reachable("Unreachable", "timeout"))
    assert await desk.say(reachable("AuthenticationFailed", "wrong password"))
    assert not await desk.say(reachable("AuthenticationFailed", "wrong user"))


async def test_a_limit_that_comes_and_goes_with_the_work_waits_for_the_figures(
    desk: Desk, clock: Clock
) -> None:
    assert await desk.say(limited(False))
    clock.now += 1
    assert await desk.say(limited(True)), "the first time at once"
    for second in range(14):
        clock.now += 1
        assert not await desk.say(limited(second % 2 == 1))
    clock.now += 1
    assert await desk.say(limited(False))
    clock.now += 16
    assert await desk.say(limited(True)), "at once again"


async def test_a_hundred_busy_pools_share_their_writes(desk: Desk, clock: Clock) -> None:
    keys = [("shop", f"pool-{number}") for number in range(100)]
    for _, name in keys:
        desk.world.set_pool(parse_record(BODY | {"metadata": BODY["metadata"] | {"name": name, "uid": name}}))
    reporters = {key: Reporter(key, desk.shell) for key in keys}
    written: dict[Any, list[int]] = {key: [] for key in keys}
    for second in range(150):
        for number, (key, reporter) in enumerate(reporters.items()):
            conditions = [ready("AsDesired", True), limited((second + number) % 3 == 0)]
            reporter.note(Round(desk.world.pools[key]), {"replicas": 1, "due": second}, conditions)
            if reporter.has_news:
                await reporter.write()
                written[key].append(second)
        clock.now += 1
    # At first each has something that is written at once.
    assert sum(second >= 15 for one in written.values() for second in one) <= 2 * (150 - 15)
    gaps = [later - earlier for one in written.values() for earlier, later in pairwise(one)]
    assert len(gaps) >= 100
    assert max(gaps) <= 95, "every pool has its turn"


async def test_a_condition_of_a_quiet_pool_beside_a_busy_one_is_written_at_once(
    desk: Desk, clock: Clock
) -> None:
    assert await desk.say(limited(False))
    clock.now += 1
    assert await desk.say(limited(True))
    clock.now += 3
    assert not await desk.say(limited(False)), "the busy pool has its next turn later"
    quiet = Reporter(("shop", "reports"), desk.shell)
    body = BODY | {"metadata": BODY["metadata"] | {"name": "reports", "uid": "2"}}
    this_round = Round(parse_record(body))
    quiet.note(this_round, {}, [limited(False)])
    await quiet.write()
    quiet.note(this_round, {}, [limited(True)])
    assert quiet.has_news


async def test_a_new_leader_does_not_renew_all_figures_at_once(desk: Desk, clock: Clock) -> None:
    status = {"replicas": 1, "due": 1}
    keys = [("shop", f"pool-{number}") for number in range(30)]
    for _, name in keys:
        body = BODY | {"metadata": BODY["metadata"] | {"name": name, "uid": name}, "status": status}
        desk.world.set_pool(parse_record(body))
    for key in keys:
        reporter = Reporter(key, desk.shell)
        reporter.note(Round(desk.world.pools[key]), status | {"due": 2}, [])
        if reporter.has_news:
            await reporter.write()
    assert len(desk.kube.written) == 1


async def test_a_status_whose_answer_was_lost_is_corrected_when_the_pool_is_as_before(desk: Desk) -> None:
    assert await desk.say(ready("AsDesired", True), replicas=1)
    desk.kube.loses_answers = True
    assert await desk.say(ready("Growing"), replicas=2)
    assert await desk.say(ready("AsDesired", True), replicas=1), "this answer is lost as well"
    desk.kube.loses_answers = False
    assert await desk.say(ready("AsDesired", True), replicas=1)
    assert [status["replicas"] for status in desk.kube.written] == [1, 2, 1, 1]
    assert not await desk.say(ready("AsDesired", True), replicas=1)


async def test_figures_whose_answer_was_lost_are_corrected_with_the_next_figures(
    desk: Desk, clock: Clock
) -> None:
    assert await desk.say(ready("AsDesired", True), due=1)
    clock.now += 15
    desk.kube.loses_answers = True
    assert await desk.say(ready("AsDesired", True), due=2)
    desk.kube.loses_answers = False
    assert not await desk.say(ready("AsDesired", True), due=1)
    clock.now += 15
    assert await desk.say(ready("AsDesired", True), due=1)
    assert [status["due"] for status in desk.kube.written] == [1, 2, 1]


async def test_what_changes_while_a_report_is_written_is_not_forgotten(desk: Desk) -> None:
    reporter, record = desk.reporter, desk.world.pools["shop", "emails"]
    reporter.note(Round(record), {"due": 1}, [ready("AtZero", True)])
    written = desk.kube.apply

    async def apply(path: str, manifest: dict[str, Any]) -> None:
        reporter.note(Round(record), {"due": 2}, [ready("Growing")])
        await written(path, manifest)

    desk.kube.apply = apply  # type: ignore[method-assign]  # the pool is looked at in the middle of a write
    await reporter.write()
    desk.kube.apply = written  # type: ignore[method-assign]  # as before
    assert reporter.has_news
    await reporter.write()
    assert [status["due"] for status in desk.kube.written] == [1, 2]


async def test_messages_that_could_not_be_written_are_written_later_each_once(desk: Desk) -> None:
    await desk.say(ready("AtZero", True))
    desk.events.is_away = True
    for reason in ("Scaled", "RunFailed", "Scaled"):
        desk.reporter.say(reason, "words")
    assert await desk.say(ready("AtZero", True))
    assert not await desk.say(ready("AtZero", True)), "not at once again"
    desk.reporter.say("Scaled", "words")
    desk.events.is_away = False
    desk.reporter._next_message_at = 0.0  # as if the pause were over
    assert await desk.say(ready("AtZero", True))
    assert desk.events.told == ["Scaled", "RunFailed"]
    assert not await desk.say(ready("AtZero", True))
