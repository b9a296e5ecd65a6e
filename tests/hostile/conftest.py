"""Handlers for tests that hand them anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rrq.registry import JobRegistry


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()

    async def nothing(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)

    async def fail(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("as it should")

    registry.register("nothing", nothing)
    registry.register("fail", fail)
    return registry
