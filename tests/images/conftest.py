"""The images of this tree, on an engine that answers or is started for these tests."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker_engine import DockerEngine, NoDockerEngine, docker_engine
from image_bundle import EXAMPLE, OPERATOR, WORKER, Bundle, build_bundle, build_images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    try:
        return build_bundle()
    except NoDockerEngine as missing:
        pytest.skip(str(missing))


# After the bundle: this one keeps the engine to itself until the last test.
@pytest.fixture(scope="session")
def engine(bundle: Bundle) -> Iterator[DockerEngine]:
    try:
        with docker_engine() as engine:
            build_images(engine)
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
def without_programs(
    build: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Make a copy of an image that has no program but Python: no shell, nothing that one could call."""
    remove = (
        "import os; [os.remove(entry.path) for folder in ('/usr/local/bin', '/usr/bin', '/usr/sbin', '/bin', '/sbin') "
        "for entry in os.scandir(folder) if not entry.name.startswith('python')]"
    )

    def without_programs(image: str) -> str:
        dockerfile = f'FROM {image}\nUSER 0\nRUN ["python3", "-c", "{remove}"]\nUSER 65532:65532\n'
        return build("rrq-without-programs", dockerfile, tmp_path_factory.mktemp("context"))

    return without_programs


@pytest.fixture(scope="session")
def worker_image(engine: DockerEngine) -> str:
    return WORKER


@pytest.fixture(scope="session")
def operator_image(engine: DockerEngine) -> str:
    return OPERATOR


@pytest.fixture(scope="session")
def application_image(engine: DockerEngine) -> str:
    return EXAMPLE


@pytest.fixture
def container_name(engine: DockerEngine) -> Iterator[str]:
    name = f"rrq-test-{uuid.uuid4().hex[:12]}"
    yield name
    engine.run("rm", "--force", name)
