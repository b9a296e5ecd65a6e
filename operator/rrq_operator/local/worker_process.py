"""One supervisor process: started, probed, terminated. The pool decides whether it should run."""

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rrq_operator.local.log_file import LogFile

_PROBE_TIMEOUT_SECONDS = 1.0


class WorkerProcess:
    """`rrq worker run` in the background, with its output in a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        self.log = LogFile(log_path)
        with log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl+C is for local mode, which then drains its replicas.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return how it ended, a signal as negative number; None while it runs."""
        return self._process.poll()

    async def is_ready(self) -> bool:
        """Ask for /readyz, as a kubelet would."""
        self.log.follow()
        port = self.log.http_port
        return port is not None and await _answers_ok(port, "/readyz")

    def terminate(self) -> None:
        """Have it drain and end; a second call hurries."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


async def _answers_ok(port: int, path: str) -> bool:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
