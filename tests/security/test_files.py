"""Files and folders that we make are for their owner alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rrq_operator.local.running import log_folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rrq.embedded import EmbeddedRedis


@pytest.fixture
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.usefixtures("careless_umask")
def test_the_folder_of_an_embedded_redis_is_private(make_redis: Callable[..., EmbeddedRedis]) -> None:
    server = make_redis()
    assert server._folder is not None
    assert is_private(Path(server._folder))


@pytest.mark.usefixtures("careless_umask")
def test_folders_of_logs_in_local_mode_are_private(tmp_path: Path) -> None:
    for place in (None, tmp_path / "a" / "logs"):
        with log_folder_of(place) as folder:
            assert is_private(folder)
