"""Commands that take minutes: run with a sign of life, one at a time where two would collide."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PROGRESS_INTERVAL_SECONDS = 15.0


class CommandFailed(Exception):
    """A command failed; the message has the end of what it said."""


def run_with_progress(
    task: str,
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command that may take minutes, and say every so often that it still does."""
    started_at = time.monotonic()
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            try:
                while True:
                    try:
                        process.wait(PROGRESS_INTERVAL_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        say(f"{task}: {time.monotonic() - started_at:.0f} s")
            except BaseException:
                process.kill()  # an interrupted build does not go on in the background
                raise
        if process.returncode != 0:
            output.seek(0)
            last_words = output.read().decode(errors="replace")[-3000:]
            raise CommandFailed(f"{' '.join(command)} ended with {process.returncode}:\n{last_words}")
    say(f"{task}: done in {time.monotonic() - started_at:.0f} s")


@contextmanager
def alone(lock: Path, busy: str = "another build is under way") -> Iterator[int]:
    """Hold the lock; the system drops it if this process dies, and all that were given the descriptor."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{busy}; waiting for it ({lock})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)
