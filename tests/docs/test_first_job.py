"""The first job of the README: its two pieces of Python and its command, as they stand, on a Redis of their own."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

import pytest

from doc_pages import find_blocks
from page_shell import PageShell
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis

ADDRESS = "redis://localhost:6379/0"


@pytest.mark.slow
async def test_the_first_job_of_the_readme_runs(tmp_path: Path, own_redis: EmbeddedRedis) -> None:
    application, producer = (
        next(block.text for block in find_blocks("README.md") if block.text.startswith(start))
        for start in ("# shop.py", "# anywhere else")
    )
    (command,) = (
        block.text
        for block in find_blocks("README.md")
        if block.text.startswith("PYTHONPATH=. rrq worker run --settings shop.settings")
    )
    assert ADDRESS in application
    (tmp_path / "shop.py").write_text(application.replace(ADDRESS, own_redis.dsn))
    body = textwrap.indent(producer, "    ")
    (tmp_path / "anywhere_else.py").write_text(
        f"import asyncio\n\nasync def main():\n{body}\nasyncio.run(main())\n"
    )
    shell = PageShell(tmp_path, {})
    try:
        output = shell.start(f"cd {tmp_path}\n{command.rstrip()} --num-workers 1")
        await eventually(lambda: "serves rrq:queue:default" in output.read_text(), 60, "no worker came up")
        said = shell.run("PYTHONPATH=. python anywhere_else.py", cwd=tmp_path)
    finally:
        shell.end()
    assert said == "COMPLETED sent to ada@example.org\n"
    (promised,) = re.findall(r"# (COMPLETED .*)", producer)
    assert said.strip() == promised
