"""Runs docs/tutorial.md command by command, from a Redis to a pool that scales.

`make demo`, with which it begins, is run by tests/operator/local/test_demo.py; its last part, which needs a cluster, is
what tests/e2e does. The commands of both are looked at by test_pages.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from doc_pages import ROOT, Block, find_blocks
from page_shell import PageShell, find_free_port, find_missing_lines
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "docs/tutorial.md"
START_SECONDS = 60.0
SHRINK_SECONDS = 90.0
# The page sleeps for as long as a job takes on an idle machine. The test waits until the job has ended.
SLEEP_UNTIL_ENDED = """
sleep() {
    for _ in $(seq 120); do
        case "$(rrq job show "$id")" in *COMPLETED*|*FAILED*) return ;; esac
        command sleep 0.25
    done
    echo "$id has not ended"
    return 1
}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def read_steps() -> dict[str, list[Block]]:
    """Return the blocks of the page by the number of their step."""
    lines = (ROOT / PAGE).read_text().splitlines()
    headings = [(number, line) for number, line in enumerate(lines, 1) if re.match(r"## \d+\.", line)]
    steps: dict[str, list[Block]] = {}
    for block in find_blocks(PAGE):
        before = [line for number, line in headings if number < block.line]
        if before:
            steps.setdefault(before[-1].split()[1].rstrip("."), []).append(block)
    return steps


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    ports = {"6390": str(find_free_port()), "127.0.0.1:8080": f"127.0.0.1:{find_free_port()}"}
    # Shorter times: a deferred job is due in five seconds, and the pool scales down after two.
    pool, manifest = "examples/pool.yaml", tmp_path / "pool.yaml"
    manifest.write_text((ROOT / pool).read_text().replace("windowSeconds: 10", "windowSeconds: 2"))
    shell = PageShell(tmp_path, {**ports, "--delay 60": "--delay 5", pool: str(manifest)})
    try:
        yield shell
    finally:
        shell.end()


async def shows(output: Path, lines: str, seconds: float = START_SECONDS) -> None:
    """Wait until a terminal shows the lines of the page."""
    await eventually(
        lambda: not find_missing_lines(lines, output.read_text()),
        seconds,
        f"{lines!r} is not in {output}",
    )


def scripts(blocks: list[Block]) -> list[str]:
    return [block.text for block in blocks if block.language == "sh"]


def outputs(blocks: list[Block]) -> str:
    return "".join(block.text for block in blocks if block.language == "text")


async def start_redis(shell: PageShell, steps: dict[str, list[Block]]) -> None:
    """Step 2: a Redis in its own terminal, and the variables of the other terminals."""
    server, variables = scripts(steps["2"])
    await shows(shell.start(server), "Ready to accept connections")
    shell.prelude = variables


async def test_the_steps_with_a_worker_show_what_the_page_says(shell: PageShell) -> None:
    steps = read_steps()
    await start_redis(shell, steps)

    # 3. A worker.
    worker, ask = scripts(steps["3"])
    started, ready = (block.text for block in steps["3"] if block.language == "text")
    await shows(shell.start(worker), started)
    await eventually(lambda: shell.run(ask) == ready, START_SECONDS, "the worker is not ready")

    # 4. to 6. A job, a retry, a dead letter.
    for step in ("4", "5", "6"):
        said = shell.run("\n".join([SLEEP_UNTIL_ENDED, *scripts(steps[step])]))
        assert find_missing_lines(outputs(steps[step]), said) == [], said

    # 7. Ctrl-C ends the worker; another one has a cron entry.
    assert shell.press_ctrl_c() == 0
    with_cron, look = scripts(steps["7"])
    await shows(shell.start(with_cron), "Settings examples.jobs.settings from RRQ_SETTINGS.")
    # The process with the schedule starts after this line.
    find_ticks = (
        "python -c 'import os, redis; "
        'print(list(redis.Redis.from_url(os.environ["RRQ_REDIS_DSN"]).scan_iter("rrq:cron:*")))\''
    )
    await eventually(
        lambda: "rrq:cron:" in shell.run(find_ticks), START_SECONDS, "no entry has its next tick"
    )
    assert "send_email" in shell.run(look)
    assert shell.press_ctrl_c() == 0


async def test_the_step_with_a_pool_shows_what_the_page_says(shell: PageShell) -> None:
    steps = read_steps()
    await start_redis(shell, steps)

    # 8. A pool on this machine.
    pool, many, later = scripts(steps["8"])
    first_lines, queued, grows = (block.text for block in steps["8"] if block.language == "text")
    terminal = shell.start(pool)
    await shows(terminal, first_lines)
    assert shell.run(many) == queued
    await shows(terminal, grows)
    assert "Delay: 5s" in shell.run(later)
    await shows(terminal, "shop: shrinks from … to 0", SHRINK_SECONDS)
    assert shell.press_ctrl_c() == 0
