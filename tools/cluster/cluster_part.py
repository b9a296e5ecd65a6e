"""One program of a cluster as a process: started, stopped, paused, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0
POLL_INTERVAL_SECONDS = 0.05


class PartFailed(Exception):
    """A program did not start; the message has the end of its log."""


@dataclass
class Part:
    """A program that works in `folder`, ends with this process unless it `outlives_us`, and may start again."""

    command: Sequence[str]
    folder: Path
    log: Path
    is_ready: Callable[[], bool]
    outlives_us: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        # The kernel kills it when we die, however we die. setpriv replaces itself by the program, so that
        # the process id is the program's.
        bound_to_us = [] if self.outlives_us else ["setpriv", "--pdeathsig", "KILL", "--"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*bound_to_us, *self.command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl+C is for the tests, which then end this in order
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None, f"{self.name} was not launched"
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.is_ready():
            exit_code = self.process.poll()
            if exit_code is not None or time.monotonic() > deadline:
                trouble = "does not become ready" if exit_code is None else f"ended with {exit_code}"
                last_words = self.log.read_text(errors="replace")[-3000:]
                raise PartFailed(f"{self.name} {trouble}. The end of its log:\n{last_words}")
            time.sleep(POLL_INTERVAL_SECONDS)

    def stop(self) -> None:
        """Kill it, paused or not, as a failing machine would: it holds nothing to save, and asking takes seconds."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_SECONDS)
            self.process = None

    def pause(self) -> None:
        """Let it keep its connections and answer nothing, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, f"{self.name} does not run"
        self.process.send_signal(number)
