"""The other processes of a chaos run: producers, and RRQ 0.7.1 as producer and as worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from legacy import legacy_python
from pod import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos_clock import FakeClock

CHAOS = Path(__file__).parent
END_SECONDS = 60.0
LOOK_SECONDS = 0.5


class SideProcess:
    """A process that runs until it is told to end; one that ends before is started again, and counted."""

    def __init__(
        self,
        command: Sequence[str],
        options: Mapping[str, Any],
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._command = [*command, json.dumps(options)]
        self._log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.restarts = 0
        self.exit_codes: list[int] = []
        self.pids: set[int] = set()

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        self.pids.add(self._process.pid)
        return self

    def keep(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._process is not None and self._process.poll() is not None:
                self.exit_codes.append(self._process.returncode)
                self._close()
                self.restarts += 1
                self.start()

    async def end(self) -> str:
        """Tell it to end; returns what it said at its end."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        process = self._process
        if process is None:
            return ""
        process.send_signal(signal.SIGTERM)
        try:
            said, _ = await asyncio.to_thread(process.communicate, timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            said = ""
        self.kill()
        return said

    def kill(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def read_producers(who: str, said: str, exit_codes: Sequence[int]) -> tuple[int, list[str]]:
    """Return how many sends were refused, and what went wrong with the producers that no fault explains.

    `said` is what they said at their end; no fault is meant to end them, so that every end before is their own doing.
    """
    complaints = [
        f"the producers of {who} ended with {code}, and no fault had hit them" for code in exit_codes
    ]
    try:
        told = json.loads(said)
    except ValueError:
        return 0, [*complaints, f"the producers of {who} did not say how they had fared: {said!r}"]
    complaints += [f"a producer of {who} failed in an unexpected way: {error}" for error in told["crashes"]]
    return told["refused"], complaints


def make_producers(options: Mapping[str, Any], folder: Path, clock: FakeClock | None = None) -> SideProcess:
    path = os.pathsep.join((str(CHAOS), str(SUPPORT)))
    command = [sys.executable, str(CHAOS / "chaos_producer.py")]
    environment = os.environ | {"PYTHONPATH": path} | (clock.environment if clock is not None else {})
    return SideProcess(command, options, folder / "producers.log", environment)


def make_legacy(options: Mapping[str, Any], folder: Path) -> SideProcess:
    """A process of RRQ 0.7.1; raises LegacyUnavailable where it cannot be installed."""
    command = [str(legacy_python()), "-I", str(CHAOS / "legacy_chaos.py")]
    return SideProcess(command, {**options, "path": str(CHAOS)}, folder / "legacy.log", {})
