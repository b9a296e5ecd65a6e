"""Runs the commands of a page in a real shell: in the clone, with the programs of this environment, on free ports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from doc_pages import ROOT
from rrq.embedded import find_redis_server

if TYPE_CHECKING:
    from collections.abc import Mapping

# A reader of the page waits for seconds; beside other tests it takes longer.
COMMANDS_SECONDS = 90.0
END_SECONDS = 60.0
# The parts of the output that differ from run to run.
_VARIES = [
    (r"rrq_worker_\d+_[0-9a-f]+", r"rrq_worker_\\d+_[0-9a-f]+"),
    (r"\\\(cpuset.*?\\\)", r"\\(.*\\)"),
    (r"\b[0-9a-f]{4}…", r"[0-9a-f-]{36}"),
    (r"(process |processes? )\d+", r"\1\\d+"),
    (r"Starting \d+", r"Starting \\d+"),
    (r"\d+ms", r"\\d+ms"),
    (r"\d+\\\.\d\d s", r".* s"),
    (r"127\\\.0\\\.0\\\.1:\d+", r"127\\.0\\.0\\.1:\\d+"),
    ("…", ".*"),
]


def find_missing_lines(shown: str, output: str) -> list[str]:
    """Return the lines of a page that the output does not have, apart from ids, numbers of processes and times."""
    return [line for line in shown.splitlines() if line.strip() and not re.search(_as_pattern(line), output)]


def _as_pattern(line: str) -> str:
    # Spaces and quotes stay unescaped, so that the patterns above stay readable.
    pattern = re.sub(r"([.()\[\]{}+*?|^$\\])", r"\\\1", line.strip())
    for varying, replacement in _VARIES:
        pattern = re.sub(varying, replacement, pattern)
    return pattern


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_redis_cli() -> Path | None:
    """Return `redis-cli` or `valkey-cli`, beside the server of the tests or on PATH; no package contains one."""
    path = os.pathsep.join((str(find_redis_server().parent), os.environ.get("PATH", "")))
    found = shutil.which("redis-cli", path=path) or shutil.which("valkey-cli", path=path)
    return Path(found) if found else None


class PageShell:
    """Runs blocks of a page, and replaces names that a test must not use, such as ports."""

    def __init__(self, folder: Path, replacements: Mapping[str, str]) -> None:
        self._folder = folder
        self._replacements = {". .venv/bin/activate": ":", **replacements}
        self._started: list[subprocess.Popen[bytes]] = []
        self.prelude = ""

    def run(self, script: str, *, cwd: Path = ROOT) -> str:
        """Run commands in order and return their output; the first failing one fails the test."""
        # A file, because a pipe stays open while a background process runs.
        output = self._folder / "commands.out"
        with output.open("wb") as file:
            # A session of its own, so that background processes end with a block that hangs.
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self._prepare(script)],
                cwd=cwd,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(COMMANDS_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = None
        said = output.read_text()
        assert code is not None, (
            f"{script}\nhas not ended after {COMMANDS_SECONDS:g} s; so far it wrote:\n{said}"
        )
        assert code == 0, f"{script}\nended with {code}:\n{said}"
        return said

    def start(self, script: str) -> Path:
        """Start commands as in another terminal; returns the file with their output."""
        output = self._folder / f"terminal-{len(self._started)}.out"
        with output.open("wb") as file:
            # A session of its own, so that the signal reaches the command and not only the shell.
            process = subprocess.Popen(
                ["bash", "-c", self._prepare(script)],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return output

    def press_ctrl_c(self) -> int:
        """Interrupt the command that was started last, as its terminal would; returns its exit code."""
        process = self._started.pop()
        os.killpg(process.pid, signal.SIGINT)
        return process.wait(END_SECONDS)

    def end(self) -> None:
        while self._started:
            process = self._started.pop()
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                    break

    def _prepare(self, script: str) -> str:
        whole = f"{self.prelude}\n{script}"
        for found, replacement in self._replacements.items():
            whole = whole.replace(found, replacement)
        return whole

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("RRQ_", "PYTHONPATH"))
        }
        path = os.pathsep.join((str(self._link_redis()), f"{sys.prefix}/bin", kept["PATH"]))
        # Lines of several processes stay whole only if each is written at once.
        return kept | {"PATH": path, "PYTHONUNBUFFERED": "1"}

    def _link_redis(self) -> Path:
        """Return a folder with the server of the tests, and its client if there is one, under the names of the pages."""
        folder = self._folder / "redis"
        folder.mkdir(exist_ok=True)
        for name, program in (("redis-server", find_redis_server()), ("redis-cli", find_redis_cli())):
            link = folder / name
            if program is not None and not link.exists():
                link.symlink_to(program)
        return folder
