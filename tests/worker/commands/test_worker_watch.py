"""`rrq worker watch`: one worker that starts anew when its code changes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from commandline import CommandLine, child_environment
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rrq.client import RRQClient

# When to give up: the command and its worker are two interpreters, which take long to come up beside other tests.
PATIENCE_SECONDS = 60.0

APPLICATION = """
import asyncio
from rrq import JobRegistry, RRQSettings

async def answer(ctx):
    return {answer!r}

async def hold(ctx):
    await asyncio.sleep({seconds})
    return "held"

registry = JobRegistry()
registry.register("answer", answer)
registry.register("hold", hold)
settings = RRQSettings(job_registry=registry, worker_shutdown_grace_period_seconds={grace})
"""


class Watched:
    """The command as a process, with what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    async def prints(self, text: str, times: int = 1) -> None:
        await eventually(
            lambda: self.printed.count(text) >= times, PATIENCE_SECONDS, f"{text!r}: {self.printed}"
        )

    async def ends(self) -> int:
        code = await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)
        self._reader.join(5.0)
        return code


@pytest.fixture
def application(tmp_path: Path) -> Path:
    file = tmp_path / "watched_application.py"
    write(file)
    return file


def write(file: Path, answer: str = "old", seconds: float = 0.0, grace: float = 5.0) -> None:
    file.write_text(APPLICATION.format(answer=answer, seconds=seconds, grace=grace))


@contextmanager
def watching(cli: CommandLine, file: Path, *options: str) -> Iterator[Watched]:
    """Run the command for the folder of ``file``, and from there."""
    environment = child_environment(cli.environment)
    environment["PYTHONPATH"] += f":{file.parent}"
    # The names of compiled files depend on whole seconds; a test is quicker than that.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rrq", "worker", "watch", "--path", str(file.parent)),
            *("--settings", f"{file.stem}.settings", *options),
        ],
        cwd=file.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Watched(process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


async def result_of(client: RRQClient, function: str, queue: str | None = None) -> object:
    job = await client.enqueue(function, _queue_name=queue)
    assert job is not None
    result = await client.wait_for_completion(job.id, timeout_seconds=PATIENCE_SECONDS)
    assert result is not None
    return result.result


async def test_changed_settings_and_code_take_effect(
    cli: CommandLine, client: RRQClient, application: Path
) -> None:
    folder = application.parent
    (folder / ".env").write_text("RRQ_DEFAULT_QUEUE_NAME=first\n")
    with watching(cli, application) as watched:
        await watched.prints("serves first.")
        assert await result_of(client, "answer", "first") == "old"

        (folder / "output.log").write_text("a handler wrote this")
        (folder / ".env").write_text("RRQ_DEFAULT_QUEUE_NAME=second\n")
        await watched.prints("serves second.")
        assert "output.log" not in watched.printed

        application.write_text("this is no Python\n")
        await watched.prints("watched_application.py changed; restarting the worker.")
        await watched.prints("ERROR: Unexpected error processing settings object")
        await watched.prints("The worker ended with exit code 1. It starts again when a file changes.")
        write(application, answer="new")
        await watched.prints("serves second.", times=2)
        assert await result_of(client, "answer", "second") == "new"
        watched.process.send_signal(signal.SIGINT)
        assert await watched.ends() == 0
    assert "Traceback" not in watched.printed


async def test_a_running_job_finishes_before_the_restart(
    cli: CommandLine, client: RRQClient, application: Path
) -> None:
    write(application, seconds=1.0)
    with watching(cli, application, "--queue", "mail") as watched:
        await watched.prints("serves mail")
        job = await client.enqueue("hold", _max_retries=1, _queue_name="mail")
        assert job is not None

        async def is_active() -> bool:
            return ((await client.job_store.get_job(job.id)) or {}).get("status") == "ACTIVE"

        await eventually(is_active)
        write(application, seconds=60.0)
        result = await client.wait_for_completion(job.id, timeout_seconds=PATIENCE_SECONDS)
        assert result is not None
        assert result.result == "held"
        await watched.prints("serves mail", times=2)
        watched.process.send_signal(signal.SIGTERM)
        assert await watched.ends() == 0


async def test_a_worker_that_does_not_end_is_killed(
    cli: CommandLine, client: RRQClient, application: Path
) -> None:
    # Less than nothing, so that with the margin on top the wait is half a second.
    source = APPLICATION.format(answer="x", seconds=0, grace=-4.5)
    application.write_text(
        f"{source}\nasync def stop():\n    await asyncio.sleep(60)\nsettings.on_shutdown = stop\n"
    )
    with watching(cli, application) as watched:
        await watched.prints("serves")
        # Now it listens to signals; before, one ends it at once.
        await result_of(client, "answer")
        watched.process.send_signal(signal.SIGTERM)
        assert await watched.ends() == 0
        assert "The worker did not end within 0.5 s; killing it." in watched.printed


async def test_a_missing_folder_and_settings_without_a_registry_are_refused(cli: CommandLine) -> None:
    assert (await cli.run("worker", "watch", "--path", "/no/such/folder")).exit_code == 2
    complaint = await cli.refused("worker", "watch")
    assert complaint.startswith(
        "ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings. Write RRQSettings("
    )
