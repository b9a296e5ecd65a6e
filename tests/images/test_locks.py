"""What the images install: the locks name everything they need, in the versions that the tests run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rrq.version import DISTRIBUTION

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
WORKER_NEEDS = PROJECT["project"]["dependencies"] + EXTRAS["worker"]
OPERATOR_NEEDS = WORKER_NEEDS + [need for need in EXTRAS["operator"] if not need.startswith(DISTRIBUTION)]
BUILD_NEEDS = PROJECT["dependency-groups"]["build"]


def read_pins(lock: str) -> dict[str, str]:
    text = (REPOSITORY / "requirements" / f"{lock}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def parse_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.mark.parametrize(
    ("lock", "needs"), [("build", BUILD_NEEDS), ("worker", WORKER_NEEDS), ("operator", OPERATOR_NEEDS)]
)
def test_an_image_gets_what_it_needs_in_the_versions_that_are_tested(lock: str, needs: list[str]) -> None:
    pins, tested = read_pins(lock), read_pins("dev")
    missing = {parse_name(need) for need in needs} - pins.keys()
    assert not missing, f"requirements/{lock}.lock is behind pyproject.toml: make lock"
    assert pins.items() <= tested.items(), f"requirements/{lock}.lock is not a part of dev.lock: make lock"
