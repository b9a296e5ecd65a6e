"""`rrq dashboard` as a user starts it."""

from __future__ import annotations

import socket
import stat
from typing import TYPE_CHECKING

import aiohttp
import pytest

from commandline import CommandLine
from dashboard_server import DashboardProcess, browse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def commands(redis_dsn: str) -> CommandLine:
    return CommandLine(redis_dsn)


async def test_it_prints_its_address_ends_with_a_signal_and_keeps_its_sessions(
    redis_dsn: str, tmp_path: Path
) -> None:
    async with DashboardProcess(redis_dsn, tmp_path) as dashboard, browse(dashboard.url) as browser:
        assert dashboard.url.startswith("http://127.0.0.1:")
        assert (await browser.ok("session"))["role"] == "read-only"
        async with browser.session.get(f"{dashboard.url}/livez") as answer:
            assert answer.status == 200
        await browser.sign_in()
        # An open page does not hold up the end.
        async with browser.session.get(f"{dashboard.url}/api/live"):
            assert await dashboard.stop() == 0
        key = tmp_path / "state" / "rrq" / "dashboard-session-key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        async with DashboardProcess(redis_dsn, tmp_path) as restarted:
            browser.url = restarted.url
            assert (await browser.ok("session"))["role"] == "admin"


async def test_it_starts_without_redis(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dsn = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        async with (
            DashboardProcess(dsn, tmp_path, admin=False) as dashboard,
            aiohttp.ClientSession() as session,
        ):
            async with session.get(f"{dashboard.url}/") as answer:
                assert answer.status == 200
            async with session.get(f"{dashboard.url}/api/workers") as answer:
                assert answer.status == 503


async def test_other_addresses_are_refused_without_a_token_or_a_proxy(commands: CommandLine) -> None:
    line = await commands.refused("dashboard", "--http", "0.0.0.0:0")
    assert line.startswith("ERROR: The dashboard would show every job to every client that reaches 0.0.0.0.")
    assert "--view-token-file" in line


async def test_a_bad_or_used_address_is_one_line(commands: CommandLine) -> None:
    assert "not an address to listen on" in await commands.refused("dashboard", "--http", "here")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = commands.process("dashboard", "--http", f"127.0.0.1:{taken.getsockname()[1]}")
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Choose another address with --http" in told


async def test_a_token_that_cannot_be_read_is_one_line(commands: CommandLine, tmp_path: Path) -> None:
    line = await commands.refused("dashboard", "--admin-token-file", str(tmp_path / "missing"))
    assert "--admin-token-file" in line
    short = tmp_path / "short"
    short.write_text("secret\n")
    short.chmod(stat.S_IRUSR)
    line = await commands.refused("dashboard", "--view-token-file", str(short))
    assert "could be guessed" in line
    assert "secret" not in line


async def test_a_session_key_that_others_can_read_is_refused(commands: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o640)
    line = await commands.refused("dashboard", "--session-key-file", str(key))
    assert f"{key}, can be read by other users of this machine" in line
    assert f"chmod 600 {key}" in line
    key.chmod(0o600)
    key.write_text("short")
    assert "could be guessed" in await commands.refused("dashboard", "--session-key-file", str(key))
    missing = str(tmp_path / "missing")
    line = await commands.refused("dashboard", "--session-key-file", missing)
    assert "openssl rand -hex 32" in line
    assert "add the key to the Secret" in line
