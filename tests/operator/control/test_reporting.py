"""What of a pool is worth an event, and what is written when."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from rrq_operator.api.pool_status import Condition, PoolStatus
from rrq_operator.cluster.cluster_cache import ClusterCache, parse_record
from rrq_operator.cluster.kube import KubeUnavailable
from rrq_operator.control import reporting
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.reporting import PoolReporter
from rrq_operator.control.services import Services

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
        self.takes_events = True
        self.written: list[dict[str, Any]] = []
        self.events: list[str] = []
        """The reasons of the events, those of warnings with an exclamation mark."""

    async def apply(self, path: str, manifest: dict[str, Any]) -> None:
        if self.is_away:
            raise KubeUnavailable("away")
        self.written.append(manifest["status"])
        if self.loses_answers:
            raise KubeUnavailable("timeout")

    async def create(self, path: str, event: dict[str, Any]) -> None:
        if not self.takes_events:
            raise KubeUnavailable("away")
        self.events.append(f"{event['reason']}!" if event["type"] == "Warning" else event["reason"])


class Desk:
    """A reporter and what comes of it."""

    def __init__(self, **status: Any) -> None:
        self.kube, self.cluster_cache, self.metrics = FakeKube(), ClusterCache(), Metrics()
        self.services = Services(self.kube, self.cluster_cache, self.metrics)  # type: ignore[arg-type]  # a stand-in
        self.reporter = PoolReporter(parse_record(BODY | {"status": status}), self.services)

    async def say(self, *conditions: Condition, **status: Any) -> bool:
        """Take in what is to be said, and say it if it is time; returns whether it was."""
        return await write(self.reporter, build_status(*conditions, **status))


async def write(reporter: PoolReporter, status: PoolStatus) -> bool:
    reporter.note(status)
    has_news = reporter.has_news
    if has_news:
        await reporter.write()
    return has_news


def build_status(*conditions: Condition, **status: Any) -> PoolStatus:
    return PoolStatus.model_validate(status | {"conditions": list(conditions)})


@pytest.fixture
def desk() -> Desk:
    return Desk()


def condition(kind: str, status: bool, reason: str, message: str = "words") -> Condition:
    return Condition(
        type=kind,
        status="True" if status else "False",
        reason=reason,
        message=message,
        last_transition_time=datetime(2026, 1, 2, tzinfo=UTC),
    )


def ready(reason: str, status: bool = False) -> Condition:
    return condition("Ready", status, reason, f"because of {reason}")


async def test_trouble_makes_one_event_and_so_does_its_end(desk: Desk) -> None:
    await desk.say(ready("Growing"))
    await desk.say(ready("ImagePullBackOff"))
    await desk.say(ready("RollingOut"))
    await desk.say(ready("ImagePullBackOff"))
    await desk.say(ready("AsDesired", True))
    await desk.say(ready("RollingOut"))
    await desk.say(ready("AsDesired", True))
    assert desk.kube.events == ["ImagePullBackOff!", "AsDesired"]


async def test_a_pause_makes_one_event_and_so_does_its_end(desk: Desk) -> None:
    def active(reason: str) -> Condition:
        return condition("ScalingActive", reason == "Idle", reason, f"because of {reason}")

    for reason in (
        "Idle",
        "Paused",
        "Paused",
        "QueueUnreadable",
        "Paused",
        "Frozen",
        "Paused",
        "Idle",
        "Idle",
    ):
        await desk.say(active(reason), lastDecision={"reason": reason})
    assert desk.kube.events == ["Paused", "Resumed"]


async def test_an_operator_that_starts_knows_from_the_status_that_a_pool_was_paused() -> None:
    desk = Desk(lastDecision={"reason": "Paused"})
    await desk.say(lastDecision={"reason": "Paused"})
    assert desk.kube.events == []
    await desk.say(lastDecision={"reason": "Idle"})
    assert desk.kube.events == ["Resumed"]


class Clock:
    """A minute passes in no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(reporting, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def limited(status: bool) -> Condition:
    return condition("ScalingLimited", status, "AtMaximum" if status else "WithinLimits")


async def test_figures_of_a_busy_pool_are_written_every_15_seconds(desk: Desk, clock: Clock) -> None:
    written = []
    for second in range(61):
        reason = ("Backlog", "JobsRunning", "Idle")[second % 3]
        active = condition("ScalingActive", True, reason, f"because of {reason}")
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
        return condition("QueueReachable", False, reason, words)

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


def build_reporter(desk: Desk, name: str, **status: Any) -> PoolReporter:
    """Return the reporter of another pool of the same operator."""
    body = BODY | {"metadata": BODY["metadata"] | {"name": name, "uid": name}, "status": status}
    return PoolReporter(parse_record(body), desk.services)


async def test_a_hundred_busy_pools_share_their_writes(desk: Desk, clock: Clock) -> None:
    reporters = [build_reporter(desk, f"pool-{number}") for number in range(100)]
    written: list[list[int]] = [[] for _ in reporters]
    for second in range(150):
        for number, reporter in enumerate(reporters):
            conditions = [ready("AsDesired", True), limited((second + number) % 3 == 0)]
            if await write(reporter, build_status(*conditions, replicas=1, due=second)):
                written[number].append(second)
        clock.now += 1
    # At first each has something that is written at once.
    assert sum(second >= 15 for one in written for second in one) <= 2 * (150 - 15)
    gaps = [later - earlier for one in written for earlier, later in pairwise(one)]
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
    quiet = build_reporter(desk, "reports")
    assert await write(quiet, build_status(limited(False)))
    quiet.note(build_status(limited(True)))
    assert quiet.has_news


async def test_a_new_leader_does_not_renew_all_figures_at_once(desk: Desk, clock: Clock) -> None:
    for number in range(30):
        reporter = build_reporter(desk, f"pool-{number}", replicas=1, due=1)
        await write(reporter, build_status(replicas=1, due=2))
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
    desk.reporter.note(build_status(ready("AtZero", True), due=1))
    written = desk.kube.apply

    async def apply(path: str, manifest: dict[str, Any]) -> None:
        desk.reporter.note(build_status(ready("Growing"), due=2))
        await written(path, manifest)

    desk.kube.apply = apply  # type: ignore[method-assign]  # the pool is looked at in the middle of a write
    await desk.reporter.write()
    desk.kube.apply = written  # type: ignore[method-assign]  # as before
    assert desk.reporter.has_news
    await desk.reporter.write()
    assert [status["due"] for status in desk.kube.written] == [1, 2]


async def test_messages_that_could_not_be_written_are_written_later_each_once(desk: Desk) -> None:
    await desk.say(ready("AtZero", True))
    desk.kube.takes_events = False
    for reason in ("Scaled", "RunFailed", "Scaled"):
        desk.reporter.say(reason, "words")
    assert await desk.say(ready("AtZero", True))
    assert not await desk.say(ready("AtZero", True)), "not at once again"
    desk.reporter.say("Scaled", "words")
    desk.kube.takes_events = True
    desk.reporter._events._next_at = 0.0  # as if the pause were over
    assert await desk.say(ready("AtZero", True))
    assert desk.kube.events == ["Scaled", "RunFailed"]
    assert not await desk.say(ready("AtZero", True))
