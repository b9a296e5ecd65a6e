"""The command line in tests: called in this process, as a process of its own, and in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from rrq.cli import rrq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
# In a session of its own the command takes the terminal for its own, so that Ctrl-C reaches it alone.
_IN_TERMINAL = "import fcntl, runpy, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); runpy.run_module(sys.argv.pop(1), run_name='__main__')"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class CommandLine:
    """Calls commands for one Redis."""

    def __init__(self, redis_dsn: str) -> None:
        self.environment = {"RRQ_REDIS_DSN": redis_dsn}

    async def run(self, *arguments: str, answer: str | None = None) -> Result:
        """Call a command in a thread of this process, because it runs an event loop of its own."""
        return await asyncio.to_thread(
            CliRunner(env={**self.environment, "RRQ_SETTINGS": None}).invoke, rrq, arguments, input=answer
        )

    async def ok(self, *arguments: str, answer: str | None = None) -> str:
        """Call a command that must succeed; returns what it wrote to stdout."""
        result = await self.run(*arguments, answer=answer)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def json(self, *arguments: str) -> Any:
        """Call a command that must print JSON and nothing else."""
        return json.loads(await self.ok(*arguments, "--json"))

    async def refused(self, *arguments: str) -> str:
        """Call a command that must fail with exit code 1; returns its one line, which is on stderr."""
        result = await self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return result.stderr.rstrip("\n")

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "rrq", *arguments],
            env=child_environment(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # The size of a terminal is its own: in several processes pytest tells that of the first by variables.
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **extra}


class Terminal:
    """A command in a terminal of its own, whose size may change."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # On Linux the end of the other side is an error here, not an empty read.
        with contextlib.suppress(OSError):
            while chunk := os.read(self._master, 65536):
                self._shown += chunk

    @property
    def raw(self) -> str:
        return bytes(self._shown).decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Everything shown so far, without colours and cursor movements."""
        # Each picture of a live view begins by moving the cursor home.
        return _CONTROL.sub("", self.raw.replace("\x1b[H", "\n"))

    def forget(self) -> None:
        """Start over: `text` is then what is shown from now on."""
        self._shown.clear()

    def resize(self, rows: int, columns: int) -> None:
        _set_size(self._master, rows, columns)
        self._process.send_signal(signal.SIGWINCH)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def wait(self, timeout_seconds: float = 60.0) -> int:
        code = self._process.wait(timeout_seconds)
        # What it said last is still on its way to us; on a busy machine for seconds.
        self._reader.join(timeout_seconds)
        return code


@contextlib.contextmanager
def terminal(
    environment: Mapping[str, str], *arguments: str, rows: int = 40, columns: int = 120, module: str = "rrq"
) -> Iterator[Terminal]:
    """Run `rrq`, or another module, with these arguments in a terminal for the length of the block."""
    master, slave = pty.openpty()
    _set_size(slave, rows, columns)
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, module, *arguments],
        env=child_environment({"TERM": "xterm-256color", **environment}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = Terminal(process, master)
    try:
        yield shown
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def _set_size(file: int, rows: int, columns: int) -> None:
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
