"""What mypy says to users of the typed API: nothing about right calls, and the right thing about wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "worker"

USERS_CODE = """
from typing import Any

from rrq import App
from rrq.client import JobRequest
from rrq.context import JobContext
from rrq.job_handle import JobHandle

app = App()


@app.job(queue="mail", max_retries=3)
async def send(ctx: dict[str, Any], to: str, *, copies: int = 1) -> int:
    return copies


@app.job()
def shout(ctx: JobContext, text: str) -> str:
    return text.upper()


async def right() -> None:
    handle = await send.enqueue("eve", copies=2)
    number: int = await handle.result(timeout_seconds=5)
    kept: JobHandle[int] = send.handle(handle.id)
    text: str = await (await shout.with_options(queue="q", defer_by=2.5, job_id="a").enqueue(text="hi")).result()
    batch: list[JobRequest] = [send.request("eve"), shout.with_options(max_retries=1).request("hi")]
    called: int = await send({}, "eve")
    plain: str = shout({}, "hi")


async def wrong() -> None:
    await send.enqueue(7)  # E: Argument 1 to "enqueue" of "Enqueuer" has incompatible type "int"; expected "str"  [arg-type]
    await send.enqueue()  # E: Missing positional argument "to" in call to "enqueue" of "Enqueuer"  [call-arg]
    await send.enqueue("eve", loud=True)  # E: Unexpected keyword argument "loud" for "enqueue" of "Enqueuer"  [call-arg]
    await send.enqueue("eve", copies="2")  # E: Argument "copies" to "enqueue" of "Enqueuer" has incompatible type "str"; expected "int"  [arg-type]
    text: str = await (await send.enqueue("eve")).result()  # E: Incompatible types in assignment (expression has type "int", variable has type "str")  [assignment]
    kept: JobHandle[str] = await send.enqueue("eve")  # E: Incompatible types in assignment (expression has type "JobHandle[int]", variable has type "JobHandle[str]")  [assignment]
    await shout.with_options(queue="q").enqueue(b"hi")  # E: Argument 1 to "enqueue" of "Enqueuer" has incompatible type "bytes"; expected "str"  [arg-type]
    shout.request()  # E: Missing positional argument "text" in call to "request" of "Enqueuer"  [call-arg]
    send.with_options(colour="red")  # E: Unexpected keyword argument "colour" for "with_options" of "Enqueuer"  [call-arg]
    send.with_options(max_retries="3")  # E: Argument "max_retries" to "with_options" of "Enqueuer" has incompatible type "str"; expected "int | None"  [arg-type]
    shout({}, 7)  # E: Argument 2 to "__call__" of "PlainJobFunction" has incompatible type "int"; expected "str"  [arg-type]


@app.job(job_id="same")  # E: Unexpected keyword argument "job_id" for "job" of "App"  [call-arg]
async def fixed_id(ctx: dict[str, Any]) -> None: ...
"""


@pytest.mark.slow  # mypy reads pydantic and redis-py before it comes to the point
def test_mypy_checks_arguments_options_and_results(tmp_path: Path) -> None:
    file = tmp_path / "users_code.py"
    file.write_text(USERS_CODE)
    expected = {
        number: line.partition("# E: ")[2]
        for number, line in enumerate(USERS_CODE.splitlines(), 1)
        if "# E: " in line
    }

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", file],
        env={"MYPYPATH": str(WORKER), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    complaints = {
        int(found[1]): found[2] for found in re.finditer(r"users_code\.py:(\d+): error: (.+)", done.stdout)
    }
    assert complaints == expected, done.stdout + done.stderr
