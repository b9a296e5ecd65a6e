"""Images built once for all tests of this folder, on an engine that answers or is started for them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker_engine import DockerEngine, NoDockerEngine, docker_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    try:
        with docker_engine() as engine:
            yield engine
    except NoDockerEngine as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def build(engine: DockerEngine) -> Iterator[Callable[..., str]]:
    """Build an image under a tag of the test run's own; it is removed afterwards."""
    tags: list[str] = []

    def build(name: str, dockerfile: str, context: Path = REPOSITORY) -> str:
        tag = f"{name}:test-{uuid.uuid4().hex[:12]}"
        engine.build(context, tag, dockerfile)
        tags.append(tag)
        return tag

    yield build
    for tag in reversed(tags):
        engine.run("rmi", "--force", tag)


@pytest.fixture(scope="session")
def worker_image(build: Callable[..., str]) -> str:
    return build("rrq-worker", (REPOSITORY / "Dockerfile.worker").read_text())
