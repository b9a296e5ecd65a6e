"""The images that only tests use: the application of the end-to-end stories, and Redis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import redis

from docker_engine import LOCKED_DOWN
from image_bundle import NEXT_STORIES, REDIS, STORIES
from rrq.job import JobStatus
from story_ledger import Entry, StoryLedger
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from docker_engine import DockerEngine
    from rrq.client import RRQClient
    from rrq.job import Job


def build_entry(job_id: str, event: str, attempt: int = 1) -> Entry:
    return Entry(job_id, attempt, event, 0.0, "pod", "test")


def read_ledger(dsn: str) -> StoryLedger:
    with redis.Redis.from_url(dsn) as connection:
        return StoryLedger.parse(connection.hvals("ledger:story"))


def test_the_ledger_tells_what_was_done_once_and_what_was_lost() -> None:
    entries = [
        *(build_entry("once", event) for event in ("started", "finished")),
        *(build_entry("twice", event) for event in ("started", "finished") * 2),
        *(build_entry("handed back", event) for event in ("started", "cancelled", "started", "finished")),
        build_entry("killed", "started"),
    ]
    ledger = StoryLedger(entries)
    StoryLedger(entries[:2]).assert_each_once(["once"])
    with pytest.raises(AssertionError, match=r"1 missing: .*never begun.*3 too many"):
        ledger.assert_each_once(["once", "twice", "killed", "never begun"])
    ledger.assert_none_lost(["once", "twice", "handed back"])
    with pytest.raises(AssertionError, match=r"2 jobs were never finished: \['killed', 'never begun'\]"):
        ledger.assert_none_lost(["once", "killed", "never begun"])


def work_off(engine: DockerEngine, dsn: str, image: str, *options: str) -> None:
    """Run a worker until its queue is empty."""
    network = ("--network", "host", "--env", f"RRQ_REDIS_DSN={dsn}")
    engine.run("run", "--rm", *network, *LOCKED_DOWN, *options, image, "worker", "run", "--burst")


async def enqueue(client: RRQClient, name: str, *args: Any) -> Job:
    job = await client.enqueue(name, *args)
    assert job is not None
    return job


async def read_result(client: RRQClient, job: Job) -> Any:
    seen = await client.get_job_status(job.id)
    assert seen is not None
    assert seen.status is JobStatus.COMPLETED, seen
    return seen.result


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_handlers_tell_what_they_did_and_where(
    engine: DockerEngine, client: RRQClient, redis_dsn: str
) -> None:
    jobs = [await enqueue(client, "work", "story", 0.01) for _ in range(20)]
    burning = await enqueue(client, "burn", 0.1)
    asking = await enqueue(client, "ask_cluster", "/version")
    work_off(engine, redis_dsn, STORIES, "--hostname", "pod-1")
    ledger = read_ledger(redis_dsn)
    ledger.assert_each_once(job.id for job in jobs)
    assert ledger.interrupted == []
    assert {(entry.pod, entry.version, entry.attempt) for entry in ledger.entries} == {("pod-1", "test", 1)}
    assert await read_result(client, burning) >= 0.1
    assert "Error" in await read_result(client, asking)


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_two_versions_can_be_told_apart(
    engine: DockerEngine, client: RRQClient, redis_dsn: str
) -> None:
    for image, version in ((STORIES, "test"), (NEXT_STORIES, "next")):
        job = await enqueue(client, "what_am_i")
        work_off(engine, redis_dsn, image, "--hostname", "pod-1")
        answer = await read_result(client, job)
        assert "RRQ_REDIS_DSN" in answer.pop("environment")
        assert answer == {
            "version": version,
            "pod": "pod-1",
            "uid": 65532,
            "gid": answer["gid"],
            "effective_capabilities": 0,
            "bounding_capabilities": 0,
            "no_new_privileges": True,
            "seccomp_filters": answer["seccomp_filters"],
            "read_only_root": True,
            "service_account_token": False,
        }


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_a_job_that_takes_all_memory_is_killed_and_then_behaves(
    engine: DockerEngine, client: RRQClient, redis_dsn: str
) -> None:
    job = await enqueue(client, "exhaust_memory", "story")
    work_off(engine, redis_dsn, STORIES, "--memory", "300m")
    events = [(entry.job_id, entry.event) for entry in read_ledger(redis_dsn).entries]
    assert events == [(job.id, event) for event in ("started", "started", "finished")]


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_redis_keeps_its_data_in_a_volume_and_needs_nothing_else(
    engine: DockerEngine, container_name: str, tmp_path: Path
) -> None:
    os.chown(tmp_path, 65532, 65532)

    async def is_up() -> bool:
        try:
            return bool(connection.ping())
        except redis.ConnectionError:
            return False

    def start() -> None:
        options = ("--detach", "--name", container_name, "--network", "none", "--volume", f"{tmp_path}:/data")
        arguments = ("--port", "0", "--unixsocket", "/data/socket", "--appendonly", "yes")
        engine.run("run", *options, *LOCKED_DOWN, REDIS, *arguments)

    with redis.Redis(unix_socket_path=str(tmp_path / "socket")) as connection:
        start()
        await eventually(is_up, 60, "redis-server in its container does not answer")
        connection.set("kept", "yes")
        engine.run("stop", "--time", "60", container_name)
        assert engine.run("inspect", "--format", "{{.State.ExitCode}}", container_name).strip() == "0"
        engine.run("rm", container_name)
        start()
        await eventually(is_up, 60, "redis-server does not come back")
        assert connection.get("kept") == b"yes"
