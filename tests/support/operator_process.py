"""The operator as a process of its own, against the cluster of a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from waiting import ANSWER_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

STOP_SECONDS = 40.0
# It loads for two seconds of a processor of its own, which on a busy machine are twenty and more.
START_SECONDS = 60.0
LAST_WORDS = 5_000


class OperatorEnded(Exception):
    """The operator was to live and has ended; the message has its exit code and the end of its log."""


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
        # What an earlier process of it has said comes before.
        self._log_start = len(self.log)
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

        def find() -> re.Match[str] | None:
            # Not before its last digit is there.
            found = re.search(r'"port": (\d+)[,}]', self.log[self._log_start :])
            if found is None:
                self._raise_if_ended()
            return found

        found = await eventually(find, START_SECONDS, f"operator {self.log_path.stem} names its port")
        assert found is not None
        return int(found[1])

    async def get(self, page: str) -> tuple[int, str]:
        """Return status and text of one of its pages; raises OperatorEnded when nobody is left to answer."""
        try:
            return await asyncio.to_thread(_get, f"http://127.0.0.1:{await self.port()}{page}")
        except OSError as error:
            # The port closes a moment before the process has ended.
            with contextlib.suppress(AssertionError):
                await eventually(lambda: self._process is not None and self._process.poll() is not None, 5)
            self._raise_if_ended(error)
            raise

    def _raise_if_ended(self, cause: Exception | None = None) -> None:
        exit_code = self._process.poll() if self._process is not None else None
        if exit_code is not None:
            raise OperatorEnded(
                f"Operator {self.log_path.stem} has ended with {exit_code}. The end of its log:\n"
                f"{self.log[-LAST_WORDS:]}"
            ) from cause


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
