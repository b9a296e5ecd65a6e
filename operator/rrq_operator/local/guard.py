"""Ends what local mode has started when local mode itself is killed and can no longer do so.

Runs as a process of its own whose standard input is a pipe from local mode: the kernel closes the pipe when local mode
ends, in whatever way. A variable that every replica has, and every process that it starts inherits, tells which processes
belong to a session, so that no list of process ids has to be kept up to date.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Final

import psutil

#: Set in every replica, to a value of this session of local mode.
SESSION_VARIABLE: Final = "RRQ_LOCAL_SESSION"

_LOOK_SECONDS = 0.2


def find_processes(session: str) -> list[psutil.Process]:
    """Return the living processes of a session: supervisors, workers, and what their jobs have started."""
    return [
        process
        for process in psutil.process_iter()
        if _read_environment(process).get(SESSION_VARIABLE) == session
    ]


def _read_environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except (psutil.Error, OSError):  # it has ended meanwhile, or belongs to another user
        return {}


def end_session(session: str, patience_seconds: float) -> None:
    """Have supervisors drain and end; kill the processes that are left when time is up."""
    ends_at = time.monotonic() + patience_seconds
    found = find_processes(session)
    known = {process.pid for process in found}
    for process in found:
        with contextlib.suppress(psutil.Error):
            # Supervisors, and workers that have lost theirs; supervisors end the others.
            if process.ppid() not in known:
                process.terminate()
    while find_processes(session) and time.monotonic() < ends_at:
        time.sleep(_LOOK_SECONDS)
    kill_session(session)


def kill_session(session: str) -> None:
    for process in find_processes(session):
        with contextlib.suppress(psutil.Error):
            process.kill()


def start_guard(session: str, patience_seconds: float, folder: Path | None) -> subprocess.Popen[bytes]:
    """Start the guard of a session; closing its standard input ends all. ``folder`` is removed then."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, session, str(patience_seconds), str(folder or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl+C is for local mode alone.
        start_new_session=True,
    )


def main(session: str, patience_seconds: float, folder: str) -> None:
    sys.stdin.read()
    end_session(session, patience_seconds)
    if folder:
        rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
