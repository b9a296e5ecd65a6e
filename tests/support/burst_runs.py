"""Runs of burst pools as the API server shows them."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

from pools import build_pool
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fake_node import FakeNode
    from pools import PoolDesk

QUEUE_KEY = "rrq:queue:default"


def build_burst(redis_dsn: str, *, image: str = "example.com/shop:1", **job: Any) -> dict[str, Any]:
    worker = {"image": image, "settings": "shop.jobs.settings"}
    return build_pool(type="Job", redis={"url": redis_dsn}, worker=worker, job={"lingerSeconds": 1, **job})


def read_runs(desk: PoolDesk) -> dict[int, dict[str, Any]]:
    """Return the Jobs by their number."""
    return {int(job["metadata"]["labels"]["rrq.dev/run"]): job for job in desk.read_all("jobs")}


def is_over(job: dict[str, Any]) -> bool:
    return any(
        entry["type"] in ("Complete", "Failed") and entry["status"] == "True"
        for entry in job.get("status", {}).get("conditions", [])
    )


def under_way(desk: PoolDesk) -> list[int]:
    return sorted(number for number, job in read_runs(desk).items() if not is_over(job))


def living_pods(desk: PoolDesk) -> list[str]:
    """Return the pods whose containers have not ended."""
    return [
        pod["metadata"]["name"]
        for pod in desk.read_all("pods")
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


async def end_run(desk: PoolDesk, fake_node: FakeNode, number: int, exit_code: int = 0) -> None:
    """Let the pod of a run end once it runs, and wait until its Job is over."""

    def find_pod() -> str:
        for pod in desk.read_all("pods"):
            is_of_run = pod["metadata"].get("labels", {}).get("rrq.dev/run") == str(number)
            if is_of_run and pod["status"].get("phase") == "Running":
                return str(pod["metadata"]["name"])
        return ""

    name = await eventually(find_pod, 60, f"the pod of run {number} runs")
    await fake_node.finish(desk.namespace, name, exit_code)
    await eventually(lambda: is_over(read_runs(desk)[number]), 60, f"run {number} is over")


async def holds(predicate: Callable[[], bool | Awaitable[bool]], seconds: float, message: str) -> None:
    """Look again and again for a while, and fail as soon as it is not true."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        answer = predicate()
        assert (await answer) if inspect.isawaitable(answer) else answer, message
        await asyncio.sleep(0.05)
