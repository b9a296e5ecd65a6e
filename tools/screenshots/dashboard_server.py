"""A dashboard in a test: inside this process for what it answers, or as the process that a user starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from rrq.dashboard.connections import serve
from rrq.dashboard.policy import AccessOptions, build_policy
from rrq.dashboard.server import Dashboard, DashboardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rrq.store import JobStore

ADMIN_TOKEN = "admin-token-of-the-tests"
VIEW_TOKEN = "view-token-of-the-tests"
SECRET = b"secret of the session key in tests"
START_TIMEOUT_SECONDS = 30.0


class Browser:
    """What a browser does without showing anything: keeps a cookie and says where it comes from."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(f"{self.url}/api/{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    async def ok(self, path: str) -> Any:
        status, body = await self.get(path)
        assert status == 200, body
        return body

    async def post(self, path: str, body: Any, **headers: str | None) -> tuple[int, Any]:
        """Send JSON as our own page does; a header that is None is left out."""
        known = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **headers}
        sent = {name.replace("_", "-"): value for name, value in known.items() if value is not None}
        async with self.session.post(f"{self.url}/api/{path}", json=body, headers=sent) as answer:
            return answer.status, await answer.json()

    async def sign_in(self, token: str = ADMIN_TOKEN, name: str = "anna") -> None:
        status, body = await self.post("sign-in", {"token": token, "name": name})
        assert status == 200, body

    async def act(self, name: str, **order: Any) -> tuple[int, Any]:
        """Carry out an action with the CSRF token that the session has."""
        _, session = await self.get("session")
        return await self.post(f"actions/{name}", order, **{session["csrf_header"]: session["csrf"]})

    async def events(self, count: int) -> list[tuple[str, Any]]:
        """Return the first events of the live stream."""
        found: list[tuple[str, Any]] = []
        async with self.session.get(f"{self.url}/api/live") as answer:
            assert answer.status == 200
            name = ""
            async for line in answer.content:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    found.append((name, json.loads(text.removeprefix("data: "))))
                    if len(found) == count:
                        break
        return found


@contextlib.asynccontextmanager
async def browse(url: str, address: str = "127.0.0.1") -> AsyncIterator[Browser]:
    """Open a browser of its own, which comes from an address of this machine."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    # A cookie for an address without a name is refused unless one says otherwise.
    cookies = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=cookies, connector=connector) as session:
        yield Browser(session, url)


@contextlib.asynccontextmanager
async def serve_dashboard(
    store: JobStore, *, hides_values: bool = False, secret: bytes = SECRET, **access: Any
) -> AsyncIterator[Browser]:
    """Serve the jobs of a store on a free port of this machine."""
    policy = build_policy(AccessOptions("127.0.0.1", **access))
    options = DashboardOptions(
        policy, secret, hides_values, lambda error: f"no Redis: {type(error).__name__}"
    )
    app = Dashboard(store, options).build_app()
    async with serve(app, policy, "127.0.0.1", 0) as bound, browse(f"http://{bound}") as browser:
        yield browser


class DashboardProcess:
    """`rrq dashboard` on a free port, in a process of its own."""

    def __init__(self, dsn: str, folder: Path, *options: str, admin: bool = True) -> None:
        self._environment = {**os.environ, "RRQ_REDIS_DSN": dsn, "PYTHONUNBUFFERED": "1"}
        self._environment["XDG_STATE_HOME"] = str(folder / "state")
        self._options = ["--http", "127.0.0.1:0", *options]
        if admin:
            token = folder / "admin-token"
            token.write_text(f"{ADMIN_TOKEN}\n")
            self._options += ["--admin-token-file", str(token)]
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rrq", "dashboard", *self._options),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            line = (await self._process.stdout.readline()).decode()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"no dashboard: {line!r}"
        self.url = found[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        await self._process.wait()

    async def stop(self) -> int:
        """End it as Ctrl-C does; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            return await self._process.wait()
