"""A password in the URL of Redis never comes out: real processes, every failure, everything they say is searched.

What masks is tested by itself in tests/worker/runtime/test_masking.py; here is whether it stands at every way out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
import yaml
from click.testing import CliRunner

from commandline import CommandLine, child_environment
from local_mode import build_manifest
from operator_process import RunningOperator
from pod import Pod
from rrq import RRQClient, RRQSettings
from rrq_operator.cli import main
from uncounted import UNCOUNTED
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.embedded import EmbeddedRedis

pytestmark = pytest.mark.slow

#: With every character that ends a part of a URL somewhere, and one that is easy to search for in front.
PASSWORD = "hush-hush/@:#?&%"
NEEDLE = "hush-hush"
ARGUMENT = "argument-4711-of-a-job"
COMMANDS = [
    ("check", "--json"),
    ("debug", "submit", "f"),
]
#: Those that a process of its own is started for.
WORST = ("wrong password", "TLS failure")


def with_password(dsn: str, password: str = PASSWORD, user: str = "") -> str:
    return dsn.replace("://", f"://{user}:{urllib.parse.quote(password, safe='')}@", 1)


@pytest.fixture
def guarded(make_redis: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A Redis that asks for the password."""
    server = make_redis()
    with redis.Redis.from_url(server.dsn) as admin:
        admin.execute_command("ACL", "SETUSER", "me", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "weak", "on", f">{PASSWORD}", "~*", "-@all", "+ping")
    return server


