"""A Redis server that keeps what it was told and may be taken away: append-only file, one port for its whole life."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from harness import BenchError, find_redis_server

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 10.0


class DurableRedis:
    """Redis with its append-only file on and all else by default: it is synced to disk every second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            self.port = chosen.getsockname()[1]
        self.dsn = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [find_redis_server(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--appendonly", "yes", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            # While it reads its file back it answers LOADING instead.
            with suppress(OSError):
                if self.ask("PING") == b"+PONG\r\n":
                    return
            time.sleep(0.02)
        raise BenchError(f"Redis on port {self.port} did not answer within {START_SECONDS:.0f} s.")

    def ask(self, command: str) -> bytes:
        """Return the first piece of the reply; empty when the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(4096)

    def version(self) -> str:
        for line in self.ask("INFO server").decode().splitlines():
            if line.startswith("redis_version:"):
                return line.partition(":")[2]
        raise BenchError("Redis did not tell its version.")

    def shut_down(self) -> None:
        assert self._process is not None
        with suppress(OSError):
            self.ask("SHUTDOWN")
        self._process.wait(START_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
