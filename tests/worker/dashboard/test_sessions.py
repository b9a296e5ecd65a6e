"""Sessions of the dashboard: who can make one, and what ends it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from dashboard_server import ADMIN_TOKEN, VIEW_TOKEN, Browser, serve_dashboard
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from rrq.embedded import EmbeddedRedis

TOKENS: dict[str, Any] = {"view_token": VIEW_TOKEN, "admin_token": ADMIN_TOKEN}
GUIDE = Path(__file__).parents[3] / "SECURITY.md"


def forge_admin(key: bytes) -> str:
    claim = {"id": "forged", "actor": "root", "role": "admin", "ends": int(time.time()) + 3600}
    payload = base64.urlsafe_b64encode(json.dumps(claim).encode()).decode().rstrip("=")
    signature = hmac.new(key, f"session\0{payload}".encode(), hashlib.sha256).hexdigest()
    return f"{payload}.{signature}"


def cookie_of(browser: Browser) -> str:
    (cookie,) = browser.session.cookie_jar
    return f"{cookie.key}={cookie.value}"


async def status_with(browser: Browser, cookie: str) -> int:
    """What a thief is told who has copied a cookie."""
    headers = {"Cookie": cookie}
    async with browser.session.get(f"{browser.url}/api/queues", headers=headers) as answer:
        return answer.status


async def test_a_viewer_cannot_forge_an_admin_cookie(store: JobStore) -> None:
    async with serve_dashboard(store, view_token=VIEW_TOKEN) as browser:
        for known in (f"rrq dashboard\0None\0{VIEW_TOKEN}", f"rrq dashboard\0{VIEW_TOKEN}\0None"):
            for key in (hashlib.sha256(known.encode()).digest(), known.encode()):
                assert await status_with(browser, f"rrq_dashboard={forge_admin(key)}") == 401


async def test_signing_out_ends_the_session_on_every_server_and_across_restarts(store: JobStore) -> None:
    async with serve_dashboard(store, **TOKENS) as here, serve_dashboard(store, **TOKENS) as there:
        await here.sign_in()
        cookie = cookie_of(here)
        assert await status_with(there, cookie) == 200
        await here.post("sign-out", {})
        assert await status_with(here, cookie) == 401
        # The other one asks Redis once a second.
        await eventually(lambda: _is(there, cookie, 401), 10, "the other server still takes the cookie")
        # Another session of the same user goes on.
        await here.sign_in()
        assert await status_with(there, cookie_of(here)) == 200
    async with serve_dashboard(store, **TOKENS) as restarted:
        assert await status_with(restarted, cookie) == 401


async def _is(browser: Browser, cookie: str, status: int) -> bool:
    return await status_with(browser, cookie) == status


async def test_signing_out_works_with_read_only_rights_on_redis(own_redis: EmbeddedRedis) -> None:
    viewer = await make_viewer(own_redis)
    try:
        async with serve_dashboard(viewer, view_token=VIEW_TOKEN) as browser:
            assert await status_with(browser, await sign_in_and_out(browser)) == 401
    finally:
        await viewer.aclose()


async def test_the_documented_rights_allow_storing_that_a_session_ended(own_redis: EmbeddedRedis) -> None:
    (selector,) = re.findall(r"^`(\(~rrq:dashboard:.*\))`", GUIDE.read_text(), re.MULTILINE)
    try:
        viewer = await make_viewer(own_redis, selector)
    except ResponseError:
        pytest.skip("this Redis is older than 7 and knows no selectors")
    try:
        async with serve_dashboard(viewer, view_token=VIEW_TOKEN) as browser:
            cookie = await sign_in_and_out(browser)
        async with serve_dashboard(viewer, view_token=VIEW_TOKEN) as restarted:
            assert await status_with(restarted, cookie) == 401
    finally:
        await viewer.aclose()


async def make_viewer(server: EmbeddedRedis, *selectors: str) -> JobStore:
    """Return the store of a user with the rights that SECURITY.md gives for looking."""
    owner = JobStore(RRQSettings(redis_dsn=server.dsn))
    rights = ["~rrq:*", "+@read", "+eval", "+evalsha", "+time", "+ping", *selectors]
    try:
        await owner.connection.call("ACL", "SETUSER", "viewer", "on", ">secret", *rights)
    finally:
        await owner.aclose()
    return JobStore(RRQSettings(redis_dsn=server.dsn.replace("redis://", "redis://viewer:secret@")))


async def sign_in_and_out(browser: Browser) -> str:
    await browser.sign_in(VIEW_TOKEN)
    cookie = cookie_of(browser)
    assert (await browser.post("sign-out", {}))[0] == 200
    return cookie


async def test_signing_out_without_redis_is_stored_once_redis_answers(own_redis: EmbeddedRedis) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    try:
        async with serve_dashboard(store, **TOKENS) as browser:
            await browser.sign_in()
            cookie = cookie_of(browser)
            session = await browser.ok("session")
            own_redis.kill()
            # Who looks is shown that Redis is away; who acts has to be known for sure.
            assert (await browser.get("session"))[0] == 200
            order, csrf = {"target": "queue:a", "state": "paused"}, {"X-RRQ-CSRF": session["csrf"]}
            assert (await browser.post("actions/pause", order, **csrf))[0] == 503
            assert (await browser.post("sign-out", {}))[0] == 200
            assert (await browser.get("session"))[0] == 401
            own_redis.restart()
            # Any session that is looked at makes the server try again.
            await browser.sign_in()

            async def is_stored() -> bool:
                await browser.get("session")
                return bool(await store.read_ended_sessions(["admin"]))

            await eventually(is_stored, 20, "the sign-out was never stored")
        async with serve_dashboard(store, **TOKENS) as restarted:
            assert await status_with(restarted, cookie) == 401
    finally:
        await store.aclose()


async def test_the_record_of_ended_sessions_is_bounded_and_expires(store: JobStore) -> None:
    now = 1_000_000
    for number in range(1_010):
        await store.add_ended_session("admin", f"session-{number}", now + number, now)
    kept = await store.read_ended_sessions(["admin", "read-only"])
    assert kept == {f"session-{number}" for number in range(10, 1_010)}
    # Viewers cannot push out what admins ended.
    await store.add_ended_session("read-only", "of-a-viewer", now + 5_000, now)
    assert len(await store.read_ended_sessions(["admin", "read-only"])) == 1_001
    await store.add_ended_session("admin", "last", now + 9_000, now + 4_000)
    assert await store.read_ended_sessions(["admin"]) == {"last"}
    assert 0 < await store.connection.call("TTL", store.keys.ended_sessions_key("admin")) <= 13 * 3600
