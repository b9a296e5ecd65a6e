"""Local mode for tests, on the shared Redis unless they name another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from local_mode import LocalMode
from rrq.client import RRQClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from rrq.settings import RRQSettings

_SHARED = object()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replicas take seconds to come up: too slow for the tier run after every change."""
    for item in items:
        if "run_local" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def run_local(redis_dsn: str, tmp_path: Path) -> Iterator[Callable[..., LocalMode]]:
    """Start local mode with these pools; it ends with the test. ``dsn=None`` leaves Redis to the manifest."""
    started: list[LocalMode] = []

    def run(*pools: dict[str, Any], dsn: Any = _SHARED, **environment: str) -> LocalMode:
        started.append(LocalMode(tmp_path, redis_dsn if dsn is _SHARED else dsn, *pools, **environment))
        return started[-1].start()

    yield run
    for local_mode in started:
        local_mode.stop()


@pytest.fixture
async def producer(settings: RRQSettings) -> AsyncIterator[RRQClient]:
    """A client whose jobs go to the queue of the pool."""
    settings.default_queue_name = "jobs"
    client = RRQClient(settings)
    yield client
    await client.close()
