"""A sandbox for the mistakes of docs/mistakes.md: a folder with an application, several Redis servers, and commands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import shlex
import subprocess
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import yaml
from click.testing import CliRunner

import rrq.cli
import rrq_operator.cli
import rrq_operator.plugin.cli
from bad_manifests import good_manifest
from commandline import child_environment
from mistakes_page import is_shown
from rrq import CronJob, JobRegistry, RRQClient, RRQSettings, RRQWorker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import click

    from mistakes_page import Block

APPLICATION = """
from rrq import JobRegistry, RRQSettings


async def send_email(ctx, address):
    return f"sent to {address}"


registry = JobRegistry()
registry.register("send_email", send_email)
settings = RRQSettings(job_registry=registry)
bare = RRQSettings()
"""
_GROUPS: Mapping[str, click.Group] = {
    "rrq": rrq.cli.rrq,
    "rrq-operator": rrq_operator.cli.main,
    "kubectl-rrq": rrq_operator.plugin.cli.rrq,
}
_MODULES = {"rrq": "rrq", "rrq-operator": "rrq_operator"}
# When to give up. Local mode starts many interpreters in turn, which takes long beside other tests.
PATIENCE_SECONDS = 100.0


@dataclass
class Sandbox:
    """One user in one folder. ``addresses`` maps addresses of the page to those of this run."""

    folder: Path
    addresses: Mapping[str, str]
    programs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "shop.py").write_text(APPLICATION)

    async def play(self, block: Block, answer: str) -> str:
        """Run a block; returns its output, with the addresses of the page.

        A script that runs on is ended as soon as it has printed ``answer``.
        """
        text = self._localize(block.text)
        if block.language == "yaml":
            self._write_pool(text)
            return ""
        if block.language == "python" and text.startswith("# "):
            name, _, source = text.removeprefix("# ").partition("\n")
            (self.folder / name).write_text(source)
            return ""
        if block.language == "python":
            return self._globalize(await self._run_python(text))
        if block.language == "bash":
            return self._globalize(await asyncio.to_thread(self._run_process, text, answer))
        return self._globalize(await self._run_command(text))

    def _write_pool(self, text: str) -> None:
        pool = good_manifest()
        del pool["spec"]["redis"]
        (self.folder / "pool.yaml").write_text(yaml.safe_dump(_merge(pool, yaml.safe_load(text))))

    def _split(self, line: str) -> tuple[list[str], dict[str, str]]:
        """Return the words of a command, and its environment."""
        words = shlex.split(line)
        environment = {"RRQ_REDIS_DSN": f"redis://{self.addresses['127.0.0.1:6379']}/0", "COLUMNS": "200"}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        return words, environment

    async def _run_command(self, line: str) -> str:
        words, environment = self._split(line)
        group, program = _GROUPS[words[0]], words[0].replace("-", " ", words[0].startswith("kubectl"))
        runner = CliRunner(env={"RRQ_SETTINGS": None, **environment})
        result = await asyncio.to_thread(runner.invoke, group, words[1:], prog_name=program)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return "".join(traceback.format_exception(result.exception))
        return result.output

    def _run_process(self, line: str, answer: str) -> str:
        words, environment = self._split(line)
        module = _MODULES.get(words[0])
        program = [sys.executable, "-m", module] if module is not None else [self.programs[words[0]]]
        # A separate process, because a thread of the tests has no signal handlers and must not change their logging.
        path = os.pathsep.join((str(self.folder), os.environ.get("PYTHONPATH", "")))
        inherited = child_environment({**environment, "PYTHONPATH": path})
        printed = ""
        with subprocess.Popen(
            [*program, *words[1:]],
            cwd=self.folder,
            env=inherited,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            giving_up = threading.Timer(PATIENCE_SECONDS, process.kill)
            giving_up.start()
            assert process.stdout is not None
            for printed_line in process.stdout:
                printed += printed_line
                # Our programs exit by themselves. A script of the reader does not, so it is killed after its output.
                if words[0] == "python" and is_shown(answer, self._globalize(printed)):
                    process.kill()
            giving_up.cancel()
        return printed

    async def _run_python(self, source: str) -> str:
        """Run statements that may await; returns the last line of a traceback, or the warnings."""
        settings = RRQSettings(
            redis_dsn=f"redis://{self.addresses['127.0.0.1:6379']}/0", job_registry=JobRegistry()
        )
        client = RRQClient(settings)
        names: dict[str, Any] = {
            name: value
            for value in (
                CronJob,
                JobRegistry,
                RRQClient,
                RRQSettings,
                RRQWorker,
                asyncio,
                datetime,
                timedelta,
                send_email,
            )
            if (name := value.__name__)
        } | {"UTC": UTC, "client": client, "settings": settings, "registry": settings.job_registry}
        code = compile(source, "page.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            try:
                outcome = eval(code, names)
                if inspect.isawaitable(outcome):
                    await outcome
            # The page shows what the code raises.
            except Exception as error:  # noqa: BLE001
                return "".join(traceback.format_exception_only(error))
            finally:
                await client.close()
        return "".join(f"{type(warning.message).__name__}: {warning.message}\n" for warning in shown)

    def _localize(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def _globalize(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(real, shown)
            # An error of the socket has host and port as a pair.
            text = text.replace(_as_pair(real), _as_pair(shown))
        return text.replace(f"{self.folder}{os.sep}", "")


async def send_email(ctx: Any, address: str) -> str:
    return f"sent to {address}"


def _as_pair(address: str) -> str:
    host, _, port = address.partition(":")
    return f"('{host}', {port})"


def _merge(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return base | {key: _merge(base.get(key), value) for key, value in change.items()}
