"""A way from the test to a Service of the cluster, whatever kind of cluster it is: `kubectl port-forward`, kept up."""

from __future__ import annotations

import socket
import subprocess
import threading
from typing import TYPE_CHECKING

from waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pools import PoolDesk

PAUSE_SECONDS = 0.2  # between two tries while no pod answers for the Service


class PortForward:
    """`host` and `port` lead to a Service. A way that ends with its pod is opened again to the next one."""

    def __init__(self, desk: PoolDesk, service: str, port: int) -> None:
        self.host = "127.0.0.1"
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = int(probe.getsockname()[1])
        self._command = desk.command("port-forward", f"service/{service}", f"{self.port}:{port}")
        self._environment = desk.cluster.environment
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep_open, daemon=True)

    async def __aenter__(self) -> Self:
        self._keeper.start()
        await eventually(self.answers, 60, f"no way to port {self.port}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._process is not None:
            self._process.kill()
        self._keeper.join()

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.host, self.port)) == 0

    def _keep_open(self) -> None:
        while not self._ended.is_set():
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if self._ended.is_set():
                self._process.kill()
            self._process.wait()
            self._ended.wait(PAUSE_SECONDS)
