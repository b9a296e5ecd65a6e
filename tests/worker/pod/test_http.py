"""The small HTTP server of a pod, and clients that mean it no good."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rrq.exc import SettingsError
from rrq.pod.exposition import PodCollector, PodFigures
from rrq.pod.http import PodServer, parse_bind
from rrq.runtime.metrics import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rrq.pod.http import Answer


def hello(accept: str) -> Answer:
    return HTTPStatus.OK, "text/plain", b"hello"


def fail(accept: str) -> Answer:
    raise RuntimeError("a page that cannot be made")


def metrics(accept: str) -> Answer:
    content_type, text = PodCollector(Meter(), lambda: PodFigures([], False, None)).expose(accept)
    return HTTPStatus.OK, content_type, text


@pytest.fixture
def server() -> Iterator[PodServer]:
    with PodServer("127.0.0.1:0", {"/hello": hello, "/fail": fail, "/metrics": metrics}) as server:
        yield server


def ask(server: PodServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages_are_served_and_a_head_request_gets_no_body(server: PodServer) -> None:
    assert ask(server, "/hello") == (200, b"hello")
    assert ask(server, "/hello", "HEAD") == (200, b"")
    assert ask(server, "/nothing")[0] == 404


def test_probes_are_answered_beside_many_slow_clients(server: PodServer) -> None:
    dawdlers = []
    try:
        for _ in range(100):
            dawdler = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            dawdler.sendall(b"GET /hello HT")
            dawdlers.append(dawdler)
        for _ in range(5):
            assert ask(server, "/hello") == (200, b"hello")
        # The oldest were turned away to make room.
        assert dawdlers[0].recv(1) == b""
    finally:
        for dawdler in dawdlers:
            dawdler.close()


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(
    server: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrq.pod.http._CONNECTION_SECONDS", 1.0)
    started = time.monotonic()
    address = ("127.0.0.1", server.port)
    with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=0.1) as client:
        while time.monotonic() < started + 8:
            client.sendall(b"X")
            with contextlib.suppress(TimeoutError):
                if client.recv(1) == b"":
                    break
    assert time.monotonic() < started + 8


def test_clients_with_endless_headers_use_bounded_memory() -> None:
    serve = "with h.PodServer('127.0.0.1:0', {}) as s: print(s.port, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", f"import rrq.pod.http as h, sys\n{serve}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        before = read_peak_bytes(process.pid)
        line = b"X: " + b"a" * 60_000 + b"\r\n"
        with contextlib.ExitStack() as crowd:
            for _ in range(30):
                client = socket.create_connection(("127.0.0.1", port), timeout=30)
                crowd.enter_context(client)
                with contextlib.suppress(ConnectionError):  # what is beyond the limit is not read
                    client.sendall(b"GET / HTTP/1.1\r\n" + line * 98)
        assert read_peak_bytes(process.pid) < before + 50_000_000


def read_peak_bytes(pid: int) -> int:
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(line) * 1024


def test_a_page_that_fails_is_logged_and_others_still_work(
    server: PodServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        ask(server, "/fail")
    assert ask(server, "/hello") == (200, b"hello")
    assert [record.message for record in caplog.records] == ["probe or scrape failed"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_disconnects_is_not_logged(server: PodServer, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        # With this set closing sends a reset, not a farewell.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert ask(server, "/hello") == (200, b"hello")
    assert not caplog.records


def test_an_invalid_accept_header_gets_the_plain_format(server: PodServer) -> None:
    status, text = ask(server, "/metrics", Accept="application/openmetrics-text; version=abc")
    assert status == 200
    assert b"rrq_build_info" in text


def test_addresses_to_listen_on() -> None:
    assert parse_bind("0.0.0.0:8080") == ("0.0.0.0", 8080)
    assert parse_bind(":80") == ("", 80)
    assert parse_bind("[::1]:8080") == ("::1", 8080)
    for text in ("", "8080", "host", "host:", "host:http", "host:65536", "[::1:8080", "::1:8080"):
        with pytest.raises(SettingsError, match="is not an address to listen on"):
            parse_bind(text)


def test_the_server_listens_on_ipv6_too() -> None:
    with PodServer("[::1]:0", {"/hello": hello}) as server:
        connection = http.client.HTTPConnection("::1", server.port, timeout=30)
        connection.request("GET", "/hello")
        assert connection.getresponse().read() == b"hello"
        connection.close()
