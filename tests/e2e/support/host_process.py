"""The processes of pods, as the computer that runs them sees them: the only way to kill the first one of a container.

From inside, the kernel keeps the first process of a container from being killed; kubectl can only ask it to end.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest


def kill_first_process(pod_uid: str, program: str) -> None:
    """End a container as a crash does, without a word to anybody; `program` is a part of its command line."""
    process_id = find_first_process(pod_uid, program)
    if process_id is None:
        pytest.skip("the nodes of this cluster are not on this computer, so nothing in a pod can be killed")
    os.kill(process_id, signal.SIGKILL)


def find_first_process(pod_uid: str, program: str) -> int | None:
    # Control groups are named after the pod, with one of two spellings.
    names = (f"pod{pod_uid}", f"pod{pod_uid.replace('-', '_')}")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups = (folder / "cgroup").read_text()
            if not any(name in groups for name in names):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
            )
        except OSError:
            continue  # ended meanwhile
        if program in command and status["NSpid"].split()[-1] == "1":
            return int(folder.name)
    return None
