"""Pods for tests, and the questions asked about them again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pod import Pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A pod is three processes that take seconds to come up: too slow for the tier run after every change."""
    for item in items:
        if "make_pod" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def make_pod(redis_dsn: str, tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Start pods as `rrq worker run OPTIONS` with settings by name; they end with the test."""
    pods: list[Pod] = []

    def make(*options: str, dsn: str = redis_dsn, **settings: Any) -> Pod:
        pods.append(Pod(dsn, tmp_path, *options, **settings))
        return pods[-1].start()

    yield make
    for pod in pods:
        pod.stop()
