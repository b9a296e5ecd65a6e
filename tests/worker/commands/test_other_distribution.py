"""The distribution `rrq` on PyPI is another project: where it is installed beside ours, commands say so."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest

import rrq

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from commandline import CommandLine

WARNING = (
    "WARNING: The distribution rrq 0.11.1, another project, is installed beside rrq-kubernetes and shares file names with "
    "it. Run: pip uninstall --yes rrq && pip install --force-reinstall --no-deps rrq-kubernetes\n"
)


@pytest.fixture
def crowded(cli: CommandLine, tmp_path: Path) -> CommandLine:
    """A command line in an environment where pip has installed the other distribution, too."""
    described = tmp_path / "rrq-0.11.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: rrq\nVersion: 0.11.1\n")
    (tmp_path / "shop.py").write_text("from rrq import App\nsettings = App().settings\n")
    cli.environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    return cli


async def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    return await asyncio.to_thread(process.communicate, timeout=60)


async def test_the_version_warns(crowded: CommandLine) -> None:
    process = crowded.process("--version")
    shown, told = await finish(process)
    assert (process.returncode, told) == (0, WARNING)
    assert shown.startswith("rrq, version ")


async def test_a_check_warns(crowded: CommandLine) -> None:
    _, told = await finish(crowded.process("check"))
    assert WARNING in told
    shown, _ = await finish(crowded.process("check", "--json"))
    assert f"WARNING: {json.loads(shown)['risks'][0]}\n" == WARNING


async def test_a_worker_warns_once_and_runs(crowded: CommandLine) -> None:
    process = crowded.process("worker", "run", "--burst", "--settings", "shop.settings")
    _, told = await finish(process)
    assert process.returncode == 0
    assert told.count(WARNING) == 1


async def test_without_another_distribution_nothing_is_printed(cli: CommandLine) -> None:
    assert await finish(cli.process("--version")) == (f"rrq, version {rrq.__version__}\n", "")
    assert "another project" not in (await cli.run("check")).output
