"""Control groups that tests make: the one thing of a container that stays when its processes are gone."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
REMOVE_TIMEOUT_SECONDS = 30.0


def group_trees() -> list[Path]:
    """The tops of the control groups: one in version 2, one for each controller in version 1."""
    if (GROUPS / "cgroup.controllers").exists():
        return [GROUPS]
    return [tree for tree in GROUPS.iterdir() if (tree / "cgroup.procs").exists() and not tree.is_symlink()]


def remove_groups(pattern: str) -> None:
    """Remove the control groups of that name, from the innermost outwards; their processes have ended."""
    for tree in group_trees():
        for top in tree.glob(pattern):
            for group, _, _ in os.walk(top, topdown=False):
                remove_group(group)


def remove_group(group: str) -> None:
    """Remove it as soon as the kernel lets us: a process that has just ended still counts for a moment."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_SECONDS
    while True:
        try:
            os.rmdir(group)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
