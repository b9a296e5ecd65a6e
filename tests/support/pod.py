"""A pod as a user starts it: `rrq worker run` in a process of its own, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from ledger import Ledger, read_whole_lines
from waiting import ANSWER_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rrq.job import Job

SUPPORT = Path(__file__).parent
# When to give up. A pod is several interpreters, which take long to come up beside other tests.
PATIENCE_SECONDS = 60.0


class Pod:
    """`rrq worker run` with the application of pod_app.py, its log and its ledger in `folder`."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        *options: str,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        app: str = "pod_app.settings",
        **settings: object,
    ) -> None:
        self.ledger = Ledger(folder / "ledger")
        self.log_path = folder / "pod.log"
        self.broken = folder / "broken"
        self.http_port = _free_port()
        self._prefix = prefix
        self._options = ("--settings", app, "--http", f"127.0.0.1:{self.http_port}", *options)
        self._environment = os.environ | {
            "RRQ_REDIS_DSN": dsn,
            "POD_LEDGER": self.ledger.path,
            "POD_BROKEN": str(self.broken),
            "PYTHONPATH": os.pathsep.join((str(folder), str(SUPPORT))),
            **{f"RRQ_{name.upper()}": str(value) for name, value in settings.items()},
            **(environment or {}),
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        command = [*self._prefix, sys.executable, "-m", "rrq", "worker", "run", *self._options]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """Process ids of the worker processes, oldest first."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in found if _is_worker(child)]

    async def is_up(self, timeout_seconds: float = PATIENCE_SECONDS) -> Self:
        """Wait until every worker process can claim."""
        await eventually(lambda: self.get("/startupz")[0] == 200, timeout_seconds, f"no pod: {self.log()}")
        return self

    async def has_started(self, count: int) -> None:
        """Wait until this many jobs have been started."""
        await eventually(
            lambda: len(self.ledger.counts("started")) >= count,
            PATIENCE_SECONDS,
            f"jobs did not start: {self.log()}",
        )

    def runner_of(self, job: Job) -> int:
        """The process that started the job last."""
        return [entry.pid for entry in self.ledger.entries("started") if entry.job_id == job.id][-1]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}{path}", timeout=ANSWER_SECONDS
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError as error:
            return 0, str(error)

    async def turns(self, path: str, status: int, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until a page answers with this status; returns its text."""

        def seen() -> str | None:
            found, text = self.get(path)
            return text if found == status else None

        return str(await eventually(seen, timeout_seconds, f"{path} never turned {status}"))

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series, or None when it is not there."""
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        for line in self.get("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series == (f"{name}{{{wanted}}}" if labels else name):
                return float(value)
        return None

    def log(self) -> list[dict[str, Any]]:
        """Every log line so far; each of them is JSON."""
        return [json.loads(line) for line in read_whole_lines(self.log_path)]

    def logged(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["message"] == message]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(timeout_seconds)

    def printed(self) -> str:
        """What the ended pod wrote to standard output."""
        assert self.process.stdout is not None
        with self.process.stdout:
            return self.process.stdout.read()

    def stop(self) -> None:
        """End it gently, then not; nothing of it is left."""
        if self._process is None:
            return
        family = []
        if self._process.poll() is None:
            family = [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(0.3)
            self.signal(signal.SIGTERM)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self.wait()
        for process in family:
            if process.pid != self.pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "rrq.pod.child" in process.cmdline()
    except psutil.Error:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
