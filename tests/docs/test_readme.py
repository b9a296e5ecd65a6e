"""The README: its quickstart runs as pasted and passes mypy, it is short, and leads to the headings people search for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from doc_pages import ROOT, find_blocks
from page_shell import PageShell
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis

README = (ROOT / "README.md").read_text()
LONGEST_LINES = 200
#: What people type into a search box, and the page whose heading answers it.
HEADINGS = {
    "Install": "README.md",
    "Quickstart": "README.md",
    "Scale to zero": "docs/operator.md",
    "Rate limits": "docs/flow-control.md",
    "Graceful shutdown": "docs/multi-worker.md",
    "Cron": "docs/operator.md",
    "Upgrading": "docs/operations.md",
}


def write_quickstart(folder: Path) -> list[Path]:
    """Write the Python of the quickstart into the files that its first lines name."""
    files = []
    for block in find_blocks("README.md"):
        if block.language == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            files.append(folder / name)
            files[-1].write_text(block.text)
    return files


@pytest.mark.slow
async def test_the_quickstart_runs_as_pasted(tmp_path: Path, own_redis: EmbeddedRedis) -> None:
    assert [file.name for file in write_quickstart(tmp_path)] == ["shop.py", "enqueue.py"]
    (commands,) = (block.text for block in find_blocks("README.md") if "rrq worker run" in block.text)
    worker, producer = commands.splitlines()
    (promised,) = re.findall(r"The second command prints `(.*?)`", README)
    shell = PageShell(tmp_path, {})
    shell.prelude = f"export RRQ_REDIS_DSN={own_redis.dsn}\ncd {tmp_path}"
    try:
        output = shell.start(f"{worker} --num-workers 1")
        await eventually(lambda: "serves rrq:queue:default" in output.read_text(), 60, "no worker came up")
        said = shell.run(producer)
    finally:
        shell.end()
    assert said == f"{promised}\n"


@pytest.mark.slow
def test_the_quickstart_passes_mypy(tmp_path: Path) -> None:
    files = write_quickstart(tmp_path)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache"),
         "--follow-imports=silent", *map(str, files)],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT / "worker")}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_jobs_of_the_readme_reach_the_queue_of_the_example(redis_dsn: str) -> None:
    (command,) = re.findall(r"\.venv/bin/python (-m examples\.\w+)", README)
    said = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT, env={**os.environ, "RRQ_REDIS_DSN": redis_dsn}, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert said.strip() == "450 jobs queued"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST_LINES


def test_what_people_search_for_is_a_heading_that_the_readme_leads_to() -> None:
    for heading, page in HEADINGS.items():
        assert re.search(rf"^## (?:\d+\. )?{heading}$", (ROOT / page).read_text(), re.MULTILINE), heading
        anchor = heading.lower().replace(" ", "-")
        assert page == "README.md" or f"]({page}#{anchor})" in README, heading
