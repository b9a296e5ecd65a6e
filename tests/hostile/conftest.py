"""Handlers for tests that hand them anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from held_jobs import Held
from rrq.registry import JobRegistry
from uncounted import uncounted

__all__ = ["uncounted"]


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def registry(held: Held) -> JobRegistry:
    registry = JobRegistry()

    async def hold(ctx: dict[str, Any]) -> None:
        held.begun[ctx["job_id"]] += 1
        await held.let_go.wait()

    async def nothing(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)

    async def fail(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("as it should")

    registry.register("nothing", nothing)
    registry.register("fail", fail)
    registry.register("hold", hold)
    return registry
