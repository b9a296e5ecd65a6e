"""The operator image: it builds, and has what the operator imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker_engine import LOCKED_DOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def test_the_operator_image_has_the_controller_and_its_clients(
    engine: DockerEngine, build: Callable[..., str]
) -> None:
    image = build("rrq-operator", (Path(__file__).parents[2] / "Dockerfile.operator").read_text())
    code = "import rrq, rrq_operator, kopf, kubernetes"
    engine.run("run", "--rm", "--network", "none", *LOCKED_DOWN, "--entrypoint", "python3", image, "-c", code)
