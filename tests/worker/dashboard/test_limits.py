"""What one client may take of the dashboard, and that the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from dashboard_server import ADMIN_TOKEN, VIEW_TOKEN, Browser, DashboardProcess, browse, serve_dashboard
from rrq.dashboard.limits import MOST_WRONG_TOKENS, WRONG_TOKEN_SECONDS, Quota, WrongTokens
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from rrq.store import JobStore

TOKENS: dict[str, Any] = {"view_token": VIEW_TOKEN, "admin_token": ADMIN_TOKEN}
MIB = 1024 * 1024


@pytest.fixture
async def browser(store: JobStore) -> AsyncIterator[Browser]:
    async with serve_dashboard(store, **TOKENS) as browser:
        yield browser


# Who gives way


def test_an_owner_above_its_limit_loses_its_oldest_item() -> None:
    places = Quota[str](100, 2, lambda _: 0)
    assert [places.take("anna", name) for name in ("a", "b", "c", "d")] == [None, None, "a", "b"]
    assert places.take("omar", "e") is None


def test_at_the_total_limit_the_owner_of_the_most_items_loses_one() -> None:
    places = Quota[str](4, 100, lambda _: 0)
    for owner, name in (("anna", "a"), ("omar", "b"), ("omar", "c"), ("omar", "d")):
        places.take(owner, name)
    assert places.take("ines", "e") == "b"
    assert len(places) == 4


def test_when_all_places_are_taken_the_client_of_the_most_gives_way_however_many_owners_it_has() -> None:
    places = Quota[str](4, 100, lambda _: 0)
    places.take("admin", "a", client="office")
    left = [places.take(f"session {number}", f"stream {number}", client="greedy") for number in range(6)]
    assert left == [None, None, None, "stream 0", "stream 1", "stream 2"]
    assert places.take("admin", "b", client="office") == "stream 3"
    assert len(places) == 4


def test_the_owner_with_the_most_places_of_its_client_gives_way() -> None:
    places = Quota[str](4, 100, lambda _: 0)
    for owner, name in (("anna", "a"), ("omar", "b"), ("omar", "c"), ("ines", "d")):
        places.take(owner, name, client="office")
    assert places.take("ines", "e", client="elsewhere") == "b"


def test_an_item_without_a_rank_stays_and_the_lowest_rank_leaves_first() -> None:
    ranks = {"answering": None, "stream": 1, "unfinished": 0, "new": 0}
    places = Quota[str](100, 3, ranks.get)
    for name in ("answering", "stream", "unfinished"):
        places.take("anna", name)
    assert places.take("anna", "new") == "unfinished"
    busy = Quota[str](1, 1, {"new": 0}.get)
    busy.take("anna", "answering")
    assert busy.take("anna", "new") == "new"


def test_freeing_an_item_twice_counts_once() -> None:
    places = Quota[str](100, 1, lambda _: 0)
    places.take("anna", "a")
    assert places.take("anna", "b") == "a"
    places.free("anna", "a")
    places.free("anna", "b")
    places.free("anna", "b")
    assert len(places) == 0


def test_wrong_tokens_are_forgotten_after_a_minute() -> None:
    wrong = WrongTokens()
    for number in range(MOST_WRONG_TOKENS):
        assert not wrong.is_blocked("anna", number)
        wrong.add("anna", number)
    assert wrong.is_blocked("anna", MOST_WRONG_TOKENS)
    assert not wrong.is_blocked("omar", MOST_WRONG_TOKENS)
    assert not wrong.is_blocked("anna", WRONG_TOKEN_SECONDS)


# Tokens


async def test_parallel_guesses_are_counted_and_block_only_the_client_that_guesses(browser: Browser) -> None:
    async def guess(number: int) -> int:
        with contextlib.suppress(aiohttp.ClientError):
            return (await browser.post("sign-in", {"token": f"guess {number}"}))[0]
        return 0  # gave way to later ones

    answers = Counter(await asyncio.gather(*(guess(number) for number in range(200))))
    assert answers[403] == MOST_WRONG_TOKENS
    assert answers.keys() <= {403, 429, 0}
    assert (await browser.post("sign-in", {"token": ADMIN_TOKEN}))[0] == 429
    async with browse(browser.url, "127.0.0.2") as admin:
        await admin.sign_in()


async def test_behind_a_trusted_proxy_each_client_is_counted_by_itself(store: JobStore) -> None:
    async with serve_dashboard(store, **TOKENS, proxy_from=["127.0.0.1"]) as browser:
        guesser, admin = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
        for _ in range(MOST_WRONG_TOKENS):
            assert (await browser.post("sign-in", {"token": "wrong"}, **guesser))[0] == 403
        assert (await browser.post("sign-in", {"token": ADMIN_TOKEN}, **guesser))[0] == 429
        assert (await browser.post("sign-in", {"token": ADMIN_TOKEN}, **admin))[0] == 200


# Requests that never become whole


def connect(url: str, address: str = "127.0.0.1") -> socket.socket:
    port = urlsplit(url).port
    assert port is not None
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(address, 0))


def begin_sign_in(length: int) -> bytes:
    head = f"Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"POST /api/sign-in HTTP/1.1\r\n{head}\r\n\r\n".encode()


async def read_status(client: socket.socket) -> int:
    """Return the status of an answer, 0 if the server hung up without one."""
    with contextlib.suppress(ConnectionError):
        line = (await asyncio.to_thread(client.recv, 65536)).partition(b"\r\n")[0]
        return int(line.split()[1]) if line else 0
    return 0


async def test_requests_that_never_begin_or_end_are_closed(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.dashboard.connections._HEAD_SECONDS", 0.3)
    monkeypatch.setattr("rrq.dashboard.connections._NEXT_HEAD_SECONDS", 0.3)
    monkeypatch.setattr("rrq.dashboard.bodies._BODY_SECONDS", 0.3)
    for head in (b"", b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        with connect(browser.url) as client:
            client.sendall(head)
            assert await read_status(client) == 0, head
    with connect(browser.url) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await read_status(client) == 200
        client.sendall(b"GET /li")
        assert await read_status(client) == 0, "a second request"
    with connect(browser.url) as client:
        client.sendall(begin_sign_in(100) + b"{")
        assert await read_status(client) == 408, "a body"


async def test_a_head_is_at_most_32_kib(browser: Browser) -> None:
    with connect(browser.url) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /livez HTTP/1.1\r\n" + (b"X: " + b"a" * 8000 + b"\r\n") * 100)
        assert await read_status(client) in (431, 0)
    with connect(browser.url) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n" + (b"X: " + b"a" * 8000 + b"\r\n") * 3 + b"\r\n")
        assert await read_status(client) == 200


async def test_a_sign_in_is_at_most_4_kib_however_it_is_sent(browser: Browser) -> None:
    assert (await browser.post("sign-in", {"token": "a" * 4096}))[0] == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"a" * 1024

    headers = {"Origin": browser.url, "Content-Type": "application/json"}
    url = f"{browser.url}/api/sign-in"
    async with browser.session.post(url, data=chunks(), headers=headers) as answer:
        assert answer.status == 413
    assert (await browser.post("sign-in", {"token": "a" * 3000}))[0] == 403


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    clients: list[socket.socket] = []
    yield clients
    for client in clients:
        client.close()


@pytest.mark.slow
async def test_a_flood_of_unfinished_requests_takes_bounded_memory_and_others_can_sign_in(
    redis_dsn: str, tmp_path: Path, crowd: list[socket.socket]
) -> None:
    # Bodies, heads of many lines, what was never asked for, and many whole requests whose answers are never read.
    lines = (b"X: " + b"a" * 8000 + b"\r\n") * 100
    unasked = b"GET /livez HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
    pipelined = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2000
    parts = (begin_sign_in(MIB - 1) + lines, b"GET / HTTP/1.1\r\n" + lines, unasked + lines, pipelined)
    async with DashboardProcess(redis_dsn, tmp_path) as dashboard:
        before = read_peak_bytes(dashboard.pid)
        for number in range(900):
            client = connect(dashboard.url, f"127.0.0.{10 + number % 9}")
            crowd.append(client)
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.send(parts[number % 4])
            if number % 100 == 0:
                async with browse(dashboard.url, "127.0.0.2") as admin:
                    await admin.sign_in()
                    assert (await admin.ok("session"))["role"] == "admin"
        assert read_peak_bytes(dashboard.pid) - before < 64 * MIB
        # A probe from an address that floods.
        async with (
            browse(dashboard.url, "127.0.0.10") as probe,
            probe.session.get(f"{dashboard.url}/livez") as answer,
        ):
            assert answer.status == 200
        descriptors = Path(f"/proc/{dashboard.pid}/fd")
        assert len(list(descriptors.iterdir())) < 650


def read_peak_bytes(pid: int) -> int:
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(line) * 1024


# Streams


async def test_the_streams_of_one_viewer_do_not_lock_out_others(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.dashboard.streams.MOST_STREAMS", 6)
    monkeypatch.setattr("rrq.dashboard.streams.MOST_STREAMS_PER_SESSION", 4)
    async with (
        serve_dashboard(store, **TOKENS) as greedy,
        browse(greedy.url) as second,
        browse(greedy.url) as admin,
    ):
        for viewer in (greedy, second):
            await viewer.sign_in(VIEW_TOKEN)
        await admin.sign_in()
        first = await _open_stream(greedy)
        streams = [first, *[await _open_stream(greedy) for _ in range(5)]]
        await eventually(lambda: _has_ended(first), 10, "the oldest stream of the session goes on")
        streams += [await _open_stream(second) for _ in range(3)]
        # Everything is taken, and the admin still gets what he asks for.
        assert (await admin.events(2))[0][0] == "history"
        for stream in streams:
            stream.close()


async def test_one_client_behind_a_proxy_ends_no_stream_of_others_with_many_sessions(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.dashboard.streams.MOST_STREAMS", 6)
    greedy, office = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(serve_dashboard(store, **TOKENS, proxy_from=["127.0.0.1"]))
        await admin.sign_in()
        watched = [await _open_stream(admin, **office) for _ in range(2)]
        streams = list(watched)
        for _ in range(12):
            viewer = await stack.enter_async_context(browse(admin.url))
            await viewer.sign_in(VIEW_TOKEN)
            streams.append(await _open_stream(viewer, **greedy))
        assert not any([await _has_ended(stream) for stream in watched])
        assert await _has_ended(streams[2])
        for stream in streams:
            stream.close()


async def _open_stream(browser: Browser, **headers: str) -> aiohttp.ClientResponse:
    stream = await browser.session.get(f"{browser.url}/api/live", headers=headers)
    assert stream.status == 200
    return stream


async def _has_ended(stream: aiohttp.ClientResponse) -> bool:
    try:
        async with asyncio.timeout(0.1):
            await stream.content.read()
    except TimeoutError:
        return False
    except aiohttp.ClientError:
        pass
    return True


async def test_a_stream_ends_soon_after_its_session(browser: Browser) -> None:
    await browser.sign_in()
    stream = await _open_stream(browser)
    await browser.post("sign-out", {})
    await eventually(lambda: _has_ended(stream), 10, "a page without a session is shown more")
