"""The operator as a process: two replicas, its pages, how it ends. A real API server and a real Redis."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from operator_process import START_SECONDS, RunningOperator
from pool_definition import install_pool_definition
from pools import build_pool
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster_part import Part
    from pools import PoolDesk
    from rrq import RRQClient


async def leads(operator: RunningOperator) -> bool:
    _, text = await operator.get("/metrics")
    return "rrq_operator_is_leader 1.0" in text


def led_at(operator: RunningOperator) -> float:
    """When it says that it began to lead; the time until the test has heard of it does not count."""
    line = next(line for line in operator.log.splitlines() if '"operator leads"' in line)
    return datetime.fromisoformat(json.loads(line)["time"]).timestamp()


async def grows(desk: PoolDesk, client: RRQClient, name: str, within_seconds: float) -> None:
    await client.enqueue_many([JobRequest("greet", queue_name=name) for _ in range(50)])
    await eventually(lambda: desk.replicas(name) == 5, within_seconds, f"pool {name} grows")


@pytest.fixture
async def pair(
    desk: PoolDesk, start_operator: Callable[..., RunningOperator], redis_dsn: str
) -> tuple[RunningOperator, RunningOperator]:
    """A leader and its standby, with a pool at zero."""
    first = start_operator("first")
    await eventually(lambda: leads(first), START_SECONDS, "the first operator leads")
    second = start_operator("second")
    await eventually(lambda: _answers(second, "/readyz"), START_SECONDS, "the second operator stands by")
    desk.apply(build_pool("emails", redis={"url": redis_dsn}, queues=["emails"]))
    await eventually(lambda: desk.replicas("emails") == 0, 60)
    return first, second


async def test_the_standby_takes_over_from_a_leader_that_is_killed_or_stopped(
    desk: PoolDesk, pair: tuple[RunningOperator, RunningOperator], client: RRQClient
) -> None:
    first, second = pair
    assert not await leads(second)
    first.kill()
    killed_at = time.time()
    await eventually(lambda: leads(second), 30, "the standby leads")
    assert led_at(second) - killed_at < 8
    await grows(desk, client, "emails", 30)
    third = RunningOperator(desk.cluster.kubeconfig, desk.namespace, first.log_path.parent, name="third")
    with third:
        await eventually(lambda: _answers(third, "/readyz"), START_SECONDS, "the third operator stands by")
        told_at = time.monotonic()
        assert second.stop() == 0
        assert time.monotonic() - told_at < 15, "it ends quickly"
        stopped_at = time.time()
        await eventually(lambda: leads(third), 30, "the standby leads")
        assert led_at(third) - stopped_at < 3, "at once"


async def _lost(operator: RunningOperator) -> bool:
    return not await leads(operator)


async def test_replicas_outlive_an_api_server_that_is_away(
    desk: PoolDesk,
    pair: tuple[RunningOperator, RunningOperator],
    client: RRQClient,
    api_server: Part,
) -> None:
    first, second = pair
    api_server.stop()
    await eventually(lambda: _lost(first), 30, "no replica leads without an API server")
    assert not await leads(second)
    for operator in pair:
        assert (await operator.get("/livez"))[0] == 200, "a restart would not help"
    api_server.start()

    async def one_leads() -> bool:
        return [await leads(operator) for operator in pair].count(True) == 1

    await eventually(one_leads, 60, "one of them leads again")
    await grows(desk, client, "emails", 30)


async def _answers(operator: RunningOperator, page: str) -> bool:
    return (await operator.get(page))[0] == 200


async def test_a_pool_that_comes_before_its_definition_is_waited_for(
    desk: PoolDesk, start_operator: Callable[..., RunningOperator], redis_dsn: str
) -> None:
    desk.kubectl("delete", "crd", "rrqworkerpools.rrq.dev")
    try:
        operator = start_operator()
        await eventually(lambda: "does not know RRQWorkerPool" in operator.log, START_SECONDS)
    finally:
        install_pool_definition(desk.cluster)  # also for the tests that follow
    await eventually(lambda: leads(operator), 60)
    desk.apply(build_pool("emails", redis={"url": redis_dsn}))
    await eventually(lambda: desk.replicas("emails") == 0, 60)
