"""The way of a job through the code, from enqueue to result, crosses few files: those that docs/architecture.md lists."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rrq
from rrq.job import JobStatus
from rrq.worker import RRQWorker
from running import running
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rrq.client import RRQClient
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings

PACKAGE = Path(rrq.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST_FILES = 14


@contextmanager
def files_entered() -> Iterator[set[str]]:
    """Collect the files of the package whose functions are called; what runs on import does not count."""
    entered: set[str] = set()
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(prefix):
            entered.add(code.co_filename.removeprefix(prefix))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def run_one(client: RRQClient) -> None:
    job = await client.enqueue("greet", "Ada")
    assert job is not None

    async def is_done() -> bool:
        result = await client.get_job_status(job.id)
        return result is not None and (result.status, result.result) == (JobStatus.COMPLETED, "Hello Ada")

    await eventually(is_done, interval_seconds=0.01)


def documented_files() -> list[str]:
    """The first word of each line of the block that follows the heading."""
    block = re.search(
        r"^### File by file\n.*?```text\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert block is not None, f"{ARCHITECTURE} has no block with the files"
    return [line.split()[0] for line in block[1].splitlines()]


async def test_a_job_crosses_only_the_files_that_the_architecture_page_lists(
    settings: RRQSettings, client: RRQClient
) -> None:
    registry: JobRegistry | None = settings.job_registry
    assert registry is not None

    async def greet(_context: dict[str, Any], name: str) -> str:
        return f"Hello {name}"

    registry.register("greet", greet)
    async with running(RRQWorker(settings, registry)):
        await run_one(client)  # opens the connections and loads the scripts
        ways = []
        for _ in range(5):
            with files_entered() as entered:
                await run_one(client)
            ways.append(entered)
    # Heartbeats fall into the way of one or two of them at most.
    crossed = sorted(set.intersection(*ways))
    assert crossed == sorted(documented_files()), "\n".join(["the way of a job:", *crossed])
    assert len(crossed) <= MOST_FILES, "\n".join(crossed)
