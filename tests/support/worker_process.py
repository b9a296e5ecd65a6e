"""A worker in a process of its own, which tests may kill, stop and let go on.

Run as a script this file *is* that worker; imported, it starts one. Handlers write to a ledger file,
so that what they did is known even when Redis or the process has forgotten it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ledger import Ledger
from ledger_handlers import build_handlers
from rrq import JobRegistry, RRQSettings, RRQWorker

if TYPE_CHECKING:
    from collections.abc import Mapping


def build_registry(ledger: Ledger) -> JobRegistry:
    registry = JobRegistry()
    for handler in build_handlers(ledger):
        registry.register(handler.__name__, handler)
    return registry


class WorkerProcess:
    """Starts a worker for `dsn` and controls it by signals."""

    def __init__(self, dsn: str, ledger: Ledger, **settings: object) -> None:
        self._job = {"dsn": dsn, "ledger": ledger.path, "settings": settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        self._process = subprocess.Popen([sys.executable, __file__, json.dumps(self._job)], env=environment)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_seconds: float = 20.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def stop(self) -> int:
        """End it gently; a stopped one is woken first."""
        if self._process is None or self._process.poll() is not None:
            return 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def main(job: Mapping[str, Any]) -> None:
    registry = build_registry(Ledger(job["ledger"]))
    settings = RRQSettings(redis_dsn=job["dsn"], job_registry=registry, **job["settings"])
    asyncio.run(RRQWorker(settings, registry).run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
