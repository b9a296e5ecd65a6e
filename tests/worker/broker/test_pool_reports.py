"""What operators say of their pools in Redis, as dashboards read it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from queue_steps import ask
from rrq.flow import PoolDecision, PoolReport

if TYPE_CHECKING:
    from rrq.store import JobStore

EMAILS = PoolReport(
    pool="shop/emails",
    type="Deployment",
    queues=("high", "default"),
    replicas=3,
    ready=2,
    desired=4,
    due=40,
    blocked=7,
    busy=20,
    reason="Backlog",
    words="20 running + 33 due",
    at_ms=1_700_000_000_123,
    is_paused=True,
)


async def test_a_report_is_read_as_it_was_published(store: JobStore) -> None:
    unknown = replace(
        EMAILS, pool="shop/burst", type="Job", due=None, blocked=None, busy=None, is_paused=False
    )
    await store.publish_pools([EMAILS, unknown])
    assert await store.read_pools() == [unknown, EMAILS], "by name"
    later = replace(EMAILS, desired=5)
    await store.publish_pools([later])
    assert await store.read_pools() == [unknown, later]
    assert await store.read_decisions("shop/emails") == [], "nothing was said to be decided"


async def test_pools_that_are_gone_are_forgotten_and_their_history_stays(store: JobStore) -> None:
    other = replace(EMAILS, pool="shop/other")
    await store.publish_pools([EMAILS, other], decided={"shop/emails"})
    await store.publish_pools([], gone=["shop/emails", "shop/never-there"])
    assert await store.read_pools() == [other]
    assert len(await store.read_decisions("shop/emails")) == 1


async def test_decisions_are_read_from_the_oldest_to_the_newest(store: JobStore) -> None:
    for number in range(5):
        await store.publish_pools([replace(EMAILS, at_ms=number, due=None)], decided=["shop/emails"])
    last_two = await store.read_decisions("shop/emails", 2)
    assert last_two == [
        PoolDecision(number, 3, 2, 4, None, 20, "Backlog", "20 running + 33 due") for number in (3, 4)
    ]


async def test_a_history_is_bounded_in_length_and_time(store: JobStore) -> None:
    for number in range(700):
        await store.publish_pools([replace(EMAILS, at_ms=number)], decided=["shop/emails"])
    key = store.keys.decisions_key("shop/emails")
    # Redis cuts whole nodes of a hundred entries.
    assert 500 <= await ask(store, "XLEN", key) <= 600
    assert 604_000 < await ask(store, "TTL", key) <= 604_800


@pytest.mark.parametrize("foreign", ["", "[]", "null", "{", '"text"', "1"])
async def test_what_no_operator_wrote_is_left_out(store: JobStore, foreign: str) -> None:
    await store.publish_pools([EMAILS])
    await ask(store, "HSET", store.keys.pools, "shop/foreign", foreign)
    assert await store.read_pools() == [EMAILS]


async def test_keys_of_another_type_are_put_aside(store: JobStore) -> None:
    for key in (store.keys.pools, store.keys.decisions_key("shop/emails")):
        await ask(store, "SET", key, "something else")
    await store.publish_pools([EMAILS], decided=["shop/emails"])
    assert await store.read_pools() == [EMAILS]
    assert len(await store.read_decisions("shop/emails")) == 1