def failing_dsns(server: EmbeddedRedis) -> dict[str, str]:
    """Every way not to get at Redis with a URL that holds the password."""
    plain = server.dsn
    return {
        "wrong password": with_password(plain, f"{NEEDLE}-wrong", "me"),
        "wrong user": with_password(plain, PASSWORD, "nobody"),
        "no rights": with_password(plain, PASSWORD, "weak"),
        "unreachable": with_password("redis://127.0.0.1:1/0"),
        "no such host": with_password("redis://no-such-host.invalid:6379/0"),
        "TLS failure": with_password(plain.replace("redis://", "rediss://")),
        "unknown scheme": with_password("http://127.0.0.1:1/0"),
        "not encoded": f"redis://:{PASSWORD}@127.0.0.1:1/0",
        "no port": f"redis://me:{NEEDLE}",
        "option": f"redis://127.0.0.1:1/0?password={NEEDLE}",
        "bad option": f"redis://127.0.0.1:1/0?password={NEEDLE}&socket_timeout=abc",
        "sentinel": with_password("redis+sentinel://127.0.0.1:1/service/0"),
        "sentinel option": f"redis+sentinel://127.0.0.1:1/service/0?sentinel_password={NEEDLE}",
        "cluster": with_password("redis+cluster://127.0.0.1:1/0"),
        "bad database": with_password("redis://127.0.0.1:1/abc"),
        "not a URL": f"{NEEDLE}@127.0.0.1",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_no_command_says_the_password(command: tuple[str, ...], guarded: EmbeddedRedis) -> None:
    for name, dsn in failing_dsns(guarded).items():
        result = await CommandLine(dsn).run(*command)
        assert result.exit_code == 1, (name, result.output)
        assert NEEDLE not in result.output, name
        assert result.exception is None or isinstance(result.exception, SystemExit), name


@pytest.mark.parametrize("name", WORST)
def test_no_pod_that_cannot_start_says_the_password(name: str, guarded: EmbeddedRedis) -> None:
    options = ("--burst", "--num-workers", "1", "--log-level", "DEBUG", "--log-format", "text")
    environment = {
        "RRQ_SETTINGS": "examples.jobs.settings", "RRQ_ENVIRONMENT_WINS": "1", "RRQ_WORKER_BURST_REDIS_PATIENCE_SECONDS": "0.5",
        "RRQ_REDIS_CONNECT_TIMEOUT_SECONDS": "0.5",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rrq", "worker", "run", *options],
        env=child_environment({**environment, "RRQ_REDIS_DSN": failing_dsns(guarded)[name]}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=110, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    assert NEEDLE not in done.stdout
    assert "Traceback (most recent" not in done.stdout, done.stdout


def read_what_everybody_may(pod: Pod) -> list[bytes]:
    """Return the command lines of all processes of a pod; their environments are for the same user alone."""
    try:
        family = [psutil.Process(pod.pid), *psutil.Process(pod.pid).children(recursive=True)]
        lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in family]
        modes = [os.stat(f"/proc/{process.pid}/environ").st_mode for process in family]
    except (psutil.Error, OSError) as error:
        raise AssertionError(f"a process has ended meanwhile: {error}") from error
    assert len(family) >= 2
    assert all((mode & 0o077) == 0 for mode in modes)
    return lines


async def test_a_working_pod_keeps_the_password_and_the_arguments_to_itself(
    guarded: EmbeddedRedis, tmp_path: Path
) -> None:
    dsn = with_password(guarded.dsn, PASSWORD, "me")
    client = RRQClient(RRQSettings(redis_dsn=dsn))
    said_all = ("--num-workers", "1", "--log-level", "DEBUG", "--log-format", "json")
    quick: dict[str, Any] = {"base_retry_delay_seconds": 0.1, "unknown_function_patience_seconds": 0}
    with Pod(dsn, tmp_path, *said_all, environment=UNCOUNTED, **quick) as pod:
        await pod.is_up()
        # Jobs that end in every way, all with the same argument.
        ids = []
        for function, options in (
            ("in_thread", {"_max_retries": 2}), ("note", {"_max_retries": 1}), ("unknown", {}), ("kill_process", {"_max_retries": 1}),
            ("note", {"_job_timeout_seconds": 0}),
        ):  # fmt: skip
            job = await client.enqueue(function, ARGUMENT, **options)  # type: ignore[arg-type]  # of several kinds
            assert job is not None
            ids.append(job.id)

        async def all_ended() -> bool:
            results = [await client.get_job_status(job_id) for job_id in ids]
            assert all(result is not None and result.status == "FAILED" for result in results), results
            return True

        await eventually(all_ended, 60, "the jobs never ended")
        pages = [pod.get(path)[1] for path in ("/livez", "/readyz", "/startupz", "/metrics", "/nothing")]
        # In the place of the process that was killed comes another.
        lines = await eventually(lambda: read_what_everybody_may(pod), 60, "there is no whole pod")
        # Redis is cut off and comes back: the words for that are searched as well.
        with redis.Redis.from_url(guarded.dsn) as admin:
            admin.execute_command("ACL", "SETUSER", "me", "resetpass", ">another")
            admin.execute_command("CLIENT", "KILL", "USER", "me")
            await eventually(lambda: "failed, trying again" in pod.log_path.read_text(), 60, "nobody noticed")
            admin.execute_command("ACL", "SETUSER", "me", f">{PASSWORD}")
            admin.execute_command("CONFIG", "SET", "appendonly", "no")
            stored = [admin.dump(key) for key in admin.scan_iter()]
            health = [str(admin.get(key)) for key in admin.scan_iter("rrq:health:*")]
        pod.signal(signal.SIGTERM)
        assert await asyncio.to_thread(pod.wait) == 0
        printed = pod.printed()
    await client.close()
    said = pod.log_path.read_text()
    for text in (said, printed, *pages, *(line.decode() for line in lines)):
        assert NEEDLE not in text
    # Small values are stored as they are; DUMP would only compress long ones.
    assert NEEDLE not in str(stored)
    assert NEEDLE not in "".join(health)
    told = [json.loads(line) for line in said.splitlines()]
    quoting = [line for line in told if ARGUMENT in json.dumps({**line, "error": "", "exception": ""})]
    assert quoting == []
    assert ARGUMENT not in "".join(pages)


@pytest.mark.parametrize("name", ["option", "not encoded", "sentinel option"])
def test_local_mode_refuses_a_manifest_with_a_password_without_quoting_it(
    name: str, guarded: EmbeddedRedis, tmp_path: Path
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(build_manifest(redis={"url": failing_dsns(guarded)[name]})))
    result = CliRunner().invoke(main, ["local", "-f", str(path)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert NEEDLE not in result.output


async def test_the_operator_says_no_token(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"https://{NEEDLE}:{NEEDLE}@127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": NEEDLE}}],
    }  # fmt: skip
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    with RunningOperator(kubeconfig, "default", tmp_path, log_level="DEBUG") as operator:
        await eventually(
            lambda: "pools not listed" in operator.log or "interrupted" in operator.log, 60, operator.log
        )
        assert NEEDLE not in Path(f"/proc/{operator.pid}/cmdline").read_text()
        metrics = (await operator.get("/metrics"))[1]
    assert NEEDLE not in operator.log
    assert NEEDLE not in metrics
