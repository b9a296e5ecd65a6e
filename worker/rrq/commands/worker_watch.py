"""``rrq worker watch``: one worker that restarts whenever the source code changes.

The worker runs in a process of its own, because a module that was imported stays as it was.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from watchfiles import PythonFilter, awatch

from rrq.commands.options import settings_option
from rrq.runtime.installation import describe_other_distribution
from rrq.settings_loading import load_settings, require_registry
from rrq.store import JobStore

# After the grace period a worker still returns its jobs and ends its lease.
_STOP_MARGIN_SECONDS = 5.0
# Code and its configuration. Not any file: a handler that writes into the folder would restart its own worker for ever.
_CONFIGURATION_FILES = (".env", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".json")


@click.command("watch")
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder to watch, with everything below it.",
)
@click.option("--queue", "queues", multiple=True, help="Queue to serve; may be repeated.")
@settings_option
def worker_watch(path: Path, queues: tuple[str, ...], settings_path: str | None) -> None:
    """Run one worker and restart it gracefully when Python or configuration files change."""
    # Copied before loading adds variables from a .env file, so that a change of that file takes effect.
    environment = dict(os.environ)
    settings = load_settings(settings_path)
    require_registry(settings)
    JobStore(settings)  # opens no connection, but raises SettingsError for a DSN that can never work
    options = [f"--settings={settings_path}"] if settings_path else []
    options += [f"--queue={queue}" for queue in queues]
    if warning := describe_other_distribution():
        click.echo(f"WARNING: {warning}", err=True)
    stop_seconds = settings.worker_shutdown_grace_period_seconds + _STOP_MARGIN_SECONDS
    asyncio.run(_watch(path, _WorkerProcess(options, environment, stop_seconds)))


class _WorkerProcess:
    """The process of the worker; ``start`` and ``stop`` alternate."""

    def __init__(self, options: Sequence[str], environment: Mapping[str, str], stop_seconds: float) -> None:
        self._command = (sys.executable, "-m", "rrq.commands.watch_child", *options)
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, env=self._environment)
        self._waiting = asyncio.create_task(self._print_end(self._process))

    async def stop(self) -> None:
        """Drain the worker. A worker that does not end in time is killed, and its jobs run again."""
        process, waiting = self._process, self._waiting
        if process is None or waiting is None:
            return
        waiting.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._stop_seconds)
        except TimeoutError:
            click.echo(f"The worker did not end within {self._stop_seconds:g} s; killing it.", err=True)
            process.kill()
            await process.wait()

    async def _print_end(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        click.echo(f"The worker ended with exit code {code}. It starts again when a file changes.", err=True)


async def _watch(path: Path, worker: _WorkerProcess) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    click.echo(f"Watching {path} for changes. Press Ctrl-C to stop.")
    files = PythonFilter(extra_extensions=_CONFIGURATION_FILES)
    await worker.start()
    try:
        async for changes in awatch(path, watch_filter=files, stop_event=stopping):
            click.echo(f"{_describe_changes({file for _, file in changes})} changed; restarting the worker.")
            await worker.stop()
            if stopping.is_set():
                break
            await worker.start()
    finally:
        await worker.stop()


def _describe_changes(changed: set[str]) -> str:
    first = Path(min(changed)).name
    return first if len(changed) == 1 else f"{first} and {len(changed) - 1} more"
