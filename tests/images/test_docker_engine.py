"""Where no engine can be had, the tests of the images say what is missing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from docker_engine import NoDockerEngine, docker_engine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")


def test_an_ordinary_user_is_told_to_start_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoDockerEngine, match="Start one or name it in DOCKER_HOST"), docker_engine():
        pass


def test_root_is_told_which_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "debootstrap" else program)
    with pytest.raises(NoDockerEngine, match=r"apt install debootstrap\."), docker_engine():
        pass
