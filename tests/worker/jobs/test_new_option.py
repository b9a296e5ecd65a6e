"""A new enqueue option is one line in Python and one in Lua: every way to enqueue takes it, and the job has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARY = Path(__file__).parents[3] / "worker"
#: File in the library, the line that a neighbour has, and the line to add behind it.
LINES = (
    ("rrq/jobs/options.py", "    limit_key: Key | None\n", "    colour: str | None\n"),
    (
        "rrq/broker/lua/shared/enqueue.lua",
        "    {'limit_key', 'string'},\n",
        "    {'colour', 'string'},\n",
    ),
)
PRODUCER = """
import asyncio, json, sys
from rrq import App, RRQSettings
from rrq.exc import InvalidJob
from rrq.job import JobRequest

async def main():
    app = App(RRQSettings(redis_dsn=sys.argv[1]))

    @app.job(colour="red")
    async def paint(ctx): ...

    async with app:
        client = app.client
        jobs = {
            "enqueue": (await client.enqueue("paint", _colour="green")).id,
            "request": (await client.enqueue_many([JobRequest("paint", colour="blue")]))[0].id,
            "function": (await paint.enqueue()).id,
            "call": (await paint.with_options(colour="white").enqueue()).id,
            "chain": (await client.enqueue("paint", _then=[JobRequest("paint", colour="black")])).id,
            "again": (await client.enqueue("paint", _job_id="again", _colour="grey")).id,
        }
        await client.enqueue("paint", _job_id="again")
        try:
            await client.enqueue("paint", _colour="\\udcff")
        except InvalidJob:
            jobs["refused"] = "refused"
        stored = {way: await client.job_store.get_job(job_id) for way, job_id in jobs.items()}
    print(json.dumps(stored))

asyncio.run(main())
"""


def test_an_option_that_is_one_line_in_python_and_one_in_lua_is_stored(
    tmp_path: Path, redis_dsn: str
) -> None:
    shutil.copytree(LIBRARY / "rrq", tmp_path / "rrq", ignore=shutil.ignore_patterns("__pycache__"))
    for name, neighbour, line in LINES:
        path = tmp_path / name
        text = path.read_text()
        assert text.count(neighbour) == 1
        assert line.count("\n") == 1
        path.write_text(text.replace(neighbour, neighbour + line))

    done = subprocess.run(
        [sys.executable, "-c", PRODUCER, redis_dsn],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    stored = json.loads(done.stdout)
    colours = {way: job and job.get("colour") for way, job in stored.items()}
    assert colours == {
        "enqueue": "green",
        "request": "blue",
        "function": "red",
        "call": "white",
        "chain": None,
        "again": None,  # the second life of an id has nothing of the first
        "refused": None,
    }
    (follower,) = json.loads(stored["chain"]["next"])
    assert json.loads(follower[13]) == {"colour": "black"}
