"""Story 6: the operator is killed, fails over and is upgraded while pools run, and no pool notices.

`SteadyPool` asserts the second half: same pods, none restarted, never another size, each job run once. A pool at zero
shows the first: its jobs get no pod unless somebody leads.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import pytest

from earlier_chart import extract_earlier_chart
from operator_release import OperatorRelease, Takeover, find_takeover
from pool_definition import read_trouble
from steady_pool import SteadyPool
from story_watch import Watch
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from control_plane import Cluster
    from helm_client import Helm
    from pools import PoolDesk
    from story import Story

pytestmark = pytest.mark.timeout(420)

# Promised by the chart for two replicas: from the last sign of life of one leader to the first of the next.
TAKEOVER_SECONDS = 8.0


@pytest.fixture
def operator(desk: PoolDesk) -> OperatorRelease:
    return OperatorRelease.of(desk)


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Keeps a figure for the report, and shows it with `pytest -s -n 0`."""

    def note(what: str, seconds: float) -> None:
        record_property(what, round(seconds, 2))
        sys.stdout.write(f"{what}: {seconds:.2f} s\n")

    return note


async def wake(story: Story, pool: str = "asleep") -> float:
    """Give a pool at zero one job; return how long it took until it was done."""
    began_at = time.monotonic()
    await story.wait_until_finished(90, await story.enqueue(queue=pool))
    return time.monotonic() - began_at


async def go_to_sleep(story: Story, pool: str = "asleep") -> None:
    story.apply_pool(pool, scaling={"scaleDown": {"windowSeconds": 1}})
    await eventually(lambda: story.desk.replicas(pool) == 0, 60, f"{pool} is not at zero")
    await story.wait_for_pods(0, pool)


async def test_an_operator_that_was_killed_or_taken_away_comes_back_and_no_pool_notices(
    story: Story, operator: OperatorRelease, note: Callable[[str, float], None]
) -> None:
    await go_to_sleep(story)
    async with SteadyPool(story) as steady:
        pod = await operator.wait_for_leader()
        before = operator.leader()
        killed_at = time.time()
        await asyncio.to_thread(operator.kill, pod)  # jobs are enqueued meanwhile
        note("killed: first job of a pool at zero", await wake(story))
        again = await operator.wait_for_leader(not_this=before)
        assert again["metadata"]["uid"] == pod["metadata"]["uid"], "it was restarted in its pod"
        await operator.wait_until_restarted(pod)
        assert await steady.started_between(killed_at, time.time()), "workers claim without the operator"

        await story.wait_for_pods(0, "asleep")
        operator.remove(again, "--force", "--grace-period=0")
        note("taken away: first job of a pool at zero", await wake(story))
        another = await operator.wait_for_leader()
        assert another["metadata"]["uid"] != pod["metadata"]["uid"]


async def test_the_second_operator_takes_over_within_seconds(
    story: Story,
    operator: OperatorRelease,
    install: Callable[..., None],
    note: Callable[[str, float], None],
) -> None:
    install(replicas=2)
    await go_to_sleep(story)
    async with SteadyPool(story), Watch(operator.desk, "lease") as leases:
        for how in ("killed", "deleted"):
            pod = await operator.wait_for_leader(count=2)
            before = operator.leader()
            end = operator.kill if how == "killed" else operator.remove
            await asyncio.to_thread(end, pod)  # jobs are enqueued meanwhile

            def other_leads(before: str = before) -> Takeover | None:
                return find_takeover(leases.changes, before)

            takeover = await eventually(other_leads, 60, "nobody took over")
            assert takeover is not None
            note(f"leader {how}: the other leads", takeover.seconds)
            assert takeover.seconds < TAKEOVER_SECONDS
            assert takeover.leader.rpartition("_")[0] != pod["metadata"]["name"]
            note(f"leader {how}: first job of a pool at zero after that", await wake(story))
            await story.wait_for_pods(0, "asleep")


async def test_an_upgrade_of_the_chart_disturbs_no_pool(
    story: Story,
    cluster: Cluster,
    helm: Helm,
    operator: OperatorRelease,
    install: Callable[..., None],
    tmp_path: Path,
    note: Callable[[str, float], None],
    remark: Callable[[str], None],
) -> None:
    earlier = extract_earlier_chart(tmp_path, helm, {})
    if earlier is None:
        pytest.skip(
            "git has no earlier chart that makes other objects than the present one: a shallow clone?"
        )
    chart, commit, changed = earlier
    remark(f"upgraded from the chart of {commit[:12]}, which has another {', '.join(changed)}")
    # So that the operator is another one afterwards also where the charts differ in something else, as with an image.
    install(chart=chart, podAnnotations={"story": "before"})
    await go_to_sleep(story)
    async with SteadyPool(story):
        pod = await operator.wait_for_leader()
        before = operator.leader()
        began_at = time.monotonic()
        await asyncio.to_thread(install, podAnnotations={"story": "after"})  # jobs are enqueued meanwhile
        note("helm upgrade", time.monotonic() - began_at)
        after = await operator.wait_for_leader(not_this=before)
        assert after["metadata"]["annotations"]["story"] == "after"
        assert after["metadata"]["uid"] != pod["metadata"]["uid"]
        note("upgraded: first job of a pool at zero", await wake(story))
        assert read_trouble(cluster) == []
        story.apply_pool("asleep", scaling={"maxReplicas": 3})
        await eventually(
            lambda: is_observed(story, "asleep"), 60, "the status does not go on", interval_seconds=0.3
        )


def is_observed(story: Story, pool: str) -> bool:
    found = story.desk.get("rrqpool", pool)
    return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])
