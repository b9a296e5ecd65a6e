"""Local mode as a user starts it: `rrq-operator local` in a process of its own, watched from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from ledger import Ledger, read_whole_lines
from rrq_operator.local.guard import SESSION_VARIABLE
from uncounted import UNCOUNTED
from waiting import eventually

SUPPORT = Path(__file__).parent
# When to give up. Local mode is several interpreters, which take long to come up beside other tests.
PATIENCE_SECONDS = 60.0


def build_manifest(name: str = "shop", **spec: Any) -> dict[str, Any]:
    """A pool that runs the application of pod_app.py, small and quick; ``worker`` is merged, the rest replaced."""
    worker = {"settings": "pod_app.settings", "processes": 1, "drainSeconds": 5} | spec.pop("worker", {})
    return {
        "apiVersion": "rrq.dev/v1alpha1",
        "kind": "RRQWorkerPool",
        "metadata": {"name": name},
        "spec": {"queues": ["jobs"], "worker": worker, **spec},
    }


class LocalMode:
    """One run of local mode, its output and its ledger in `folder`."""

    def __init__(self, folder: Path, dsn: str | None, *pools: dict[str, Any], **environment: str) -> None:
        self.manifest = folder / "pools.yaml"
        for pool in pools:
            # What replicas run is tested by itself.
            pool["spec"]["worker"]["env"] = [
                {"name": name, "value": value} for name, value in UNCOUNTED.items()
            ]
        self.manifest.write_text(yaml.safe_dump_all(pools))
        self.ledger = Ledger(folder / "ledger")
        self._output = folder / "local.out"
        self._options = () if dsn is None else ("--redis-url", dsn)
        self._environment = os.environ | {
            "POD_LEDGER": self.ledger.path,
            "PYTHONPATH": os.pathsep.join((str(folder), str(SUPPORT))),
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()

    def start(self) -> Self:
        command = [sys.executable, "-m", "rrq_operator", "local", "-f", str(self.manifest), *self._options]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def output(self) -> str:
        return self._output.read_text()

    async def says(self, text: str, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Wait for a text in the output; returns the line it is in."""

        def seen() -> str:
            lines = [line for line in read_whole_lines(self._output) if text in line]
            assert lines, f"it has said: {self.output()}"
            return lines[0]

        return await eventually(seen, timeout_seconds, f"never said {text!r}")

    def replicas(self) -> list[psutil.Process]:
        """The supervisor processes."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children()
            return [child for child in children if "worker" in _command_of(child)]
        return []

    async def has_replicas(
        self, count: int, timeout_seconds: float = PATIENCE_SECONDS
    ) -> list[psutil.Process]:
        """Wait until there are so many supervisors, and return them."""

        found: list[psutil.Process] = []

        def seen() -> bool:
            # Those that were counted are returned: by another look one may have come or gone.
            found[:] = self.replicas()
            assert len(found) == count, f"{len(found)} replicas; it has said: {self.output()}"
            return True

        await eventually(seen, timeout_seconds, f"never had {count} replicas")
        return found

    def family(self) -> list[psutil.Process]:
        """Every process that was started by it, directly or not, and lives."""
        with contextlib.suppress(psutil.Error):
            self._family |= set(psutil.Process(self.process.pid).children(recursive=True))
        return [process for process in self._family if _is_alive(process)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(timeout_seconds)

    def stop(self) -> None:
        """End it gently, then not; nothing of it is left."""
        if self._process is None:
            return
        family = self.family()
        if self._process.poll() is None:
            for _ in range(2):
                self.signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.wait(1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(15)
            self._process.kill()
            self.wait()
        for process in family:
            with contextlib.suppress(psutil.Error):
                if _is_alive(process) and SESSION_VARIABLE in process.environ():
                    process.kill()


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
