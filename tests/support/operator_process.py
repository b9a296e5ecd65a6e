"""The operator as a process of its own, against the cluster of a test."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

STOP_SECONDS = 20.0


class RunningOperator:
    """`rrq-operator run` for one namespace; a context manager that stops it."""

    def __init__(
        self, kubeconfig: Path, namespace: str, folder: Path, *, name: str = "operator", **options: str
    ) -> None:
        self.log_path = folder / f"{name}.log"
        self._command = [
            *(sys.executable, "-m", "rrq_operator", "run"),
            *("--namespace", namespace),
            *("--lease-namespace", namespace),
            *("--pod-name", name),
            *("--http", "127.0.0.1:0"),
            *("--log-format", "json"),
        ]
        for option, value in options.items():
            # A flag has an empty value.
            self._command += [f"--{option.replace('_', '-')}", *([value] if value else [])]
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it as Kubernetes does; returns its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        return self._process.wait(STOP_SECONDS)

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def port(self) -> int:
        """The port of its pages, once it has said which."""
        found = await eventually(
            lambda: re.search(r'"port": (\d+)', self.log), 20, "the operator names its port"
        )
        assert found is not None
        return int(found[1])

    async def get(self, page: str) -> tuple[int, str]:
        """Return status and text of one of its pages."""
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{await self.port()}{page}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
