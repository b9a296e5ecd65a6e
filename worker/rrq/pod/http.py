"""Answers probes and scrapes on one port, from a thread of its own.

In a thread, so that a probe is answered while the supervisor hangs. ``probes.py`` and ``exposition.py`` decide the
answers.
"""

import contextlib
import functools
import io
import logging
import socket
import socketserver
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Self

from rrq.exc import SettingsError

logger = logging.getLogger(__name__)

#: A client that sends nothing must not occupy a thread for ever.
_CLIENT_TIMEOUT_SECONDS = 10.0
_MOST_CLIENTS = 32
#: For the whole connection: a client that sends a byte now and then never reaches the timeout of a single read.
_CONNECTION_SECONDS = 30.0
#: http.server takes a hundred header lines of 64 KiB each.
_LARGEST_HEAD_BYTES = 80 * 1024
#: How soon the server notices that it must end; the pod waits for it.
_POLL_SECONDS = 0.05

#: Status, content type and body for a request, given what the client accepts.
Answer = tuple[HTTPStatus, str, bytes]
Page = Callable[[str], Answer]


def parse_bind(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``."""
    host, colon, port = text.rpartition(":")
    is_six = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (not is_six and set(host) & set("[]:")):
        raise SettingsError(
            f"{text!r} is not an address to listen on. Write HOST:PORT, such as 0.0.0.0:8080."
        )
    return host.strip("[]"), int(port)


class PodServer:
    """A small HTTP server; a context manager that starts and stops it."""

    def __init__(self, bind: str, pages: Mapping[str, Page]) -> None:
        host, port = parse_bind(bind)
        server_class = _SixServer if ":" in host else _Server
        try:
            self._server = server_class((host, port), _make_handler(pages))
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {bind}: {error.strerror or error}. Choose another address with --http."
            ) from error
        serve = functools.partial(self._server.serve_forever, poll_interval=_POLL_SECONDS)
        self._thread = threading.Thread(target=serve, name="rrq-http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Otherwise closing would wait for a stalled client.
    block_on_close = False
    # With the default of 5, many clients fill the queue of the kernel, and a probe is accepted too late.
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        # With the deadline of each, the oldest first.
        self._clients: deque[tuple[float, socket.socket]] = deque()
        super().__init__(*given)

    def server_bind(self) -> None:
        # Not that of HTTPServer, which looks up the name of this host in DNS first.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        # Too many clients would leave no descriptors for the heartbeat and for new children. The oldest client is closed,
        # not the newest: probes are answered at once, so the oldest one most likely does not read.
        crowd = list(self._clients)
        for client in crowd[: max(0, len(crowd) - _MOST_CLIENTS + 1)]:
            self._hang_up(client)
        self._clients.append((monotonic() + _CONNECTION_SECONDS, request))
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        now = monotonic()
        for client in list(self._clients):
            if client[0] < now:
                self._hang_up(client)

    def _hang_up(self, client: tuple[float, socket.socket]) -> None:
        # The thread of the client may do the same at this moment.
        with contextlib.suppress(ValueError):
            self._clients.remove(client)
        with contextlib.suppress(OSError):
            client[1].shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        for client in list(self._clients):
            if client[1] is request:
                with contextlib.suppress(ValueError):
                    self._clients.remove(client)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that disconnects is not worth a log line; anything else is.
        error = sys.exception()
        if not isinstance(error, OSError):
            logger.error("probe or scrape failed", exc_info=error)


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Head(io.BufferedReader):
    """The head of a request. Bytes beyond the largest size look like the end of the stream and are not read."""

    _left_bytes = _LARGEST_HEAD_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        wanted = self._left_bytes if size is None or size < 0 else min(size, self._left_bytes)
        line = super().readline(wanted)
        self._left_bytes -= len(line)
        return line


def _make_handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_TIMEOUT_SECONDS
        server_version = "rrq"
        sys_version = ""

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = _Head(self.connection.makefile("rb", buffering=0))

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _refuse(self) -> None:
            """Refuse methods that change something."""
            self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
            self.send_header("Allow", "GET, HEAD")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

        def _answer(self, *, with_body: bool) -> None:
            page = pages.get(self.path.partition("?")[0], _not_found)
            status, content_type, body = page(self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler


def _not_found(_: str) -> Answer:
    return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"see /livez, /readyz, /startupz, /metrics\n"
