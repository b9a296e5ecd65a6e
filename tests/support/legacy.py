"""RRQ 0.7.1 itself, in an environment of its own, to stand beside ours on the same Redis.

The environment is made once, under `.cache/` at the root of the project, and kept. What runs inside it is
`legacy_agent.py`: a process that is told what to do, one JSON object per line, and answers likewise.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

VERSION = "0.7.1"
_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".cache" / f"rrq-{VERSION}"
_AGENT = Path(__file__).with_name("legacy_agent.py")
_INSTALL_SECONDS = 300


class LegacyUnavailable(Exception):
    """The environment could not be made, most likely for want of a package index."""


class LegacyError(Exception):
    """What RRQ 0.7.1 raised, as text."""


def legacy_python() -> Path:
    """Return the interpreter that has RRQ 0.7.1, installing it first if this machine never did."""
    python = _FOLDER / "bin" / "python"
    finished = _FOLDER / "installed"
    _FOLDER.parent.mkdir(exist_ok=True)
    with open(_FOLDER.with_name(f"{_FOLDER.name}.lock"), "w", encoding="utf-8") as lock:
        # Two test runs at once must not install into the same folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(_FOLDER, ignore_errors=True)
            venv.create(_FOLDER)  # the pip of this environment does the rest
            _install(python)
            finished.touch()
    return python


def _install(python: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-compile",
        "--quiet",
        "--disable-pip-version-check",
        f"rrq=={VERSION}",
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as failure:
        raise LegacyUnavailable(f"rrq=={VERSION} could not be installed: {failure.stderr}") from failure
    except subprocess.TimeoutExpired as failure:
        raise LegacyUnavailable(f"rrq=={VERSION} was not installed within {_INSTALL_SECONDS} s") from failure


class Legacy:
    """A process with RRQ 0.7.1; use as `with Legacy(dsn) as legacy`, then `await legacy.call(...)`."""

    def __init__(self, redis_dsn: str) -> None:
        self._redis_dsn = redis_dsn
        self._process: subprocess.Popen[str] | None = None

    async def call(self, command: str, /, **arguments: Any) -> Any:
        """Have a command of the agent executed; raises LegacyError with what it raised."""
        line = json.dumps({"command": command, "arguments": arguments})
        answer = json.loads(await asyncio.to_thread(self._exchange, line))
        if "error" in answer:
            raise LegacyError(answer["error"])
        return answer["value"]

    def _exchange(self, line: str) -> str:
        process = self._process
        assert process is not None, "start the agent first"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise LegacyError(f"the agent ended with exit code {process.wait()}")
        return answer

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            # Isolated, so that neither this project nor PYTHONPATH is imported in place of 0.7.1.
            [legacy_python(), "-I", _AGENT, self._redis_dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            env={},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
