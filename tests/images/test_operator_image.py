"""The operator image: it builds, has what the operator imports, and says what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker_engine import LOCKED_DOWN, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image(engine: DockerEngine, build: Callable[..., str]) -> str:
    return build("rrq-operator", (Path(__file__).parents[2] / "Dockerfile.operator").read_text())


def test_the_operator_image_has_the_controller_and_its_clients(engine: DockerEngine, image: str) -> None:
    code = "import rrq, rrq_operator.process, kopf, kubernetes"
    engine.run("run", "--rm", "--network", "none", *LOCKED_DOWN, "--entrypoint", "python3", image, "-c", code)


def test_without_a_cluster_it_says_so_and_ends(engine: DockerEngine, image: str) -> None:
    with pytest.raises(CommandFailed, match="No cluster to talk to") as ended:
        engine.run("run", "--rm", "--network", "none", *LOCKED_DOWN, image)
    assert "ended with 1:" in str(ended.value)
    assert "Traceback" not in str(ended.value)
