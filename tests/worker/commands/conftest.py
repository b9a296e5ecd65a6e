"""A command line for the shared Redis, and real jobs for it to look at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from commandline import CommandLine
from rrq.registry import JobRegistry

if TYPE_CHECKING:
    from rrq.settings import RRQSettings


@pytest.fixture
def cli(redis_dsn: str) -> CommandLine:
    return CommandLine(redis_dsn)


@pytest.fixture
def registry() -> JobRegistry:
    """Handlers that succeed, fail and take their time."""

    async def add(ctx: dict[str, Any], *numbers: int, **options: Any) -> dict[str, Any]:
        return {"sum": sum(numbers), **options}

    async def fail(ctx: dict[str, Any], reason: str = "order 4711 is not there") -> None:
        raise ValueError(reason)

    async def hold(ctx: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    handlers = JobRegistry()
    handlers.register("add", add)
    handlers.register("fail", fail)
    handlers.register("hold", hold)
    return handlers


@pytest.fixture
def quick(settings: RRQSettings) -> RRQSettings:
    """Settings under which a failing job fails for good at once."""
    settings.default_max_retries = 1
    return settings
