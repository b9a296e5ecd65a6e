"""What a failed story shows: also after its operator was killed and the password of its Redis changed."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import TYPE_CHECKING

from diagnosis import OPERATOR_NAMESPACE, describe
from operator_release import OperatorRelease

if TYPE_CHECKING:
    from collections.abc import Callable

    from story import Story


async def test_a_failed_story_shows_redis_and_the_log_of_an_operator_that_was_killed(story: Story) -> None:
    story.apply_pool()
    await story.wait_until_finished(90, await story.enqueue())
    operator = OperatorRelease.of(story.desk)
    pod = await operator.wait_for_leader()
    await asyncio.to_thread(operator.kill, pod)
    await operator.wait_until_restarted(pod)
    password = secrets.token_urlsafe(12)
    story.redis.rotate_password(password)

    told = read_views(describe(story.desk.cluster, story.desk.namespace))
    [before] = [text for view, text in told.items() if "rrq-operator" in view and "--previous" in view]
    assert '"level"' in before, before
    [asked] = [text for view, text in told.items() if " exec " in view]
    assert re.search(r"^> dbsize\n\d+$", asked, re.MULTILINE), asked
    assert password not in "".join([*told, *told.values()])


async def test_a_story_on_the_redis_of_the_chart_shows_that_one(
    story: Story, install: Callable[..., None]
) -> None:
    image = story.desk.kubectl("get", "pod", "redis-0", "--output=jsonpath={.spec.containers[0].image}")
    repository, _, tag = image.rpartition(":")
    install(redis={"enabled": True, "image": {"repository": repository, "tag": tag}})
    OperatorRelease.of(story.desk).desk.kubectl(
        "rollout", "status", "statefulset/rrq-redis", "--timeout=100s"
    )
    told = read_views(describe(story.desk.cluster, OPERATOR_NAMESPACE))
    [asked] = [text for view, text in told.items() if " exec " in view and "rrq-redis-0" in view]
    assert re.search(r"^> dbsize\n\d+$", asked, re.MULTILINE), asked


def read_views(text: str) -> dict[str, str]:
    """What each command printed."""
    views = [part.partition("\n") for part in text.split("--- kubectl ")[1:]]
    return {view: printed for view, _, printed in views}
