"""Story 1: install the chart, apply the example, enqueue; pods appear, each job runs once, and the pool goes to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from story import Story

pytestmark = pytest.mark.timeout(300)


async def test_a_pool_grows_for_its_jobs_and_goes_again(story: Story) -> None:
    story.apply_pool()
    await story.wait_for_pods(0)
    ids = await story.enqueue(100, seconds=0.2)
    await story.wait_until_finished(90)
    await story.wait_for_pods(0)
    (await story.read_ledger()).assert_each_once(ids)
