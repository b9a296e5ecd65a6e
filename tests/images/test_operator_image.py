"""The operator image: it builds, has what the operator imports, and says what it lacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from docker_engine import LOCKED_DOWN
from progress import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def test_the_operator_image_has_the_controller_and_its_clients(
    engine: DockerEngine, operator_image: str
) -> None:
    code = "import rrq, rrq_operator.control.process, kopf, kubernetes"
    python = ("--entrypoint", "python3", operator_image, "-c", code)
    engine.run("run", "--rm", "--network", "none", *LOCKED_DOWN, *python)


def test_without_a_cluster_it_says_so_and_ends_and_needs_no_other_program_for_that(
    engine: DockerEngine, operator_image: str, without_programs: Callable[[str], str]
) -> None:
    with pytest.raises(CommandFailed, match="No cluster to talk to") as ended:
        engine.run("run", "--rm", "--network", "none", *LOCKED_DOWN, without_programs(operator_image))
    assert "ended with 1:" in str(ended.value)
    assert "Traceback" not in str(ended.value)


def test_the_image_says_how_it_wants_to_be_run(engine: DockerEngine, operator_image: str) -> None:
    config = json.loads(engine.run("image", "inspect", operator_image))[0]["Config"]
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == (["python3", "-m", "rrq_operator"], ["run"])
    assert config["StopSignal"] == "SIGTERM"
    assert list(config["ExposedPorts"]) == ["8080/tcp"]
    assert config["Labels"]["org.opencontainers.image.title"] == "rrq-operator"
