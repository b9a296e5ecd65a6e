"""The engine that tests start: says what is missing where it cannot, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker_engine import DockerEngine, NoDockerEngine, docker_engine, install_programs, own_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

# Uses an engine on the folder that it is told, says so, and never ends by itself.
KEEP_ENGINE = """
import sys
from pathlib import Path
from docker_engine import own_engine
with own_engine(Path(sys.argv[1])) as host:
    print(host, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")


def test_an_ordinary_user_is_told_to_start_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoDockerEngine, match="Start one or name it in DOCKER_HOST"), docker_engine():
        pass


def test_root_is_told_which_packages_are_missing_where_apt_is_not_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = ("debootstrap", "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program, path=None: None if program in missing else program)
    with pytest.raises(NoDockerEngine, match=r"apt install debootstrap\."), docker_engine():
        pass


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has an engine, which keeps its data in tmp_path/docker."""
    try:
        install_programs()
    except NoDockerEngine as missing:
        pytest.skip(str(missing))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KEEP_ENGINE, str(tmp_path / "docker")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as keeper:
        yield keeper
        keeper.kill()


def find_processes(folder: str) -> list[int]:
    """Processes that were started with something in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if folder in (process / "cmdline").read_text():
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return found


def read_host(keeper: subprocess.Popen[str]) -> tuple[str, Path]:
    assert keeper.stdout is not None
    host = keeper.stdout.readline().strip()
    return host, Path(host.removeprefix("unix://")).parent


def add_image(host: str, folder: Path) -> None:
    archive = folder / "nothing.tar"
    subprocess.run(["tar", "-cf", str(archive), "--files-from", "/dev/null"], check=True)
    DockerEngine(host, None).run("import", str(archive), "nothing:test")


@pytest.mark.docker
def test_an_engine_that_ended_in_order_still_has_its_images_and_left_nothing_else(
    keeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    host, folder = read_host(keeper)
    add_image(host, tmp_path)
    keeper.communicate()
    assert keeper.returncode == 0
    assert not folder.exists()
    assert find_processes(str(folder)) == []
    with own_engine(tmp_path / "docker") as again:
        assert DockerEngine(again, None).run("images", "--quiet", "nothing:test").strip()


@pytest.mark.docker
def test_an_engine_whose_user_was_killed_is_gone_before_the_next_one_starts_afresh(
    keeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    host, folder = read_host(keeper)
    add_image(host, tmp_path)
    keeper.kill()
    with own_engine(tmp_path / "docker") as again:
        assert find_processes(str(folder)) == []
        assert not folder.exists()
        # Whether all of it had been written is unknown, so it was thrown away.
        assert not DockerEngine(again, None).run("images", "--quiet", "nothing:test").strip()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not (tmp_path / "docker.in-use").exists()
